"""The front door: `build` and `open_run` return a `Run`, which has a method per analysis and per output."""

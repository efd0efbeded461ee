"""Errors, atomic files, progress and checkpoints: what long work needs, whatever it computes."""

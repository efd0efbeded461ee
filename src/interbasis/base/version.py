"""Version of the package; `pyproject.toml` reads it here."""

VERSION = "0.2.0"

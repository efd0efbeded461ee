"""Errors, files, records: what every other package uses."""

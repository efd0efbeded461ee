"""Costs of a build: operations from shapes, seconds from a profile of the machine."""

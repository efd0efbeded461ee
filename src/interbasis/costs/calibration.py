"""What counting operations leaves out, phase by phase."""

SHARES = {"forward": 1.0, "survey": 1.0, "statistics": 1.0, "Jacobians": 1.0, "bases": 1.0, "edges": 1.0}
"""Measured processor time over the time of the counted operations."""

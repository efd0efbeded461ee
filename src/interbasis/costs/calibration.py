"""What counting operations leaves out, phase by phase: memory that is made anew, short rows, Python.

Medians over six builds, `python benchmarks/costs.py fit`, one thread, 17 November 2026 (docs/costs.md);
`check` compares the plan with six other builds.
"""

SHARES = {"forward": 1.58, "survey": 0.59, "statistics": 1.5, "Jacobians": 1.54, "bases": 0.82, "edges": 1.16}
"""Measured processor time over that of the counted operations."""

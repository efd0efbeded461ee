"""What counting operations leaves out, phase by phase: memory that is made anew, short rows, Python.

Medians over six builds, `python benchmarks/costs.py fit`, one thread, 17 November 2026 (docs/costs.md);
`check` compares the plan with six other builds.
"""

SHARES = {"forward": 1.75, "survey": 0.6, "statistics": 1.6, "Jacobians": 1.55, "bases": 0.8, "edges": 1.3}
"""Measured processor time over that of the counted operations."""

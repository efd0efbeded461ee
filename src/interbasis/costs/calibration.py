"""What counting operations leaves out, phase by phase: memory that is made anew, short rows, Python.

`python benchmarks/costs.py fit` measures it on six builds. These are medians of builds of 64 to 384 coordinates on
a busy machine, 17 November 2026; they have not been checked on a quiet one, nor at full size.
"""

SHARES = {"forward": 2.5, "survey": 4.0, "statistics": 4.0, "Jacobians": 2.7, "bases": 1.1, "edges": 3.0}
"""Measured processor time over that of the counted operations."""

"""Factors for what counting operations leaves out, by phase: memory that is made anew, short rows, Python.

Medians over six builds, `python benchmarks/costs.py fit`, one thread, 17 November 2026 (docs/costs.md);
`check` compares the plan with six other builds.
"""

SHARES = {
    "forward": 1.19,
    "survey": 0.52,
    "statistics": 1.21,
    "Jacobians": 1.33,
    "bases": 0.76,
    "edges": 1.21,
}
"""Measured processor time over that of the counted operations."""

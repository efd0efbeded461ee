"""What counting operations leaves out, phase by phase: memory that is made anew, short rows, Python.

These come from one block of GPT2-small, 16 × 1,024 tokens, on a quiet machine, 16 November 2026
(docs/results/benchmarks.md). `python benchmarks/costs.py fit` measures them on six builds; `check` compares
six others.
"""

SHARES = {"forward": 1.5, "survey": 1.5, "statistics": 1.5, "Jacobians": 1.5, "bases": 1.0, "edges": 0.7}
"""Measured processor time over that of the counted operations."""

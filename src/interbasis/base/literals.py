"""The words a user chooses from; no imports, so that the command line can list them at once."""

from typing import Literal

Basis = Literal["lib", "gib", "jib", "pca", "neuron", "random"]
Method = Literal["gradient", "exact", "quadrature", "trapezoid"]
Group = int | Literal["positions"]
Dtype = Literal["float64", "float32"]
Metric = Literal["accuracy", "cross_entropy"]

"""What is known about a kind of basis without fitting one: its name, and what its features are ranked by."""

from dataclasses import dataclass
from typing import Literal

from interbasis.base.literals import Basis

RankedBy = Literal["lambda", "variance"]


@dataclass(frozen=True)
class BasisKind:
    """A kind of basis as settings, tables and pages speak of it; `interbasis.lib.bases` fits them."""

    name: Basis
    title: str
    """The name in running text."""
    description: str
    """One line: what its features are."""
    ranked_by: RankedBy
    """What the features are ranked by in every layer but the last, where it is the variance."""
    rotated: bool = True
    """Whether features mix the coordinates of a layer."""


LIB = BasisKind(
    "lib", "LIB", "local interaction basis: eigenvectors of the Jacobian Gram to the next layer", "lambda"
)
GIB = BasisKind(
    "gib", "GIB", "global interaction basis: eigenvectors of the Jacobian Gram to the last layer", "lambda"
)
JIB = BasisKind(
    "jib",
    "JIB",
    "joint interaction basis: LIB turned towards sparse Jacobians on slices of the data",
    "lambda",
)
PCA = BasisKind("pca", "PCA", "principal directions of the activations", "variance")
NEURON = BasisKind("neuron", "neuron", "the coordinates of the layer as they are", "variance", rotated=False)
RANDOM = BasisKind("random", "random", "control: a random rotation of the whitened activations", "lambda")

BASIS_KINDS: dict[Basis, BasisKind] = {kind.name: kind for kind in (LIB, GIB, JIB, PCA, NEURON, RANDOM)}
"""All of them by name, in the order of `runtime.literals.Basis`."""

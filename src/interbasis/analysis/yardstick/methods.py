"""Methods by name."""

from collections.abc import Sequence

from interbasis.analysis.yardstick.activation_svd import ActivationSVD
from interbasis.analysis.yardstick.basis_methods import BasisMethod, Neurons
from interbasis.analysis.yardstick.codes import RankingMethod
from interbasis.analysis.yardstick.slicing import Slicing
from interbasis.analysis.yardstick.weight_svd import WeightSVD
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Basis

_BASES: tuple[Basis, ...] = ("lib", "gib", "jib", "pca", "random")
_ALL: tuple[RankingMethod, ...] = (
    *map(BasisMethod, _BASES), Neurons(), WeightSVD(), ActivationSVD(), Slicing(),
)  # fmt: skip
METHODS = {method.name: method for method in _ALL}
"""All methods that come with interbasis; each is a file here."""


def chosen_methods(methods: Sequence[str | RankingMethod]) -> list[RankingMethod]:
    """Methods by name, or as they were given.

    Raises:
        InterbasisError: A name is unknown, or two methods have one name.
    """
    chosen = []
    for method in methods:
        if isinstance(method, str) and method not in METHODS:
            raise InterbasisError(f"expected methods of {', '.join(METHODS)}, received {method!r}")
        chosen.append(METHODS[method] if isinstance(method, str) else method)
    names = [method.name for method in chosen]
    if not names or len(set(names)) < len(names):
        raise InterbasisError(
            f"expected at least one method, and each of them once, received {', '.join(names) or 'none'}"
        )
    return chosen

"""The general path: batched vector-Jacobian products."""

import pytest

from cases import CASES
from interbasis import build
from reference import relative_error


@pytest.mark.parametrize("name", ["gelu", "modadd-2-blocks", "general"])
def test_small_parts_of_the_data_change_nothing_in_the_general_path(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis.numerics import autograd

    case = CASES[name]()
    whole = build(case.network, case.inputs, basis="gib", edge_method="quadrature", edge_points=2).graph
    monkeypatch.setattr(autograd, "MAX_JACOBIAN_ELEMENTS", 1)
    parts = build(case.network, case.inputs, basis="gib", edge_method="quadrature", edge_points=2).graph
    for mine, theirs in zip(parts.layers, whole.layers, strict=True):
        assert relative_error(mine.eigenvalues, theirs.eigenvalues) <= 1e-10
    for mine, theirs in zip(parts.edges, whole.edges, strict=True):
        assert relative_error(mine, theirs) <= 1e-10

"""Mixtures of experts in closed form against automatic differentiation, in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cases import activations, normal
from interbasis.base.records import Method
from interbasis.network.cores import Elementwise, Expert, Experts, Gated, Router
from interbasis.network.network import NodeLayer, Section
from interbasis.numerics.integration import rule
from network.cores.test_cores import check, check_signed
from reference import relative_error


def experts_section(router: dict[str, Any], kinds: list[Any], before: bool = False, seed: int = 0) -> Section:
    """Experts of the kinds (core, width) between layers of different widths; 3 coordinates are read."""
    d, d_in, d_out = 3, 5, 6
    scores = router["routed"] + router.pop("gates", 0)
    experts = []
    for k, (core, width) in enumerate(kinds):
        reads = width * (2 if isinstance(core, Gated) else 1)
        matrices = normal(reads, 1 + d, seed=seed + k), core, normal(d, width, seed=seed + 50 + k)
        experts.append(Expert(*matrices, 0 * normal(d) if before else normal(d, seed=seed + 90 + k)))
    core = Experts(Router(normal(scores, 1 + d, seed=seed + 7), **router), experts, before)
    read = normal(1 + d, d_in, seed=seed + 3)
    read[0] = 0
    read[0, 0] = 1
    matrices = normal(d_out, d_in, seed=seed + 1), read, normal(d_out, d, seed=seed + 2)
    return Section(NodeLayer("in", d_in), NodeLayer("out", d_out), *matrices, core)


@settings(max_examples=20)
@given(
    routed=st.integers(2, 6),
    chosen=st.integers(1, 3),
    shared=st.integers(0, 2),
    gated_shared=st.booleans(),
    kind=st.sampled_from(["softmax", "sigmoid"]),
    normalised=st.booleans(),
    groups=st.booleans(),
    before=st.booleans(),
    gated=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_experts_of_every_kind(
    routed: int,
    chosen: int,
    shared: int,
    gated_shared: bool,
    kind: str,
    normalised: bool,
    groups: bool,
    before: bool,
    gated: bool,
    seed: int,
) -> None:
    """Softmax or sigmoid, over the chosen or not, a bias of the choice, groups, shared experts with or
    without gates and of another width, weights before or after the expert, gated or not.
    """
    router = {"routed": routed, "chosen": min(chosen, routed - 1), "shared": shared, "kind": kind}
    router |= {"normalised": normalised, "factor": 1.7, "choice_bias": 0.3 * normal(routed, seed=seed)}
    if groups and routed % 2 == 0 and routed // 2 >= router["chosen"]:
        router |= {"groups": 2, "kept_groups": 1, "best_in_group": 1 + seed % 2}
    router |= {"gates": shared if gated_shared else 0, "choice_by_score": seed % 3 == 0}
    core = Gated(nn.SiLU()) if gated else Elementwise(nn.GELU())
    section = experts_section(router, [(core, 2)] * routed + [(core, 3)] * shared, before, seed)
    f = activations(section, 2, 3, seed=seed + 4)
    check(section, f)
    check_signed(section, f)
    with torch.no_grad():
        assert relative_error(section(f[:, :1]), section(f)[:, :1]) <= 1e-12


def test_the_output_is_the_sum_written_out_token_by_token() -> None:
    section = experts_section({"routed": 4, "chosen": 2, "normalised": False}, [(Gated(nn.SiLU()), 2)] * 4)
    f = activations(section, 1, 5)
    core: Any = section.core
    u = section.read_outs(f)[0]
    for x, found in zip(u, core(u[None], slice(0, 5))[0], strict=True):
        p = (core.router.weight @ x).softmax(0)
        expected = torch.zeros(3).double()
        for e in p.argsort(descending=True)[:2].tolist():
            expert = core.experts[e]
            g, w = (expert.read @ x).chunk(2)
            expected += p[e] * (expert.write @ (nn.functional.silu(g) * w) + expert.bias)
        assert relative_error(found, expected) <= 1e-13


def test_tokens_whose_choice_changes_on_the_way_are_counted() -> None:
    """A bias of the choice that wins near 0 for some tokens, and scores that keep their order."""
    router, nodes = {"routed": 3, "chosen": 1, "kind": "sigmoid"}, rule("quadrature", 8)
    for bias in ([9.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]):
        bias = torch.tensor(bias, dtype=torch.float64)
        section: Any = experts_section(router | {"choice_bias": bias}, [(Elementwise(nn.ReLU()), 2)] * 3)
        u = section.read_outs(activations(section, 1, 6))
        scores = u[0] @ section.core.router.weight.T
        choices = torch.stack([(a * scores).sigmoid().add(bias).argmax(1) for a in (*nodes.nodes, 1.0)])
        count = int((choices != choices[-1]).any(0).sum())
        assert (count > 0) == (bias[0] == 0.1)
        assert section.core.changed_choices(u, slice(0, 6), nodes).sum() == count
        assert section.core.changed_choices(u, slice(0, 6), rule("gradient")).sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_another_dtype(dtype: torch.dtype) -> None:
    section = experts_section({"routed": 3, "chosen": 2}, [(Gated(nn.SiLU()), 2)] * 3)
    core, u = section.core.to(dtype), section.read_outs(activations(section, 2, 3)).to(dtype)
    assert {tensor.dtype for tensor in core.tensors()} == {dtype}
    assert relative_error(core(u, slice(0, 3)).double(), section.core(u.double(), slice(0, 3))) <= 1e-5


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("method", ["gradient", "quadrature"])
def test_parts_of_an_edge_by_expert(before: bool, method: Method) -> None:
    """Against gradients of every expert's weighted output by itself; all of them are the attribution."""
    router = {
        "routed": 3,
        "chosen": 2,
        "shared": 1,
        "kind": "sigmoid",
        "choice_bias": 0.2 * normal(3, seed=1),
    }
    section = experts_section(router, [(Gated(nn.SiLU()), 2)] * 4, before)
    core: Any = section.core
    f, integral = activations(section, 1, 5), rule(method, 3)
    u, (i, j) = section.read_outs(f)[0], (1, 2)

    def part(u: torch.Tensor, number: int) -> torch.Tensor:
        """write · w_e (D_e h_e + b_e u₀), token by token."""
        chosen, weights = core.router.visits(u @ core.router.weight.T)
        weight = (weights * (chosen == number)).sum(1, keepdim=True)
        expert, visited = core.experts[number], (chosen == number).any(1)
        r = u @ expert.read.T
        if before:
            return visited * (expert.output(u, expert.hidden(weight * r)) @ section.write[i])
        return (weight * expert.output(u, expert.hidden(r))) @ section.write[i]

    found = core.attributions_by_expert(u, f[0, :, j], section.read[:, j], section.write[i], integral)
    for number in range(4):
        expected = torch.zeros(5).double()
        for node, weight in zip(integral.nodes, integral.weights, strict=True):
            at = (node * u).requires_grad_()
            gradient = torch.autograd.grad(part(at, number).sum(), at)[0]
            expected += weight * (gradient @ section.read[:, j]) * f[0, :, j]
        assert relative_error(found[number], expected) <= 1e-10
    whole = core.attributions(u[None], f, section.read, slice(0, 5), integral)
    assert relative_error(found.sum(0), section.write[i] @ whole[..., j]) <= 1e-10

"""The difference of two models against full per-sample Jacobians of every section, and what it must tell."""

import copy
import gc
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import CASES, normal
from interbasis.analysis.differences.measured_section import DenseTraces, MeasuredSection
from interbasis.analysis.differences.passes import DifferencePass
from interbasis.analysis.differences.store import load_difference
from interbasis.base.errors import InterbasisError
from interbasis.models import modadd, residual
from interbasis.network.cores import Linear
from interbasis.network.network import Network, Section
from reference import jacobians, relative_error
from stencil_cases import small_residual
from tiny_models import random_model, tokens


def inverse_root(x: Tensor) -> Tensor:  # [tokens, w] -> [r, w]
    """T with TᵀT the inverse covariance of the rows, to which 1 % of the mean variance is added."""
    covariance = torch.cov(x.T, correction=0)
    values, vectors = torch.linalg.eigh(
        covariance + 0.01 * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=x.dtype)
    )
    return vectors.T / values.sqrt()[:, None]


def expected_shares(first: Network, second: Network, inputs: Tensor) -> dict[str, tuple[float, float]]:
    """Both shares of every section, from values and full Jacobians of both sections."""
    shares = {}
    fs = first.activations(inputs)
    for k, (F, G) in enumerate(zip(first.sections, second.sections, strict=True)):
        start, f = F.target.first_coordinate, fs[k]
        T = inverse_root(fs[k + 1][..., start:].flatten(0, 1))

        def computed(f: Tensor, F: Section = F) -> Tensor:
            return F(f) if isinstance(F.core, Linear) else F(f) - f[:, F.outputs(f)] @ F.skip.T

        def rows(x: Tensor, T: Tensor = T, start: int = start) -> Tensor:
            return x[..., start:].flatten(0, 1) @ T.T

        own = rows(computed(f))
        D = rows(F(f) - G(f))
        J, own_J = (
            torch.einsum("ro,nsotj->nsrtj", T, J[:, :, start:, :, F.source.first_coordinate :])
            for J in (jacobians(F, f) - jacobians(G, f), jacobians(computed, f))
        )
        shares[first.layers[k]] = (
            (D.square().sum() / (own - own.mean(0)).square().sum()).item(),
            (J.square().sum() / own_J.square().sum()).item(),
        )
    return shares


def mlp_pair() -> tuple[Network, Network, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)
    ).double()  # fmt: skip
    other = copy.deepcopy(module)
    for k, parameter in enumerate(other.parameters()):
        parameter.data += 0.1 * normal(*parameter.shape, seed=k)
    return interbasis.from_torch(module), interbasis.from_torch(other), normal(60, 5, seed=9)


def language_pair(name: str, change: float = 0.05) -> tuple[Network, Network, Tensor]:
    model = random_model(name).double()
    other = copy.deepcopy(model)
    for k, parameter in enumerate(other.parameters()):
        parameter.data *= 1 + change * normal(*parameter.shape, seed=k)
    return interbasis.from_hf(model, 0), interbasis.from_hf(other, 0), tokens(6, 6)


PAIRS: dict[str, Callable[[], tuple[Network, Network, Tensor]]] = {
    "mlp": mlp_pair,
    "gpt2": lambda: language_pair("gpt2"),
    "llama": lambda: language_pair("llama"),
    "gpt2, small change": lambda: language_pair("gpt2", 1e-4),
}


@pytest.mark.parametrize("name", PAIRS)
def test_shares_are_those_of_the_definition(name: str) -> None:
    first, second, inputs = PAIRS[name]()
    record = interbasis.diff(first, second, inputs, progress=False).record
    for layer, (outputs, jacobian) in expected_shares(first, second, inputs).items():
        section = record.sections[layer]
        if math.isnan(outputs) or outputs == 0:
            assert not section.changed
            continue
        assert section.outputs.value == pytest.approx(outputs, rel=1e-8)
        assert section.jacobian.value == pytest.approx(jacobian, rel=1e-8)
        assert 0 < section.outputs.error < section.outputs.value
        assert 0 <= section.jacobian.error < section.jacobian.value


def test_convolutions() -> None:
    first, module, images = small_residual(5, 6)
    other = copy.deepcopy(module)
    for k, parameter in enumerate(other.parameters()):
        parameter.data *= 1 + 0.1 * normal(*parameter.shape, seed=k)
    second = residual.network(other)
    record = interbasis.diff(first, second, images, progress=False).record
    fs = first.activations(images)
    changed = 0
    for k, (F, G) in enumerate(zip(first.sections, second.sections, strict=True)):
        section = record.sections[first.layers[k]]
        if not section.changed:
            continue
        changed += 1
        carried = replace(F, skip=torch.zeros_like(F.skip))
        computed = F if isinstance(F.core, Linear) else carried
        T = inverse_root(fs[k + 1][..., F.target.first_coordinate :].flatten(0, 1))
        T = torch.nn.functional.pad(T, (F.target.first_coordinate, 0))
        J, own_J = (
            torch.einsum("ro,nsotj->nsrtj", T, J[..., 1:])
            for J in (jacobians(F, fs[k]) - jacobians(G, fs[k]), jacobians(computed, fs[k]))
        )
        assert section.jacobian.value == pytest.approx(
            (J.square().sum() / own_J.square().sum()).item(), rel=1e-8
        )
    assert changed > 2


def test_the_last_position_alone() -> None:
    case = CASES["modadd"]()
    weights = {name: w * (1 + 0.1 * normal(*w.shape, seed=3)) for name, w in (case.weights or {}).items()}
    second = modadd.from_weights(weights)
    record = interbasis.diff(case.network, second, case.inputs, progress=False).record
    for layer, (outputs, jacobian) in expected_shares(case.network, second, case.inputs).items():
        assert record.sections[layer].outputs.value == pytest.approx(outputs, rel=1e-8)
        assert record.sections[layer].jacobian.value == pytest.approx(jacobian, rel=1e-8)
    for layer in case.network.layers[1:-1]:  # the last position alone is left there
        for direction in record.sections[layer].input_directions:
            assert {example.position for example in direction.examples} == {case.inputs.shape[1] - 1}
    heads = record.sections[case.network.layers[0]].heads
    assert sorted(head.head for head in heads) == [0, 1, 2]
    assert [head.total for head in heads] == sorted((head.total for head in heads), reverse=True)


@pytest.mark.parametrize("name", PAIRS)
def test_a_model_against_itself_is_exactly_0(name: str) -> None:
    first, _, inputs = PAIRS[name]()
    record = interbasis.diff(first, first, inputs, progress=False).record
    assert record.leading is None
    for section in record.sections.values():
        assert not section.changed
        assert (section.outputs.value, section.jacobian.value) == (0, 0)
    assert all((d.total, d.arising, d.passed_on) == (0, 0, 0) for d in record.layers.values())


def test_depth_separates_what_arises_from_what_is_passed_on() -> None:
    model = random_model("gpt2").double()
    other = copy.deepcopy(model)
    other.transformer.h[0].mlp.c_fc.weight.data[:, 3] += 0.5 * normal(12, seed=5)
    first, second = interbasis.from_hf(model), interbasis.from_hf(other)
    record = interbasis.diff(first, second, tokens(8, 10), progress=False).record
    assert record.leading == "mlp_in.0"
    changed = [name for name, section in record.sections.items() if section.changed]
    assert changed == ["mlp_in.0"]
    after = first.layers[first.layers.index("mlp_in.0") + 1 :]
    for name, layer in record.layers.items():
        assert (layer.arising > 0) == (name == after[0])
        assert (layer.total > 0) == (name in after)
        assert (layer.passed_on > 0) == (name in after[1:])


def test_along_the_second_model_and_the_metric_of_a_run() -> None:
    first, second, inputs = mlp_pair()
    run = interbasis.build(first, inputs, progress=False)
    result = interbasis.diff(first, second, inputs, run=run, along="second", progress=False)
    assert result.record.metric == "lib"
    f = second.activations(inputs)[1]
    F, G, C = first.sections[1], second.sections[1], run.graph.layers[2].transform[1:]
    D = ((F(f) - G(f)) @ C.T).flatten(0, 1)
    computed = ((F(f) - f @ F.skip.T) @ C.T).flatten(0, 1)
    wanted = D.square().sum() / (computed - computed.mean(0)).square().sum()
    assert result.record.sections[first.layers[1]].outputs.value == pytest.approx(wanted.item(), rel=1e-8)
    direction = result.record.sections[first.layers[1]].output_directions[0]
    assert sum(direction.features.values()) <= 1 + 1e-9
    with pytest.raises(InterbasisError, match="of the first model"):
        interbasis.diff(second, first, inputs, run=run, progress=False)


def test_result_is_stored_and_read_again(tmp_path: Path) -> None:
    first, second, inputs = mlp_pair()
    result = interbasis.diff(first, second, inputs, folder=tmp_path / "diff", progress=False)
    again = load_difference(tmp_path / "diff")
    assert again.record == result.record
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in result.tensors.items())
    assert sorted(path.name for path in (tmp_path / "diff").iterdir()) == ["diff.json", "diff.safetensors"]
    (tmp_path / "diff" / "diff.safetensors").write_bytes(b"damaged")
    with pytest.raises(InterbasisError, match="does not belong to"):
        load_difference(tmp_path / "diff")


def test_interrupted_work_resumes_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    first, second, inputs = language_pair("gpt2")
    whole = interbasis.diff(first, second, inputs, folder=tmp_path / "whole", progress=False)

    def stop(phase: str, done: int, total: int) -> None:
        if phase == "differences":
            raise KeyboardInterrupt

    folder = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        interbasis.diff(first, second, inputs, folder=folder, progress=stop)
    assert (folder / ".resume" / "diff").is_dir()
    phases = []
    again = interbasis.diff(
        first, second, inputs, folder=folder, progress=lambda phase, done, total: phases.append(phase)
    )
    assert "examples" in phases
    assert "statistics" not in phases  # they were stored
    assert again.record == whole.record
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in whole.tensors.items())


def test_memory_limit_changes_nothing_but_last_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, inputs = language_pair("gpt2")
    whole = interbasis.diff(first, second, inputs, progress=False).record
    from interbasis.analysis.differences import measure

    sections = [MeasuredSection(*pair, None) for pair in zip(first.sections, second.sections, strict=True)]
    assert len(measure.section_windows(sections, 1)) == len(sections)
    held = []
    update = DifferencePass.update

    def counting(self: DifferencePass, state: Any, chunk: Any) -> None:
        update(self, state, chunk)
        held.append(sum(type(thing) is DenseTraces for thing in gc.get_objects()))

    monkeypatch.setattr(DifferencePass, "update", counting)
    limited = interbasis.diff(first, second, inputs, memory=80_000, progress=False).record
    assert max(held) == 1  # matrices of one section at a time
    for name, section in whole.sections.items():
        assert limited.sections[name].jacobian.value == pytest.approx(section.jacobian.value, rel=1e-9)


def test_refusals_name_the_difference() -> None:
    first, _, inputs = mlp_pair()
    other = interbasis.from_torch(nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)).double())
    with pytest.raises(InterbasisError, match="node layers, received 4 and 3"):
        interbasis.diff(first, other, inputs)
    torch.manual_seed(0)
    wider = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    with pytest.raises(InterbasisError, match="received 8 and 9"):
        interbasis.diff(first, interbasis.from_torch(wider), inputs)
    with pytest.raises(InterbasisError, match="of one family"):
        interbasis.diff(language_pair("gpt2")[0], language_pair("llama")[0], tokens())
    with pytest.raises(InterbasisError, match="expected an interbasis Network"):
        interbasis.diff(first, nn.Linear(2, 2), inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mlp", "gpt2", "llama"])
def test_reading_directions_are_those_of_changed_weights_that_read(name: str) -> None:
    """E[KᵀWK] with K = B_F N_F (A_F − A_G), N_F by automatic differentiation."""
    first, second, inputs = PAIRS[name]()
    result = interbasis.diff(first, second, inputs, directions=3, queries="all", progress=False)
    fs, seen = first.activations(inputs), 0
    for k, (F, G) in enumerate(zip(first.sections, second.sections, strict=True)):
        if f"{first.layers[k]}.reading" not in result.tensors:
            continue
        seen += 1
        start, f = F.source.first_coordinate, fs[k]
        T = inverse_root(fs[k + 1][..., F.target.first_coordinate :].flatten(0, 1))
        T = nn.functional.pad(T, (F.target.first_coordinate, 0)) @ F.write
        everywhere = slice(0, f.shape[1])
        N = jacobians(partial(F.core, outputs=everywhere), F.read_outs(f))
        K = torch.einsum("ro,nsotu,uj->nsrtj", T, N, (F.read - G.read)[:, start:])
        gram = torch.einsum("nsrtj,nsrtk->jk", K, K) / f.shape[:2].numel()
        rows = result.tensors[f"{first.layers[k]}.reading"][:, start:]
        values = result.tensors[f"{first.layers[k]}.reading_values"]
        assert relative_error(rows @ gram, values[:, None] * rows) <= 1e-8
        assert values[0] == pytest.approx(torch.linalg.eigvalsh(gram)[-1].item(), rel=1e-8)
    assert seen == 2

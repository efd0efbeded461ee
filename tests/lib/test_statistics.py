"""One pass, mergeable, and numerically sound."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import CASES, Case, mlp, modular_addition, normal
from interbasis.data import Batches
from interbasis.lib.covariance import Covariance
from interbasis.lib.statistics import Statistics, collect
from reference import relative_error


def covariance_of(x: torch.Tensor, sizes: list[int]) -> Covariance:
    parts = [Covariance.from_rows(part) for part in x.split(sizes)]
    total = parts[0]
    for part in parts[1:]:
        total.merge(part)
    return total


@pytest.mark.parametrize("sizes", [[600], [1, 599], [100] * 6, [250, 50, 300], [1] * 600])
def test_a_mean_a_million_times_the_spread_costs_no_digits(sizes: list[int]) -> None:
    """Integers and powers of two make the data, their mean and their scatter exact in float64."""
    small = torch.randint(-8, 9, (600, 5), generator=torch.Generator().manual_seed(0)).double()
    x = small + 2.0**23
    expected = (small - small.mean(0)).T @ (small - small.mean(0)) / 600
    found = covariance_of(x, sizes)
    assert relative_error(found.gram, expected) <= 1e-10
    assert relative_error(found.mean, small.mean(0) + 2.0**23) <= 1e-14
    assert relative_error(found.variances, expected.diagonal()) <= 1e-10


def test_the_diagonal_alone_agrees_with_the_full_scatter() -> None:
    x = normal(50, 4) + 3
    whole, first, second = (
        Covariance.from_rows(x),
        Covariance.from_rows(x[:20], full=False),
        Covariance.from_rows(x[20:], full=False),
    )
    first.merge(second)
    assert relative_error(first.variances, whole.variances) <= 1e-12


@pytest.mark.parametrize("case", [mlp(nn.GELU()), modular_addition(2)], ids=["mlp", "modadd"])
def test_statistics_of_parts_merge_into_those_of_the_whole(case: Case) -> None:
    whole = collect(case.network, Batches(case.inputs))
    first, second = (collect(case.network, Batches(part)) for part in (case.inputs[:3], case.inputs[3:]))
    merged = Statistics()
    for part in (Statistics(), first, second, Statistics()):
        merged.merge(part)
    assert first.layers[0].count == first.samples * whole.layers[0].count // whole.samples  # left alone
    assert merged.samples == whole.samples
    for mine, theirs in zip(merged.layers, whole.layers, strict=True):
        assert mine.count == theirs.count
        assert relative_error(mine.gram, theirs.gram) <= 1e-12
    for mine, theirs in zip(merged.cores, whole.cores, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert relative_error(mine[name], theirs[name]) <= 1e-12


def test_samples_are_parted_before_a_layer_that_is_too_wide_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All samples pass the narrow layers together, and the wide ones in parts, down to one sample each."""
    from interbasis.compute import executor
    from interbasis.lib import statistics

    case = mlp(nn.GELU())
    whole = collect(case.network, Batches(case.inputs))
    monkeypatch.setattr(executor, "layer_chunk_size", lambda network, batches, limit: len(case.inputs))
    passes = []
    add = statistics.Statistics.add_layer

    def counting(self: statistics.Statistics, index: int, layer: Any) -> None:
        passes.append(index)
        add(self, index, layer)

    monkeypatch.setattr(statistics.Statistics, "add_layer", counting)
    for size in (400, 1):
        monkeypatch.setattr(executor, "CHUNK_BYTES", size)
        parted = collect(case.network, Batches(case.inputs))
        assert parted.samples == whole.samples
        assert parted.pairs == whole.pairs
        for mine, theirs in zip(parted.layers, whole.layers, strict=True):
            assert mine.count == theirs.count
            assert relative_error(mine.gram, theirs.gram) <= 1e-12
        for mine, theirs in zip(parted.cores, whole.cores, strict=True):
            for name in mine:
                assert relative_error(mine[name], theirs[name]) <= 1e-12
    assert passes.count(0) > len(case.inputs)


def test_float32_networks_are_summed_in_float64() -> None:
    case = mlp(nn.GELU(), samples=3000)
    exact = collect(case.network, Batches(case.inputs))
    single = collect(case.network.to(torch.float32), Batches(case.inputs))
    for mine, theirs in zip(single.layers, exact.layers, strict=True):
        assert mine.scatter.dtype == mine.mean.dtype == torch.float64
        assert relative_error(mine.gram, theirs.gram) <= 1e-5


def test_activations_that_are_not_finite_are_traced_to_layer_and_samples() -> None:
    case = mlp(nn.ReLU())
    inputs = case.inputs.clone()
    inputs[17] = torch.inf
    with pytest.raises(interbasis.InterbasisError, match=r"'linear\.0' are not finite.*17 of the data"):
        interbasis.build(case.network, inputs)
    with pytest.raises(interbasis.InterbasisError, match=r"'linear\.0' are not finite.*17 of the edge_data"):
        interbasis.build(case.network, case.inputs, edge_data=inputs)
    with pytest.raises(interbasis.InterbasisError, match=r"'linear\.0' reach .* too large"):
        interbasis.build(case.network, 1e200 * case.inputs)
    with pytest.raises(interbasis.InterbasisError, match="no positions"):
        interbasis.build(case.network, case.inputs[:, None][:, :0])


def test_a_mean_a_million_times_the_spread_in_a_whole_build(small_chunks: None) -> None:
    """The first layer of a network that sees x + 2²³ and takes it away again is that of one that sees x."""
    x = torch.randint(-8, 9, (300, 4), generator=torch.Generator().manual_seed(1)).double() / 8
    torch.manual_seed(0)
    near = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    far = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    far.load_state_dict(near.state_dict())
    shift = 2.0**20
    far[0].bias.data -= far[0].weight.data.sum(1) * shift
    expected = interbasis.build(interbasis.from_torch(near), x).graph.layers[0]
    found = interbasis.build(interbasis.from_torch(far), x + shift).graph.layers[0]
    assert found.features == expected.features
    # the far network itself rounds at 2²⁰ · ε relative to the spread, about 1e-9
    assert relative_error(found.variances, expected.variances) <= 1e-10
    assert relative_error(found.transform[:, 1:], expected.transform[:, 1:]) <= 1e-7


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "llama", "modadd-2-blocks"])
def test_columns_that_neighbouring_layers_share_are_multiplied_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A residual stream is a part of three Grams of a block."""
    from interbasis.lib import covariance

    monkeypatch.setattr(covariance, "MAX_ROOT_WIDTH", 0)
    shared = []
    scatter = covariance.Known.scatter

    def counting(known: covariance.Known, centred: Tensor) -> Tensor:
        shared.append(len(known.target))
        return scatter(known, centred)

    monkeypatch.setattr(covariance.Known, "scatter", counting)
    case = CASES[name]()
    network = case.network.double()
    layers = collect(network, Batches(case.inputs)).layers
    for node, layer, f in zip(network.nodes, layers, network.activations(case.inputs), strict=True):
        x = f[..., node.first_coordinate :].flatten(0, 1)
        expected = (x - x.mean(0)).T @ (x - x.mean(0))
        assert relative_error(layer.scatter, expected) <= 1e-12
    if name != "modadd-2-blocks":
        width = network.nodes[0].width - 1
        assert shared.count(width) >= 4  # ln1_out and attn_in, ln2_out and mlp_in

"""What float32 and float64 keep, and what small data keep: the floor drops rounding and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import interbasis
from cases import mlp, normal
from interbasis import build, from_hf
from interbasis.analysis.ablation.search import edges_required
from interbasis.base.records import Basis
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis.numerics.linalg import Floor, SpectrumCut
from reference import relative_error
from tiny_models import random_model, tokens


def widest_error(single: InteractionGraph, double: InteractionGraph) -> float:
    """Of Λ, relative to itself; both must keep as many features in every layer."""
    assert [layer.features for layer in single.layers] == [layer.features for layer in double.layers]
    return max(
        ((mine.eigenvalues - theirs.eigenvalues).abs() / theirs.eigenvalues).max().item()
        for mine, theirs in zip(single.layers[:-1], double.layers[:-1], strict=True)
    )


def test_the_real_tinystories_model_keeps_in_float32_what_it_keeps_in_float64(shared: Path) -> None:
    """Λ spans twelve decades before attention, and float32 still knows the smallest to 1e-4 of itself."""
    folder = shared / "tinystories-gpt-280k"
    stream = np.fromfile(folder / "tokens_train.uint16", dtype=np.uint16)[: 12 * 256]
    inputs = torch.from_numpy(stream.astype(np.int64)).view(12, 256)
    network = from_hf(folder)
    single = build(network, inputs, edge_method=None).graph
    double = build(network, inputs, edge_method=None, dtype="float64").graph
    assert single.config.dtype == "float32"
    assert widest_error(single, double) <= 1e-4
    kept = {layer.name: layer.features for layer in single.layers}
    assert (kept["attn_in.0"], kept["mlp_in.0"], kept["attn_in.1"]) == (127, 127, 127)


def test_a_massive_coordinate_hides_no_other_feature() -> None:
    """As in real models: one coordinate of the first position a thousand times all else; all tokens count.

    By default the first position is left out of the sums (`tests/lib/test_counted_tokens.py`).
    """
    model = random_model("gpt2", torch.float32)
    with torch.no_grad():
        model.transformer.wpe.weight[0, 3] += 1000
    network, inputs = from_hf(model), tokens(60, 16)
    single, double = (
        build(network, inputs, dtype=dtype, norm_limit=0).graph for dtype in ("float32", "float64")
    )
    assert single.layers[0].features == 12  # the constant, and 12 coordinates less the one layer norms ignore
    assert widest_error(single, double) <= 3e-3
    for mine, theirs in zip(single.edges, double.edges, strict=True):
        assert relative_error(mine[1:, 1:], theirs[1:, 1:]) <= 2e-2
    labels = network(inputs).argmax(-1)
    found = edges_required(network, single, (inputs, labels), sections=[11])
    assert all(section.count > 0 for section in found)


def test_rounding_within_attention_makes_no_features() -> None:
    """Keys on a line per head, and values that see 4 coordinates: queries matter in 3 directions alone."""
    model = random_model("gpt2", torch.float32)
    with torch.no_grad():
        for block in model.transformer.h:
            weight = block.attn.c_attn.weight  # [12, 3 · 12]: queries, keys, values
            line = torch.tensor([1.0, 2.0, -3.0, 1.5])
            directions = (4 * weight[:, 12:15]).round() / 4  # products of few bits are exact in float32
            weight[:, 12:24] = (directions[:, :, None] * line).flatten(1)
            weight[4:, 12:] = 0
    network, inputs = from_hf(model), tokens(60, 16)
    single = build(network, inputs, edge_method=None).graph
    double = build(network, inputs, edge_method=None, dtype="float64").graph
    assert widest_error(single, double) <= 1e-3
    assert single.layers[2].name == "attn_in.0"
    assert single.layers[2].jacobian_cut.dropped >= 3


@pytest.mark.parametrize("kind", ["lib", "gib", "pca", "random"])
@pytest.mark.parametrize("scales", [(1e-4, 1.0), (1.0, 1e-8), (1e4, 1.0), (1.0, 1e8)])
def test_the_floor_goes_with_the_scale_of_weights_and_data(kind: Basis, scales: tuple[float, float]) -> None:
    """An odd network of scaled weights or inputs keeps as many features as the plain one."""
    of_weights, of_inputs = scales

    def network(scale: float) -> Network:
        torch.manual_seed(0)
        module: Any = nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 4))
        with torch.no_grad():
            for part in module[::2]:
                part.weight.mul_(scale)
                part.bias.zero_()
        return interbasis.from_torch(module.double())

    plain = build(network(1.0), normal(200, 8), basis=kind, edge_method=None).graph
    scaled = build(network(of_weights), of_inputs * normal(200, 8), basis=kind, edge_method=None).graph
    assert [layer.features for layer in scaled.layers] == [layer.features for layer in plain.layers]
    assert plain.layers[0].features == 9


def test_constant_activations_are_no_features() -> None:
    """What rounding makes of a constant is small against the constant, not against itself."""
    case = mlp(nn.Tanh(), widths=(6, 5, 3))
    inputs = torch.full((50, 6), 1 / 3, dtype=torch.float64) + 1e-17 * normal(50, 6)
    inputs[:, 0] += 1e-16 * normal(50)
    for kind in ("lib", "pca"):
        assert build(case.network, inputs, basis=kind, edge_method=None).graph.layers[0].features == 1


def test_floors_of_single_values() -> None:
    values = torch.tensor([4.0, 1e-3, 1e-9], dtype=torch.float64)
    magnitudes = torch.tensor([4.0, 1e5, 1e-9], dtype=torch.float64)
    floors = Floor(1e-15, None, 1e-6).levels(values, 1e-14, magnitudes)
    assert floors.tolist() == pytest.approx([4e-6, 1e-1, 4e-14])
    cut = SpectrumCut.from_floors(
        values, floors
    )  # the middle one is lost in its own rounding, the last one is not
    assert (cut.kept, cut.dropped, cut.largest_dropped, cut.smallest_kept) == (2, 1, 1e-3, 1e-9)
    assert Floor(1e-15, 1e-4).levels(values, 1e-14, magnitudes).tolist() == pytest.approx([4e-4] * 3)
    assert Floor(1e-15, 0).levels(1e-12 * values, 1e-14, magnitudes).tolist() == [1e-15] * 3  # the paper's
    assert Floor(1e-15).levels(1e-12 * values, 1e-14, magnitudes).tolist() == pytest.approx([4e-26] * 3)


def test_the_noise_floor_drops_what_rounding_made() -> None:
    case = mlp(nn.Tanh(), widths=(4, 5, 3))
    wide = torch.cat([case.inputs, case.inputs @ normal(4, 6)], dim=1)
    torch.manual_seed(3)
    network = interbasis.from_torch(nn.Sequential(nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 3)).double())
    default = build(network, wide, basis="pca", edge_method=None).graph.layers[0]
    assert default.features == 5
    assert default.variance_cut.dropped == 6
    assert default.variance_cut.smallest_kept > 1e6 * default.variance_cut.floor
    everything = build(
        network, wide, basis="pca", threshold=0, relative_threshold=0, edge_method=None
    ).graph.layers[0]
    assert everything.features > 5


@pytest.mark.parametrize("kind", ["lib", "pca", "gib"])
@pytest.mark.parametrize("samples", [20, 400])
def test_float32_keeps_no_noise_as_features(kind: Basis, samples: int) -> None:
    """Fewer samples than coordinates, and inputs of low rank: rounding must not become features."""
    torch.manual_seed(0)
    network = interbasis.from_torch(nn.Sequential(nn.Linear(100, 30), nn.GELU(), nn.Linear(30, 10)))
    inputs = torch.randn(samples, 100, dtype=torch.float64)
    if samples > 100:
        inputs = inputs[:, :8] @ torch.randn(8, 100, dtype=torch.float64)
    double = build(network, inputs, basis=kind).graph
    single = build(network, inputs.float(), basis=kind, dtype="float32").graph
    assert [layer.features for layer in single.layers] == [layer.features for layer in double.layers]
    for mine, theirs in zip(single.edges, double.edges, strict=True):
        assert relative_error(mine[1:, 1:], theirs[1:, 1:]) <= 1e-3

"""The authors' stored graphs of their own modular-addition models, seeds 0 and 1.

They hold Ê² (mean of squares), row vectors times C, the bias coordinate last, at float32 precision. The
constant feature is left out: its scale is arbitrary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from interbasis import InteractionGraph, LayerBasis, Network, modadd
from interbasis.lib.edges import edges as measure_edges

NAMES = ["ln1.0", "ln2.0", "unembed", "output"]
SECTIONS = ["attention", "MLP", "unembedding"]
SLOW_RUNS = [("lib", 1), ("pca", 0)]
RUNS = [("lib", 0), ("pca", 1), *(pytest.param(run, marks=pytest.mark.slow) for run in SLOW_RUNS)]


@dataclass(frozen=True)
class Stored:
    """One of the authors' runs."""

    tensors: dict[str, Tensor]
    network: Network
    data: Tensor

    def squares(self, k: int) -> Tensor:
        """Ê² of section k without the constant feature."""
        return without_constant(self.tensors[f"edges.{NAMES[k]}->{NAMES[k + 1]}"], k)

    def layers(self) -> list[LayerBasis]:
        """Their bases in our convention: column vectors, constant first."""
        there = [constant_first(self.tensors[f"C.{name}"].T) for name in NAMES[:-1]]
        back = [constant_first(self.tensors[f"C_pinv.{name}"]).T for name in NAMES[:-1]]
        layers = [LayerBasis(*matrices) for matrices in zip(NAMES, there, back, strict=False)]
        identity = torch.eye(114, dtype=torch.float64)
        return [*layers, LayerBasis("output", identity, identity, constant=False)]


def constant_first(matrix: Tensor) -> Tensor:
    return matrix.roll(1, dims=-1)


def without_constant(edges: Tensor, k: int) -> Tensor:
    return edges[1:, 1:] if k < 2 else edges[:, 1:]


@pytest.fixture(params=RUNS, ids=lambda run: f"{run[0]}-seed{run[1]}")
def run(
    request: pytest.FixtureRequest, shared: Path, paper_graph: Callable[..., "InteractionGraph"]
) -> tuple[str, Stored, InteractionGraph]:
    kind, seed = request.param
    return kind, stored(shared, kind, seed), paper_graph(kind, seed, relative_threshold=0)


def stored(shared: Path, kind: str, seed: int) -> Stored:
    folder = shared / "modadd"
    network = modadd.load(folder / f"seed{seed}.safetensors")
    train, _ = modadd.split()
    return Stored(load_file(folder / f"paper_{kind}_seed{seed}.safetensors"), network, train.inputs)


def test_edges_in_their_bases(run: tuple[str, Stored, InteractionGraph]) -> None:
    _, theirs, _ = run
    found = measure_edges(theirs.network, theirs.layers(), theirs.data)
    for k, edges in enumerate(found):
        expected, squares = theirs.squares(k), without_constant(edges.square(), k)
        matters = expected >= 1e-8 * expected.max()
        assert ((squares - expected).abs() / expected)[matters].max() <= 1e-6, SECTIONS[k]


def test_edges_in_our_bases(run: tuple[str, Stored, InteractionGraph]) -> None:
    kind, theirs, graph = run
    for k, edges in enumerate(graph.edges):
        expected, squares = theirs.squares(k)[:30, :30], without_constant(edges.square(), k)[:30, :30]
        matters = expected >= 1e-4 * expected.max()
        tolerance = 2e-2 if (kind, k) == ("lib", 0) else 1e-6
        assert ((squares - expected).abs() / expected)[matters].max() <= tolerance, SECTIONS[k]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_spectra(shared: Path, seed: int, paper_graph: Callable[..., "InteractionGraph"]) -> None:
    """Λ, which is stored for LIB only."""
    theirs, graph = stored(shared, "lib", seed), paper_graph("lib", seed, relative_threshold=0)
    rules: list[tuple[Callable[[Tensor], Tensor], float]] = [
        (lambda s: s >= 1e-4 * s[0], 1e-3),
        (lambda s: s >= 1e-8 * s[0], 1e-6),
        (lambda s: s >= s[49], 1e-7),
    ]
    for k, (leading, tolerance) in enumerate(rules):
        expected = theirs.tensors[f"Lambda.{NAMES[k]}"][1:]
        count = int(leading(expected).sum())
        found = graph.layers[k].eigenvalues[1 : 1 + count]
        assert ((found - expected[:count]).abs() / expected[:count]).max() <= tolerance, NAMES[k]


@pytest.mark.parametrize(("seed", "accuracy"), [(0, 0.99955), (1, 0.99888)])
def test_the_models_solve_their_task(shared: Path, seed: int, accuracy: float) -> None:
    network = modadd.load(shared / "modadd" / f"seed{seed}.safetensors").double()
    _, test = modadd.split()
    found = (network(test.inputs).argmax(-1) == test.labels).double().mean().item()
    assert abs(found - accuracy) < 1e-5

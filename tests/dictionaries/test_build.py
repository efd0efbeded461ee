"""Graphs between dictionaries: sums over data against single tokens by autograd, storage, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from interbasis.base.errors import InterbasisError
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.dictionaries.chain import Chain
from interbasis.dictionaries.edge_sums import DictionaryEdgeSettings, DictionaryEdgesPass
from interbasis.dictionaries.graph import load_graph
from interbasis.dictionaries.layers import DictionaryLayer
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.store import DICTIONARY_GRAPH as FILE
from interbasis.graph.store import graph_digest
from interbasis.network.network import Network
from interbasis.numerics.integration import rule
from placed_dictionaries import by_autograd, dictionary, placed
from tiny_models import random_model

TOKENS = torch.randint(0, 23, (5, 7), generator=torch.Generator().manual_seed(6))
GRADIENT = rule("gradient")


def network_of(name: str) -> Network:
    return interbasis.from_hf(random_model(name)).to(torch.float64)


def expected_sums(
    network: Network,
    a: DictionaryLayer | LayerBasis,
    b: DictionaryLayer | LayerBasis,
    positions: Tensor | None = None,
) -> tuple[Any, Any, Any]:
    """Σ A², Σ A, n over tokens, [K_out, K_in + 3], sample by sample and row by row."""
    squares, signed, together = torch.zeros(3, b.features, a.features + 3, dtype=torch.float64)
    chain = Chain((*network.sections[a.source_index : b.index], *b.through), GRADIENT)
    for sample in TOKENS:
        before = network.activations_at(a.index, sample[None])
        activations = [f[0] for f in chain.activations(network.activations_at(a.source_index, sample[None]))]
        z, out = a.encode(before), b.encode(network.activations_at(b.index, sample[None]))
        vectors = a.split(z, before, activations[0][None])[0]
        jacobian = by_autograd(chain.sections, activations, GRADIENT)
        for s in range(len(sample)):
            for place, i in enumerate(out.indices[0, s].tolist()):
                if not out.real[0, s, place]:
                    continue
                row = b.rows(torch.tensor(i)) @ jacobian[s].flatten(1)
                A = vectors.flatten(0, 0).mul(row.view(len(sample), 1, -1)).sum(-1)  # [T, k + 3]
                total = torch.zeros(a.features + 3, dtype=torch.float64)
                visible = range(s + 1) if chain.mixes_positions else [s]
                active = torch.zeros(a.features + 3, dtype=torch.bool)
                active[a.features :] = True
                for t in range(len(sample)):
                    for m, j in enumerate(z.indices[0, t].tolist()):
                        total[j] += A[t, m]
                        if t in visible and z.real[0, t, m]:
                            active[j] = True
                    total[a.features :] += A[t, -3:]
                squares[i] += total.square()
                signed[i] += total
                together[i] += active
    return squares, signed, together


@pytest.mark.parametrize(
    ("model", "source", "target"),
    [
        ("gpt2", "mlp_in.0", "ln1.1"),
        ("gpt2", "ln1.0", "ln1.1"),
        ("gpt2", "ln2.0", "mlp_in.0"),
        ("llama", "ln1.0", "ln1.1"),
        ("llama", "attn_out.0", "mlp_out.0"),
        ("gpt2", "ln1.0", "ln_final"),
        ("gpt2", "transcoder mlp_in.0", "ln1.1"),
    ],
)
def test_sums_over_data_are_those_of_single_tokens(model: str, source: str, target: str) -> None:
    network = network_of(model)
    a, b = placed(network, source, "topk", 1), placed(network, target, "jumprelu", 2, features=30)
    sums = Executor(network).run(
        DictionaryEdgesPass(network, [a, b], DictionaryEdgeSettings(GRADIENT)), Batches(TOKENS)
    )
    for name, expected in zip(("squares", "signed", "together"), expected_sums(network, a, b), strict=True):
        assert (sums[f"edges.0.{name}"] - expected).abs().max() <= 1e-10 * expected.abs().max()
    assert sums["edges.0.tokens"] == TOKENS.numel()


def test_lib_bases_between_dictionaries_are_those_of_a_build(tmp_path: Path) -> None:
    """Features are C f at every token, edges those of single tokens; the graph holds the bases."""
    network = network_of("gpt2")
    places: Any = {
        "ln1.0": dictionary(12, 20, "topk", 1),
        "attn_in.0": "lib",
        "ln1.1": dictionary(12, 20, "relu", 2),
    }
    run: Any = interbasis.build(network, TOKENS, dictionaries=places, norm_limit=0, progress=False)
    first, middle, last = run.layers
    basis = interbasis.build(network, TOKENS, norm_limit=0, edge_method=None, progress=False).layers[
        middle.index
    ]
    assert basis.name == middle.name == "attn_in.0"
    f = network.activations_at(middle.index, TOKENS)
    active = middle.encode(f)
    z = torch.zeros(*f.shape[:2], middle.features, dtype=f.dtype).scatter_(2, active.indices, active.values)
    expected = f @ basis.transform.T
    assert (z - expected[..., 1:]).abs().max() <= 1e-10 * expected.abs().max()
    assert (middle.split(active, f, f).sum(2) - f).abs().max() <= 1e-12 * f.abs().max()
    for k, (a, b) in enumerate(((first, middle), (middle, last))):
        squares, _, together = (sums[:, :-3] for sums in expected_sums(network, a, b))
        edges = run.graph.edges[k]
        places = edges.target.long(), edges.source.long()
        assert torch.allclose(edges.rms, (squares[places] / TOKENS.numel()).sqrt().float(), rtol=1e-5)
        assert torch.allclose(edges.frequency, (together[places] / TOKENS.numel()).float())
        assert run.graph.header.pairs[k].nonzero == (squares > 0).sum()
    run.save(tmp_path / "run")
    again: Any = interbasis.open_run(tmp_path / "run", network, TOKENS, dictionaries=run.given_dictionaries)
    assert torch.equal(again.layers[1].dictionary.decoder, middle.dictionary.decoder)
    with pytest.raises(InterbasisError, match="no node layer 'mlp_out"):
        interbasis.build(network, TOKENS, dictionaries={"mlp_out.0": "lib", "ln1.1": "lib"}, progress=False)


@pytest.mark.parametrize(
    ("source", "target", "between"),
    [
        ("ln1.0", "ln1.1", ["ln1_out.0", "attn_in.0", "ln2.0", "ln2_out.0", "mlp_in.0"]),
        ("attn_out.0", "mlp_out.0", ["ln2.0", "ln2_out.0", "mlp_in.0"]),
        ("transcoder mlp_in.0", "mlp_in.1", ["ln1.1", "ln1_out.1", "attn_in.1", "ln2.1", "ln2_out.1"]),
    ],
)
def test_layers_between_dictionaries_have_bases_where_that_is_asked_for(
    source: str, target: str, between: list[str], tmp_path: Path
) -> None:
    """They are those that are named one by one, and are stored; other layers are no part of the graph."""
    network = network_of("gpt2")
    given = {
        layer.name: layer.dictionary for layer in (placed(network, p, "topk", 1) for p in (source, target))
    }
    options: Any = {"norm_limit": 0, "progress": False}
    run: Any = interbasis.build(
        network, TOKENS, dictionaries=given, only_dictionaries=False, resume=tmp_path, **options
    )
    assert run.graph.places == [next(iter(given)), *between, target]
    named: Any = {**given, **dict.fromkeys(between, "lib")}
    same: Any = interbasis.build(network, TOKENS, dictionaries=named, **options)
    for name, tensor in run.graph._tensors().items():
        assert torch.equal(tensor, same.graph._tensors()[name])
    run.save(tmp_path)
    again: Any = interbasis.open_run(tmp_path, network, TOKENS, dictionaries=given)
    assert again.graph.header.config.only_dictionaries is False
    assert [layer.name for layer in again.layers] == run.graph.places
    with pytest.raises(InterbasisError, match="no use without dictionaries"):
        interbasis.build(network, TOKENS, only_dictionaries=False, progress=False)


def test_sampled_positions_estimate_the_sums_with_their_error() -> None:
    """Over 60 seeds the mean of Σ A² is the exact one, and the stated error the spread."""
    network = network_of("gpt2")
    a, b = placed(network, "ln1.0", "topk", 1), placed(network, "ln1.1", "topk", 2, features=30)

    def sums(positions: int | None, seed: int) -> dict[str, Tensor]:
        settings = DictionaryEdgeSettings(GRADIENT, positions, seed)
        return Executor(network).run(DictionaryEdgesPass(network, [a, b], settings), Batches(TOKENS))

    exact = sums(None, 0)["edges.0.squares"]
    sampled = [sums(3, seed) for seed in range(60)]
    squares = torch.stack([state["edges.0.squares"] for state in sampled])
    total = squares.sum((1, 2))
    assert abs(total.mean() / exact.sum() - 1) <= 4 * total.std() / total.mean() / 60**0.5
    stated = torch.stack([state["edges.0.variances"] for state in sampled]).mean(0).sum()
    assert 0.8 <= stated / squares.var(0).sum() <= 1.3


def graph_of(network: Network, **options: Any) -> Any:
    width = network.nodes[0].width - 1
    dictionaries = {"ln1.0": dictionary(width, 40, "topk", 1), "ln1.1": dictionary(width, 30, "relu", 2)}
    run = interbasis.build(
        network, TOKENS, dictionaries=dictionaries, norm_limit=0, progress=False, **options
    )
    return run.graph


def test_a_graph_is_stored_and_read_again(tmp_path: Path) -> None:
    network = network_of("gpt2")
    graph = graph_of(network, edge_positions=4)
    digest = graph.save(tmp_path)
    assert graph_digest(tmp_path) == digest
    again = load_graph(tmp_path)
    assert again.header == graph.header
    assert again.edges[0].error is not None
    for before, after in zip(graph._tensors().items(), again._tensors().items(), strict=True):
        assert before[0] == after[0]
        assert torch.equal(before[1], after[1])
    pair = graph.header.pairs[0]
    assert pair.through_attention
    assert 0.999 <= pair.stored_share <= 1
    assert pair.stored == len(graph.edges[0].rms) <= pair.nonzero
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text[: len(text) // 2])
    with pytest.raises(InterbasisError, match="damaged"):
        load_graph(tmp_path)


def test_an_interrupted_build_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, calls = network_of("gpt2"), []
    monkeypatch.setattr("interbasis.compute.executor.FINE_CHUNK_BYTES", 1)
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    whole = graph_of(network)
    update = DictionaryEdgesPass.update

    def interrupted(self: Any, state: Any, chunk: Any) -> None:
        calls.append(chunk.first)
        if len(calls) == 3:
            raise KeyboardInterrupt
        update(self, state, chunk)

    monkeypatch.setattr(DictionaryEdgesPass, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph_of(network, resume=tmp_path)
    again = graph_of(network, resume=tmp_path)
    assert calls == [0, 1, 2, 2, 3, 4]
    for name, tensor in whole._tensors().items():
        assert torch.equal(tensor, again._tensors()[name])


def test_dictionaries_that_do_not_fit_are_refused_in_one_sentence() -> None:
    network = network_of("gpt2")
    fits = dictionary(12, 40, "topk", 1)
    for places, sentence in (
        ({"ln1.0": fits}, "at least two dictionaries"),
        ({"ln1.0": fits, "ln9.1": fits}, "there is no place 'ln9.1' for a dictionary; expected one of ln1.0"),
        (
            {"ln1.0": fits, "ln1.1": dictionary(11, 40, "topk", 1)},
            "reads 12 coordinates at 'ln1.1', received one",
        ),
        ({"ln1.0": fits, "ln1.1": replace(fits, scaling="layer_norm")}, "rescales every token"),
        ({"ln1.0": fits, "mlp_out.0": replace(fits, hook="a", output_hook="b")}, "input of an MLP"),
    ):
        with pytest.raises(InterbasisError, match=sentence):
            interbasis.build(network, TOKENS, dictionaries=places, progress=False)

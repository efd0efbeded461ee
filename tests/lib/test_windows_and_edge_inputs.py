"""Activations that parts of a network read: of a window, and of edges at a few positions."""

import pytest
import torch
from torch import Tensor

import interbasis
from interbasis.compute.executor import Chunk, Executor
from interbasis.data.batches import Batches
from interbasis.data.samples import Samples
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.edge_inputs import edge_inputs, sampled_positions, samples_positions
from interbasis.lib.windows import GivenActivations, window_data
from interbasis.network.network import Network
from interbasis.numerics.random_signs import Sources
from reference import relative_error
from tiny_models import random_model, tokens

TOKENS = tokens(5, 8)


@pytest.fixture(scope="module")
def network() -> Network:
    return interbasis.from_hf(random_model("gpt2")).double()


@pytest.mark.parametrize("lengths", [None, [8, 8, 5, 3, 3]])
def test_a_window_reads_the_activations_before_it(network: Network, lengths: list[int] | None) -> None:
    """Of samples of several lengths, zeros behind each."""
    known = None if lengths is None else torch.tensor(lengths)
    samples = Samples(5, lambda a, b: (TOKENS[a:b], TOKENS[a:b, 0]), "tokens", batch=2, lengths=known)
    batches, executor, first = Batches(samples), Executor(network), 3
    with executor.caching(batches, (first,)) as cache:
        found = window_data(batches, cache, first, executor).between(0, 5)
    for row, sample, length in zip(found, TOKENS, lengths or [8] * 5, strict=True):
        expected = network.activations(sample[None, :length])[first][0]
        assert relative_error(row[:length], expected) <= 1e-12
        assert not row[length:].any()
    assert torch.equal(GivenActivations()(found), found)


def inputs_of(network: Network, sources: Sources | None, counted: CountedTokens = ALL_TOKENS) -> list[Tensor]:
    chunk = Chunk(2, [TOKENS], "data", network)
    return [part.f for part in edge_inputs(chunk, network, sources, counted)]


def test_without_sampled_positions_all_are_read(network: Network) -> None:
    expected = network.activations(TOKENS)
    for sources in (None, Sources(4, 2, seed=1)):
        for f, wanted in zip(inputs_of(network, sources), expected[:-1], strict=True):
            assert relative_error(f, wanted) <= 1e-13


def test_sampled_positions_are_those_of_the_whole_run(network: Network) -> None:
    """After the last attention the network runs at these positions alone, with the same numbers there."""
    sources = Sources(4, 2, seed=1, positions=3)
    at = sampled_positions(sources, 2, 5, 8)
    assert all(samples_positions(section, sources, 8) for section in network.sections)
    lengths = []
    for f, whole in zip(inputs_of(network, sources), network.activations(TOKENS)[:-1], strict=True):
        lengths.append(f.shape[1])
        wanted = whole if f.shape[1] == 8 else whole.gather(1, at[..., None].expand(-1, -1, whole.shape[2]))
        assert relative_error(f, wanted) <= 1e-12
    mixing = max(k for k, section in enumerate(network.sections) if section.core.mixes_positions)
    assert lengths == [8] * (mixing + 1) + [3] * (len(lengths) - mixing - 1)


def test_positions_are_not_sampled_where_there_are_no_more(network: Network) -> None:
    assert not samples_positions(network.sections[0], Sources(4, 2, positions=8), 8)
    assert not samples_positions(network.sections[0], Sources(4, 2), 8)

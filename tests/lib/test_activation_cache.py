"""Activations that are kept on disk between passes: the same graphs, within a budget."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from interbasis import InterbasisError
from interbasis.compute.activation_cache import ActivationCache
from interbasis.network.network import Network, Section
from tiny_models import random_model

SAMPLES, POSITIONS = 6, 7


@pytest.fixture(scope="module")
def network() -> Network:
    return interbasis.from_hf(random_model("gpt2")).to(torch.float64)


@pytest.fixture(scope="module")
def tokens(network: Network) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 23, (SAMPLES, POSITIONS), generator=generator)


def counted(network: Network) -> tuple[Network, list[str]]:
    """The network, and the names of the layers whose sections ran."""
    ran: list[str] = []

    def counting(section: Section) -> Section:
        def call(self: Any, f: Tensor) -> Tensor:
            ran.append(self.source.name)
            return super(type(self), self).__call__(f)

        counted = type("Counted", (type(section),), {"__call__": call})
        return counted(**{name: getattr(section, name) for name in section.__dataclass_fields__})

    return replace(network, sections=tuple(counting(section) for section in network.sections)), ran


def attention_layers(network: Network) -> list[Any]:
    return [k for k, name in enumerate(network.layers) if name.startswith("attn_in.")]


def test_later_passes_begin_where_an_earlier_one_passed_by(network: Network, tokens: Tensor) -> None:
    network, ran = counted(network)
    first, last = attention_layers(network)[0], attention_layers(network)[-1]
    with ActivationCache(network, SAMPLES, budget=2**20) as streams:
        for index in (last, last, first):
            for start in (0, 4):
                some = tokens[start : start + 4]
                found = streams.activations_at(index, start, some)
                ran_before = len(ran)
                assert torch.equal(found, network.activations_at(index, some))
                del ran[ran_before:]
    once = list(network.layers[:last])
    begun = once[once.index(f"ln1.{len(attention_layers(network)) - 1}") :]
    assert ran == 2 * once + 2 * begun + 2 * once[:first]


def test_a_small_budget_keeps_fewer_layers_and_none_keeps_nothing(network: Network, tokens: Tensor) -> None:
    last = attention_layers(network)[-1]
    size = SAMPLES * POSITIONS * network.nodes[0].width * 8
    most = len(attention_layers(network)) - 1
    for budget, layers in ((0, 0), (size - 1, 0), (size, 1), (100 * size, most)):
        with ActivationCache(network, SAMPLES, budget) as streams:
            streams.activations_at(last, 0, tokens)
            assert len(streams._stored) == layers


def test_a_full_disk_is_no_reason_to_stop(network: Network, tokens: Tensor) -> None:
    last = attention_layers(network)[-1]
    streams = ActivationCache(network, SAMPLES, 2**20)
    streams.activations_at(0, 0, tokens[:1])

    class Full:
        def seek(self, place: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    with streams:
        pass
    one: Any
    for one in streams._stored.values():
        one.file = Full()
    for _ in range(2):
        assert torch.equal(streams.activations_at(last, 0, tokens), network.activations_at(last, tokens))


def test_sequences_of_another_length_are_computed(network: Network, tokens: Tensor) -> None:
    last = attention_layers(network)[-1]
    short = tokens[:, :4]
    with ActivationCache(network, 2 * SAMPLES, 2**20) as streams:
        streams.activations_at(last, 0, tokens)
        for _ in range(2):
            found = streams.activations_at(last, SAMPLES, short)
            assert torch.equal(found, network.activations_at(last, short))


def test_graphs_are_the_same_bit_for_bit(
    network: Network, tokens: Tensor, small_chunks: None, tmp_path: Path
) -> None:
    kept = interbasis.build(network, tokens, resume=tmp_path, cache_gigabytes=1e-3).graph
    computed = interbasis.build(network, tokens, cache_gigabytes=0).graph
    for one, other in zip(kept.layers, computed.layers, strict=True):
        assert torch.equal(one.transform, other.transform)
    for one, other in zip(kept.edges, computed.edges, strict=True):
        assert torch.equal(one, other)
    with pytest.raises(InterbasisError, match="cache_gigabytes cannot be -1"):
        interbasis.build(network, tokens, cache_gigabytes=-1)

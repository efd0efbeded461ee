"""Planted changes are found: the section where a change arises, and its input directions."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import interbasis
from cases import normal
from interbasis.analysis.differences.records import MeasuredDifference
from interbasis.data.batches import Data
from interbasis.graph.named_models import SHIPPED, open_model
from interbasis.models import modadd
from tiny_models import random_model, tokens

MIN_OVERLAP = 0.95
MIN_LEAD = 10


@pytest.fixture(scope="module")
def stories(shared: Path) -> tuple[Any, Data]:
    """The TinyStories GPT and a few windows of its training data."""
    transformers = pytest.importorskip("transformers")
    folder = shared / "tinystories-gpt-280k"
    if not Path(folder).is_dir():
        pytest.skip(f"requires the TinyStories GPT, and there is no {folder}")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).double().eval()
    data = open_model(f"hf:{folder}").open_data(f"tokens:{folder}/tokens_train.uint16,samples=4,context=96")
    return model, data


def small_model() -> tuple[Any, Data]:
    return random_model("gpt2").double(), tokens(12, 12)


def neuron(block: Any) -> Tensor:
    """Change what one neuron reads."""
    weight = block.mlp.c_fc.weight.data  # [d, m]
    change = 0.5 * normal(len(weight), seed=1) * weight[:, 7].std()
    weight[:, 7] += change
    return change[:, None]


def query(block: Any) -> Tensor:
    """Change the query matrix of head 1."""
    weight = block.attn.c_attn.weight.data  # [d, 3d]
    width = len(weight) // block.attn.num_heads
    change = 0.5 * normal(len(weight), width, seed=2) * weight.std()
    weight[:, width : 2 * width] += change
    return change


def low_rank(block: Any) -> Tensor:
    """Add a rank-1 update to what the MLP reads, as a merged LoRA does."""
    weight = block.mlp.c_fc.weight.data
    change = normal(len(weight), 1, seed=3)
    weight += 0.2 * weight.std() * change @ normal(1, weight.shape[1], seed=4)
    return change


def measured(model: Any, plant: Callable[..., Tensor], data: Data) -> tuple[MeasuredDifference, Tensor]:
    """The difference to the model with a change in block 1, and the change's input directions [d, k]."""
    other = copy.deepcopy(model)
    block = other.transformer.h[1]
    change = plant(block)
    gain = (block.ln_1 if plant is query else block.ln_2).weight.data  # folded into what is read
    result = interbasis.diff(
        interbasis.from_hf(model), interbasis.from_hf(other), data, directions=8, progress=False
    )
    return result, gain[:, None] * change


def overlap(directions: Tensor, planted: Tensor) -> float:  # [k, d_in], [d, r]
    """Share of the planted space in the span of directions; the stream follows the constant."""
    span = torch.linalg.qr(directions[:, 1 : 1 + len(planted)].T).Q
    return float((span.T @ torch.linalg.qr(planted).Q).square().sum() / planted.shape[1])


def check(model: nn.Module, data: Data) -> None:
    for plant, section, count in (
        (neuron, "mlp_in.1", 2),
        (low_rank, "mlp_in.1", 4),
        (query, "attn_in.1", 0),
    ):
        result, planted = measured(model, plant, data)
        record = result.record
        assert record.leading == section
        arising = sorted((layer.arising for layer in record.layers.values()), reverse=True)
        assert arising[0] >= MIN_LEAD * arising[1]
        if plant is query:
            heads = record.sections[section].heads
            assert heads[0].head == 1
            assert heads[0].total > 0
            assert all(head.total == 0 for head in heads[1:])
            assert overlap(result.tensors[f"{section}.head.query"], planted) >= MIN_OVERLAP
        else:
            assert overlap(result.tensors[f"{section}.inputs"][:count], planted) >= MIN_OVERLAP
        rank = planted.shape[1]
        reading = result.tensors[f"{section}.reading"][:rank]
        assert len(reading) == rank
        assert overlap(reading, planted) >= MIN_OVERLAP
        passed = [layer.passed_on for layer in record.layers.values()]
        assert passed[-1] > 0


def test_changes_of_a_small_model() -> None:
    check(*small_model())


def test_changes_of_the_stories_model(stories: tuple[Any, Data]) -> None:
    check(*stories)


def test_changes_of_the_shipped_model() -> None:
    """A neuron of the modular-addition transformer that comes with interbasis."""
    model = open_model("modadd")
    weights = {name: weight.double() for name, weight in load_file(SHIPPED).items()}
    other = {name: weight.clone() for name, weight in weights.items()}
    planted = 0.5 * normal(128, seed=5) * weights["blocks.0.mlp.W_in"][:, 40].std()
    other["blocks.0.mlp.W_in"][:, 40] += planted
    pairs = modadd.pairs(113).inputs[:2000]
    result = interbasis.diff(model.network, modadd.from_weights(other), pairs, progress=False)
    assert result.record.leading == model.network.layers[1]
    directions = result.tensors[f"{result.record.leading}.inputs"][:2]
    assert overlap(directions, planted[:, None]) >= MIN_OVERLAP

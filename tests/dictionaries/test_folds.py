"""Exact changes of a dictionary's form: the same reconstruction, from other matrices."""

from dataclasses import replace

import pytest
import torch

from cases import normal
from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.folds import (
    multiply_by_decoder_norm,
    read_before_gain,
    scale_input,
    subtract_decoder_bias,
)
from interbasis.dictionaries.places import place
from placed_dictionaries import dictionary
from reference import relative_error

PLAIN = dictionary(5, 12, "relu", 1)
X = normal(30, 5, seed=2)


def test_inputs_are_read_without_the_decoders_bias() -> None:
    found = subtract_decoder_bias(PLAIN)
    assert relative_error(found.encode(X), PLAIN.encode(X - PLAIN.decoder_bias)) <= 1e-13


def test_scaled_inputs() -> None:
    found = scale_input(PLAIN, 0.4)
    assert relative_error(found.reconstruct(X), PLAIN.reconstruct(0.4 * X) / 0.4) <= 1e-13


def test_activations_in_units_of_the_decoder() -> None:
    found = multiply_by_decoder_norm(PLAIN)
    assert relative_error(found.encode(X), PLAIN.encode(X) * PLAIN.decoder.norm(dim=1)) <= 1e-13
    assert relative_error(found.reconstruct(X), PLAIN.reconstruct(X)) <= 1e-13
    assert relative_error(found.decoder.norm(dim=1), torch.ones(12).double()) <= 1e-13


@pytest.mark.parametrize("transcodes", [False, True])
def test_a_norms_gain_and_bias_are_folded(transcodes: bool) -> None:
    """The dictionary of g ∘ x + β reads x; what it decodes is before the gain, unless it is a transcoder."""
    gain, bias = normal(5, seed=3), normal(5, seed=4)
    one = replace(PLAIN, skip=normal(5, 5), hook="a", output_hook="b") if transcodes else PLAIN
    found, after = read_before_gain(one, gain, bias), one.reconstruct(gain * X + bias)
    assert relative_error(found.reconstruct(X), after if transcodes else (after - bias) / gain) <= 1e-12


@pytest.mark.parametrize(
    ("change", "gain", "reason"),
    [
        ({}, normal(4), r"5 numbers.*\[4\]"),
        ({"scaling": "layer_norm"}, normal(5), "layer_norm"),
        ({}, torch.tensor([1.0, 0, 1, 0, 1]), "without zeros.* 2;"),
    ],
)
def test_gains_that_cannot_be_folded(change: dict[str, str], gain: torch.Tensor, reason: str) -> None:
    with pytest.raises(InterbasisError, match=reason):
        read_before_gain(replace(PLAIN, **change), gain)  # type: ignore[arg-type]


def placed(hook: str, output_hook: str = "", layers: tuple[str, ...] = ()) -> tuple[str, str]:
    found: Dictionary = place(PLAIN, hook, output_hook, layers)
    return found.hook, found.output_hook


def test_hooks_become_node_layers_where_there_are_any() -> None:
    assert placed("blocks.3.ln2.hook_normalized", "hook_mlp_out")[1] == "blocks.3.hook_mlp_out"
    assert placed("mlp_in.2", "hook_mlp_out")[1] == "blocks.2.hook_mlp_out"
    assert placed("blocks.0.hook_resid_pre", layers=("ln1.0", "attn_in.0"))[0] == "ln1.0"
    with pytest.raises(InterbasisError, match=r"blocks\.0\.attn\.hook_z"):
        placed("blocks.0.attn.hook_z")

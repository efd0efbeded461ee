"""TransformerLens' names of node layers; tests/models/test_transformer_lens.py compares what they hold."""

import pytest

from cases import modular_addition
from interbasis.base.errors import InterbasisError
from interbasis.network.hooks import hook_names, layer_name, node_layer

PARTS = ("ln1", "ln1_out", "attn_in", "ln2", "ln2_out", "mlp_in")
LAYERS = [f"{part}.{k}" for k in (4, 5) for part in PARTS] + ["ln_final", "ln_final_out", "unembed", "output"]


def test_every_place_of_a_block_has_its_hook() -> None:
    hooks = hook_names(LAYERS)
    assert [hooks[f"{part}.4"] for part in PARTS] == [
        "blocks.4.hook_resid_pre", "blocks.4.ln1.hook_scale", "blocks.4.ln1.hook_normalized",
        "blocks.4.hook_resid_mid", "blocks.4.ln2.hook_scale", "blocks.4.ln2.hook_normalized",
    ]  # fmt: skip
    assert hooks["ln_final"] == "blocks.5.hook_resid_post"
    assert hooks["unembed"] == "ln_final.hook_normalized"
    assert "output" not in hooks
    assert {layer_name(hook, LAYERS): hook for hook in hooks.values()} == hooks
    assert layer_name("blocks.4.hook_resid_post", LAYERS) == "ln1.5"
    assert layer_name("blocks.5.hook_resid_post", LAYERS) == "ln_final"


def test_parts_of_a_network_are_named_as_in_the_whole() -> None:
    whole = hook_names(LAYERS)
    for first in range(len(LAYERS) - 1):
        for last in range(first + 2, len(LAYERS) + 1):
            part = hook_names(LAYERS[first:last])
            assert part.items() <= whole.items()
    assert hook_names(["unembed", "output"]) == {}  # with or without norms: these names do not say
    assert hook_names(["linear.0", "linear.1", "output"]) == {}


def test_a_network_without_norms_holds_the_stream_itself() -> None:
    network = modular_addition().network
    assert list(hook_names(network.layers).values()) == [
        "blocks.0.hook_resid_pre", "blocks.0.hook_resid_mid", "blocks.0.hook_resid_post"
    ]  # fmt: skip
    part = network.between(["blocks.0.hook_resid_mid", "unembed"])
    assert part.layers == ["mlp_in.0", "unembed"]
    with pytest.raises(InterbasisError, match=r"no node layer 'blocks\.0\.hook_mlp_out'; .* 'blocks\.0\."):
        node_layer("blocks.0.hook_mlp_out", network.layers)


def test_branches_without_a_norm_before_them_read_the_stream() -> None:
    """As in OLMo 2, whose norms follow the branches; of a part that shows neither, nothing is said."""
    layers = ["attn_in.0", "heads.0", "post1.0", "post1_add.0", "mlp_in.0", "post2.0", "ln_final", "unembed"]
    hooks = hook_names(layers)
    assert hooks["attn_in.0"] == "blocks.0.hook_resid_pre"
    assert hooks["mlp_in.0"] == "blocks.0.hook_resid_mid"
    assert hooks["ln_final"] == "blocks.0.hook_resid_post"
    assert "mlp_in.0" not in hook_names(layers[4:])

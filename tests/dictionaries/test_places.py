"""A dictionary of a module of a Hugging Face model reads the same at the node layer that its name becomes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from interbasis import dictionaries, from_hf
from tiny_models import random_model, tokens

WIDTH, FEATURES = 12, 40


def sparsify_folder(folder: Path, **config: object) -> Path:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "encoder.weight": (FEATURES, WIDTH), "encoder.bias": (FEATURES,), "W_dec": (FEATURES, WIDTH),
        "b_dec": (WIDTH,), "W_skip": (WIDTH, WIDTH),
    }  # fmt: skip
    folder.mkdir()
    config |= {"d_in": WIDTH, "num_latents": FEATURES, "k": 5, "skip_connection": True}
    (folder / "cfg.json").write_text(json.dumps(config))
    save_file(
        {name: torch.randn(shape, generator=generator).double() for name, shape in shapes.items()},
        folder / "sae.safetensors",
    )
    return folder


def modules_of(name: str, model: nn.Module) -> tuple[str, Any, Any, Any]:
    """The name of block 1, block 0, the MLP of block 1, and the norm before that MLP."""
    if name == "gpt2":
        return "h.1", model.transformer.h[0], model.transformer.h[1].mlp, model.transformer.h[1].ln_2
    block = model.model.layers[1]
    before = block.pre_feedforward_layernorm if name == "gemma2" else block.post_attention_layernorm
    return "layers.1", model.model.layers[0], block.mlp, before


@pytest.mark.parametrize(("name", "tolerance"), [
    ("gpt2", 1e-12), ("llama", 1e-6), ("gemma2", 1e-6),  # transformers takes RMS norms in float32
])  # fmt: skip
def test_dictionaries_of_modules(name: str, tolerance: float, tmp_path: Path) -> None:
    model = random_model(name).double()
    network, inputs = from_hf(model), tokens()
    seen: dict[str, Tensor] = {}
    block_1, block_0, mlp, norm = modules_of(name, model)
    mlp.register_forward_pre_hook(lambda _, given: seen.update(mlp_input=given[0]))
    block_0.register_forward_hook(
        lambda _, __, output: seen.update(block_output=output if isinstance(output, Tensor) else output[0])
    )
    with torch.no_grad():
        model(inputs)
        values = dict(zip(network.layers, network.activations(inputs), strict=True))

    folder = sparsify_folder(tmp_path / f"{block_1}.mlp", transcode=True)
    trained = dictionaries.load(folder)
    gain = 1 + norm.weight if name == "gemma2" else norm.weight
    placed = dictionaries.load(folder, gain=gain, bias=getattr(norm, "bias", None), layers=network.layers)
    assert (trained.hook, placed.hook) == ("blocks.1.mlp.hook_in", "mlp_in.1")
    normalised = values["mlp_in.1"][..., 1 : 1 + WIDTH]  # after the constant, before the residual stream
    expected = trained.reconstruct(seen["mlp_input"])
    assert (placed.reconstruct(normalised) - expected).abs().max() <= tolerance * expected.abs().max()

    folder = sparsify_folder(tmp_path / block_1.replace("1", "0"))
    placed = dictionaries.load(folder, layers=network.layers)
    assert placed.hook == "ln1.1"
    expected = dictionaries.load(folder).encode(seen["block_output"])
    assert (
        placed.encode(values["ln1.1"][..., 1:]) - expected
    ).abs().max() <= tolerance * expected.abs().max()

"""Dictionaries of EleutherAI's sparsify: folders with `cfg.json` and `sae.safetensors`.

    u = W_e (x − b_d) + b_e      of a transcoder: W_e x + b_e
    z = the k largest ReLU(u)    activation topk
    x̂ = W_dᵀ z + b_d (+ S x)

The folder has the name of the module at whose output it was trained, `layers.5` or `layers.5.mlp`; a
transcoder reads the module's input, which for an MLP is after the gain of its norm.
"""

import re
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import Field

from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.files import FileConfig, Tensors, digest, read_config
from interbasis.dictionaries.folds import scale_input, subtract_decoder_bias
from interbasis.dictionaries.places import MLP_OUTPUT

CONFIG = "cfg.json"
WEIGHTS = "sae.safetensors"
MODULE = re.compile(r"(?:.*\.)?(?:layers|h|blocks)\.(?P<block>\d+)(?:\.(?P<part>\w+))?")
OUTPUTS = {
    None: "hook_resid_post",
    "mlp": MLP_OUTPUT,
    "attn": "hook_attn_out",
    "self_attn": "hook_attn_out",
    "attention": "hook_attn_out",
}
"""TransformerLens' name of a module's output, by the part of the block."""


class SparsifyConfig(FileConfig):
    """The fields of `cfg.json` that a dictionary needs."""

    d_in: int = Field(ge=1)
    k: int = Field(ge=1)
    num_latents: int = Field(default=0, ge=0)
    expansion_factor: int = Field(default=32, ge=1)
    activation: str = "topk"
    signed: bool = False
    transcode: bool = False
    skip_connection: bool = False

    @property
    def features(self) -> int:
        return self.num_latents or self.d_in * self.expansion_factor


def read(folder: Path, dtype: torch.dtype | None = None, scale: float | None = None) -> Dictionary:
    """Read a dictionary of sparsify.

    Args:
        folder: With its config and weights.
        dtype: Of its tensors; by default that of the file, float32 at least.
        scale: Factor of the activations in training.

    Returns:
        The dictionary.

    Raises:
        InterbasisError: It is incomplete, or has no form here.
    """
    config = read_config(folder / CONFIG, SparsifyConfig)
    if config.activation != "topk" or config.signed:
        received = "signed activations" if config.signed else config.activation
        raise InterbasisError(
            f"expected a dictionary of sparsify with the activation topk, received {received} in {folder}, "
            "which has no form here; choose another dictionary of its layer"
        )
    tensors = Tensors.read(folder / WEIGHTS, dtype)
    width, features = config.d_in, config.features
    if config.k > features:
        raise InterbasisError(
            f"expected k from 1 to {features}, the number of features, in {folder / CONFIG}, received "
            f"{config.k}; download or copy it again"
        )
    dictionary = Dictionary(
        encoder=tensors.take("encoder.weight", features, width),
        encoder_bias=tensors.take("encoder.bias", features),
        decoder=tensors.take("W_dec", features, width),
        decoder_bias=tensors.take("b_dec", width),
        active=config.k,
        skip=tensors.take("W_skip", width, width) if config.skip_connection else None,
        name=folder.absolute().name,
        digest=digest(tensors.path, folder / CONFIG),
    )
    if scale is not None:
        dictionary = scale_input(dictionary, scale)
    if not config.transcode:
        dictionary = subtract_decoder_bias(dictionary)
    hook, output_hook = _hooks(folder.absolute().name, config.transcode)
    return replace(dictionary, hook=hook, output_hook=output_hook)


def _hooks(module: str, is_transcoder: bool) -> tuple[str, str]:
    """Hook names of what is read and written, by the module's name; one that is not known is kept."""
    match = MODULE.fullmatch(module)
    if match is None or match["part"] not in OUTPUTS:
        return (f"{module}.input", f"{module}.output") if is_transcoder else (module, "")
    block, output = f"blocks.{match['block']}", OUTPUTS[match["part"]]
    if not is_transcoder:
        return f"{block}.{output}", ""
    inputs = {"hook_resid_post": "hook_resid_pre", MLP_OUTPUT: "mlp.hook_in", "hook_attn_out": "attn.hook_in"}
    return f"{block}.{inputs[output]}", f"{block}.{output}"

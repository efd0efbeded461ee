"""Dictionaries of Gemma Scope: `params.npz` with W_enc, W_dec, b_enc, b_dec and threshold.

    z = ReLU(u) where u > θ,    u = W_e x + b_e,    x̂ = W_dᵀ z + b_d

Its transcoders read the normalised stream before the gain of the MLP's norm, which was folded into the MLP
when they were trained (arXiv 2408.05147, appendix on language models): what a node layer `mlp_in.k` holds.
They write the MLP's output after the norm that follows it. Which layer and site a file belongs to, its
folders say: `gemma-scope-2b-pt-res/layer_12/width_16k/average_l0_82/params.npz`.
"""

import re
from pathlib import Path

import torch

from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.files import Tensors, digest
from interbasis.dictionaries.folds import scale_input
from interbasis.dictionaries.places import MLP_OUTPUT

WEIGHTS = "params.npz"
SITE = re.compile(r"gemma-scope-(?P<model>[\w.]+-(?:pt|it))-(?P<site>res|mlp|att|transcoders)(?![\w])")
LAYER = re.compile(r"layer_(\d+)")
HOOKS = {
    "res": "hook_resid_post",
    "mlp": MLP_OUTPUT,
    "att": "attn.hook_z",
    "transcoders": "ln2.hook_normalized",
}


def read(path: Path, dtype: torch.dtype | None = None, scale: float | None = None) -> Dictionary:
    """Read a dictionary of Gemma Scope.

    Args:
        path: The file `params.npz`, or the folder that it is in.
        dtype: Of its tensors; by default that of the file, float32 at least.
        scale: Factor of the activations in training.

    Returns:
        The dictionary.

    Raises:
        InterbasisError: It is incomplete.
    """
    path = path / WEIGHTS if path.is_dir() else path
    tensors = Tensors.read(path, dtype)
    width, features = tensors.shape("W_enc", 2)
    width_out = tensors.shape("W_dec", 2)[1]
    hook, output_hook = _hooks(path)
    if output_hook == "" and width != width_out:
        output_hook = MLP_OUTPUT
    dictionary = Dictionary(
        encoder=tensors.take("W_enc", width, features).T.contiguous(),
        encoder_bias=tensors.take("b_enc", features),
        decoder=tensors.take("W_dec", features, width_out),
        decoder_bias=tensors.take("b_dec", width_out),
        threshold=tensors.threshold("threshold", features).clamp(min=0),
        hook=hook,
        output_hook=output_hook,
        name=_name(path),
        model=_model(path),
        digest=digest(path),
    )
    return dictionary if scale is None else scale_input(dictionary, scale)


def _hooks(path: Path) -> tuple[str, str]:
    """Hook names as the folders tell; empty where they do not."""
    folders = path.absolute().parent.as_posix()
    site, layer = SITE.search(folders), LAYER.findall(folders)
    if site is None or not layer:
        return "", ""
    output = f"blocks.{layer[-1]}.{MLP_OUTPUT}" if site["site"] == "transcoders" else ""
    return f"blocks.{layer[-1]}.{HOOKS[site['site']]}", output


def _model(path: Path) -> str:
    """gemma-2-2b of `2b-pt`, gemma-2-9b-it of `9b-it`."""
    site = SITE.search(path.absolute().as_posix())
    return f"gemma-2-{site['model'].removesuffix('-pt')}" if site else ""


def _name(path: Path) -> str:
    """The folders from the layer's on, as on Neuronpedia and in the repository."""
    folders = path.absolute().parts[:-1]
    first = next((i for i, folder in enumerate(folders) if LAYER.fullmatch(folder)), len(folders) - 1)
    return "/".join(folders[first:])

"""Which library a dictionary's files are of, and reading them.

cfg.json, sae_weights.safetensors    SAELens
cfg.json, sae.safetensors            sparsify
params.npz                           Gemma Scope
config.yaml, layer_3.safetensors     circuit-tracer, a set of transcoders
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.dictionaries import circuit_tracer, gemma_scope, sae_lens, sparsify
from interbasis.dictionaries.circuit_tracer import TranscoderSet
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.folds import read_before_gain, scale_input
from interbasis.dictionaries.places import place

Reader = Callable[[Path, torch.dtype | None, float | None], Dictionary]
READERS: dict[str, Reader] = {
    sae_lens.WEIGHTS: sae_lens.read,
    sparsify.WEIGHTS: sparsify.read,
    gemma_scope.WEIGHTS: gemma_scope.read,
}
"""By the file that holds the weights."""
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
MAX_NAMES = 8
"""Names of files that a message shows."""


def load(
    path: str | Path,
    *,
    layer: int | None = None,
    layers: Sequence[str] = (),
    hook: str = "",
    output_hook: str = "",
    scale: float | None = None,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Dictionary:
    """Read a sparse autoencoder or a transcoder from the files of the library that trained it.

    SAELens, sparsify, Gemma Scope and sets of circuit-tracer are told apart by the names of their files. No
    pickle is opened and nothing is downloaded.

    Args:
        path: The folder of a dictionary, or the file with its weights.
        layer: Which transcoder of a circuit-tracer set.
        layers: Names of a network's node layers (`network.layers`); hook names of TransformerLens become the
            node layers that they are, others are kept.
        hook: Where the dictionary reads, if the files do not say so, or say it wrongly.
        output_hook: Where a transcoder writes, likewise.
        scale: Factor by which activations were multiplied in training, if the files do not have it: folded
            into the weights.
        gain: Gain [d_in] of the norm before the layer, for a dictionary that was trained on activations
            after it (sparsify's transcoders of MLPs) and is to read a node layer, which is before it.
        bias: Bias [d_in] of that norm.
        dtype: Of the tensors; by default that of the file, float32 at least.

    Returns:
        The dictionary.

    Raises:
        InterbasisError: The files are missing, cut, of another width than their config says, or of a kind
            that has no form here.
    """
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise InterbasisError(f"expected a positive scale of activations, received {scale}")
    if bias is not None and gain is None:
        raise InterbasisError("expected the gain of the norm beside its bias; pass ones if it has none")
    dictionary = _read(Path(path), layer, dtype, scale)
    if gain is not None:
        dictionary = read_before_gain(dictionary, gain, bias)
        name = dictionary.hook.replace("mlp.hook_in", "ln2.hook_normalized")
        dictionary = replace(dictionary, hook=name.replace("attn.hook_in", "ln1.hook_normalized"))
    return place(dictionary, hook, output_hook, layers)


def _read(path: Path, layer: int | None, dtype: torch.dtype | None, scale: float | None) -> Dictionary:
    if not path.exists():
        raise InterbasisError(
            f"expected the folder of a dictionary at {path}, but there is nothing; download it first, since "
            "nothing is fetched from a hub"
        )
    if path.suffix == ".npz":
        return gemma_scope.read(path, dtype, scale)
    if match := circuit_tracer.FILE.fullmatch(path.name):
        layer = int(match[1]) if layer is None else layer
    folder = path if path.is_dir() else path.parent
    for weights, reader in READERS.items():
        if path.name == weights or (path.is_dir() and (path / weights).is_file()):
            return reader(folder, dtype, scale)
    if (folder / circuit_tracer.CONFIG).is_file() and (path.is_dir() or layer is not None):
        dictionary = _from_set(TranscoderSet.from_folder(folder), layer, dtype)
        return dictionary if scale is None else scale_input(dictionary, scale)
    raise InterbasisError(_unknown(path))


def _from_set(transcoders: TranscoderSet, layer: int | None, dtype: torch.dtype | None) -> Dictionary:
    if layer is None and len(transcoders) > 1:
        raise InterbasisError(
            f"{transcoders.folder} is a set of {len(transcoders)} transcoders; choose one with layer, "
            f"{transcoders.layers[0]} to {transcoders.layers[-1]}"
        )
    return transcoders.dictionary(transcoders.layers[0] if layer is None else layer, dtype)


def _unknown(path: Path) -> str:
    """A sentence about files that are none of the known ones."""
    names = sorted(file.name for file in path.iterdir()) if path.is_dir() else [path.name]
    if any(name.endswith(PICKLES) for name in names):
        pickled = next(name for name in names if name.endswith(PICKLES))
        return (
            f"{path / pickled if path.is_dir() else path} may be a pickle, which can run code and is not "
            "opened; load it with the library that wrote it and save it as safetensors"
        )
    inner = [
        name for name in names if path.is_dir() and any((path / name / file).is_file() for file in READERS)
    ]
    if inner:
        return (
            f"{path} has {len(inner)} dictionaries; choose one of its folders: {', '.join(inner[:MAX_NAMES])}"
        )
    received = ", ".join(names[:MAX_NAMES]) or "an empty folder"
    return (
        f"expected a dictionary of SAELens ({sae_lens.CONFIG}, {sae_lens.WEIGHTS}), sparsify "
        f"({sparsify.CONFIG}, {sparsify.WEIGHTS}), Gemma Scope ({gemma_scope.WEIGHTS}) or circuit-tracer "
        f"({circuit_tracer.CONFIG}, layer_0.safetensors) at {path}, received {received}; name the folder "
        "that has these files"
    )

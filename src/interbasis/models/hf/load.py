"""`from_hf`: a live model, a folder or a Hub id to a network."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError, first_line
from interbasis.base.records import Dtype
from interbasis.models.hf import reading, transformer_lens
from interbasis.models.hf.assemble import assemble, entrance
from interbasis.models.hf.encoders import Head, from_encoder, is_encoder
from interbasis.models.hf.families import FAMILIES
from interbasis.models.hf.own_blocks import OwnEmbedding, network_of_blocks
from interbasis.models.hf.parts import GENERAL, ModelParts
from interbasis.models.hf.stored import HalfModel, StoredModel
from interbasis.models.matrices import change_matrices, changed_copy
from interbasis.models.own_output import check_no_global_hooks, evaluation_mode, own_output
from interbasis.network.cores import Experts
from interbasis.network.cores.activations import acts_elementwise
from interbasis.network.cores.elementwise import ActivationCore
from interbasis.network.network import Change, Network

Blocks = str | int | range | None
MAX_RELATIVE_ERROR = 1e-4
"""Largest error allowed, of the largest logit: transformers rounds norms and angles to float32 whatever the
model's dtype."""


def from_hf(
    model_or_path: nn.Module | str | Path,
    blocks: str | int | range | None = None,
    *,
    output: bool = False,
    head: Head | None = None,
    stored: bool = False,
) -> Network:
    """Convert a Hugging Face model: a causal language model, or an encoder (BERT, RoBERTa, ViT, …).

    Of a model that takes images as well (Gemma 3, Llava) it is the language model. Causal language models of
    types without a closed form (`interbasis families` lists all) have a section for each block, which is
    differentiated automatically.

    Args:
        model_or_path: A live model (or a HookedTransformer or TransformerBridge of TransformerLens), a
            folder, or a Hub id.
        blocks: The blocks whose node layers are wanted: "4-6", 4 or range(4, 7); default: all of them. The
            ends of the cut are the first and the last node layer.
        output: Make the logits, which are never rotated, the last node layer `output`; default: it is
            `unembed`, with the unembedding after it.
        head: What an encoder without logits puts out: its hidden states of all "tokens" (the default), their
            "mean", or the "pooled" first one.
        stored: Leave the blocks of a causal language model in their safetensors files, and load them one at
            a time whenever they are used.

    Returns:
        The network; ``network(tokens)`` gives the logits.

    Raises:
        InterbasisError: The architecture is not supported, the model cannot be read, or its own logits differ
            from the network's.
    """
    check_no_global_hooks()
    live = isinstance(model_or_path, nn.Module)
    if stored:
        return _stored(model_or_path, blocks, output, head)
    name = "" if live else str(model_or_path)
    model: Any = reading.language_model(cast(nn.Module, model_or_path)) if live else reading.load(name)
    if is_encoder(model) and (_kind(model) not in FAMILIES or model.config.is_encoder_decoder):
        if blocks is not None:
            raise InterbasisError(
                "blocks can be chosen in causal language models only; choose node layers of an encoder by "
                "name, network.between([…])"
            )
        return replace(from_encoder(model, head), remake=partial(_remake, model if live else name, head=head))
    if head is not None:
        raise InterbasisError(f"a head is an option of encoders; {type(model).__name__} puts out logits")
    with torch.no_grad():
        inner = transformer_lens.hugging_face_model(model)
        remake = partial(_remake, inner if live else name, output=output)
        if _has_own_blocks(inner) and not output:
            network = network_of_blocks(inner, remake=remake)
            entrances = network.layers
            _check(network, model)
        elif not live and _is_half(inner):
            network = HalfModel(inner, Path(name), _parts, _check).network(output, remake=remake)
            entrances = _entrances(_parts(inner))
        else:
            parts = _parts(inner)
            network, entrances = assemble(parts, output, remake=remake), _entrances(parts)
            _check(network, model)
    dtype: Dtype = "float64" if network.dtype == torch.float64 else "float32"
    network = replace(network, build_dtype=dtype, tokenizer=_tokenizer(name or inner))
    return _cut(network, blocks, entrances, output)


def _tokenizer(source: Any) -> str:
    """The folder that a model was read from, by name or before it was given, if it has a tokenizer."""
    name = source if isinstance(source, str) else getattr(getattr(source, "config", None), "name_or_path", "")
    return name if name and (Path(name) / "tokenizer.json").is_file() else ""


def _stored(path: nn.Module | str | Path, blocks: Blocks, output: bool, head: Head | None) -> Network:
    """Network of a folder or a Hub id whose blocks stay in their files."""
    if isinstance(path, nn.Module):
        raise InterbasisError(
            f"expected a folder or a Hub id to load blocks from, received a {type(path).__name__} in memory"
        )
    config = reading.language_config(reading.load_config(str(path)))
    if config.model_type not in FAMILIES or head is not None:
        raise InterbasisError(
            f"blocks can be loaded one at a time for {', '.join(FAMILIES)} models, not for "
            f"{config.model_type}; leave out --memory to load it as a whole"
        )
    model = StoredModel(reading.skeleton(config), reading.local_folder(str(path)), _parts, _check)
    with torch.no_grad():
        dtype = "float64" if config.dtype == torch.float64 else "float32"
        remake = partial(_remake, str(path), output=output)
        known = {"build_dtype": dtype, "remake": remake, "tokenizer": _tokenizer(str(path))}
        network, entrances = model.network(output, **known), _entrances(_parts(model.skeleton))
    return _cut(network, blocks, entrances, output)


def exceeds(name: str, limit: int) -> bool:
    """Whether the network of a causal language model takes more bytes than ``limit``; no weights are read."""
    config = reading.language_config(reading.load_config(name))
    if config.model_type not in FAMILIES:
        return False
    with torch.no_grad():
        network = assemble(_parts(reading.skeleton(config)))
    steps: list[Any] = [network.prefix, *network.sections, *network.tail]
    return sum(4 * tensor.numel() for step in steps for tensor in step.tensors()) > limit


def _kind(model: Any) -> str | None:
    return getattr(getattr(model, "config", None), "model_type", None)


def _remake(source: nn.Module | str, change: Change, **options: Any) -> Network:
    """Convert a changed model: a copy, or one that is loaded again, since a name does not hold on to it."""
    if isinstance(source, nn.Module):
        return from_hf(changed_copy(source, change), **options)
    return from_hf(change_matrices(reading.load(source), change), **options)


def _parts(model: Any) -> ModelParts:
    if transformer_lens.made_by_transformer_lens(model, "HookedTransformer"):
        return transformer_lens.hooked_parts(model)
    kind = _kind(model)
    if kind not in FAMILIES:
        raise InterbasisError(
            f"{type(model).__name__} is not one of the types that have logits as a node layer or blocks in "
            f"files ({', '.join(FAMILIES)}); leave out output=True and stored=True, or {GENERAL}"
        )
    try:
        return FAMILIES[kind](model)
    except AttributeError as error:
        raise InterbasisError(
            f"{type(model).__name__} is not built as a {kind} causal language model: {error}; {GENERAL}"
        ) from error


def _has_own_blocks(model: Any) -> bool:
    """Whether a model is one of transformers' causal ones that have no closed form."""
    from transformers import PreTrainedModel

    return isinstance(model, PreTrainedModel) and _kind(model) not in FAMILIES


def _entrances(parts: ModelParts) -> list[str]:
    """Node layers where blocks begin, and where the last one ends."""
    return [entrance(parts, k) for k in range(len(parts.blocks) + 1)]


def _check(network: Network, model: Any) -> None:
    """Refuse a network whose logits are not the model's own, on a few tokens.

    An activation that reads several neurons gives the right logits, but wrong derivatives. What half types
    round away in a model hides what a hook changes, so such a model is run in float32.
    """
    for activation in _activations(network):
        if not acts_elementwise(activation, network.dtype, network.device):
            raise InterbasisError(
                f"the activation {type(activation).__name__} of {type(model).__name__} reads several "
                f"neurons at once; expected one that treats every neuron by itself; {GENERAL}"
            )
    embedding: Any = network.prefix
    length = 8 if embedding.context is None else min(8, embedding.context)
    tokens = torch.arange(length, device=network.device)[None] * 7 % len(embedding.tokens)
    half = _is_half(model)
    try:
        if half:
            outputs = own_output(transformer_lens.called_module(model), tokens, torch.float32)
        else:
            with evaluation_mode(model):
                outputs = model(tokens)
    except (RuntimeError, TypeError, ValueError) as failure:  # a hook that insists on the dtype, say
        remedy = "remove its hooks, or give it as model.float()"
        raise InterbasisError(
            f"{type(model).__name__} {'computes in half precision and ' if half else ''}could not be run in "
            f"{'float32' if half else network.dtype} to be checked ({first_line(failure)}); {remedy}"
        ) from failure
    expected = (outputs if isinstance(outputs, Tensor) else outputs.logits).to(network.dtype)
    error = (network(tokens) - expected).abs().max() / expected.abs().max()
    if not error <= MAX_RELATIVE_ERROR:
        reason = "some of its modules compute something other than their class says"
        if isinstance(network.prefix, OwnEmbedding):
            reason = "its blocks read more than the stream that the one before puts out"
        raise InterbasisError(
            f"{type(model).__name__} was read, but its logits are off by {error:.1e} of the largest, so "
            f"{reason}; {GENERAL}"
        )


def _is_half(model: nn.Module) -> bool:
    return any(p.is_floating_point() and p.element_size() < 4 for p in model.parameters())


def _activations(network: Network) -> Iterator[nn.Module]:
    for core in (section.core for section in network.sections):
        inner = [expert.core for expert in core.experts] if isinstance(core, Experts) else [core]
        yield from {id(c.activation): c.activation for c in inner if isinstance(c, ActivationCore)}.values()


def _cut(network: Network, blocks: Blocks, entrances: list[str], output: bool) -> Network:
    """Network between the ends of the blocks that are wanted; None is all of it."""
    if blocks is None:
        return network
    count = len(entrances) - 1
    first, last = 1, 0
    if isinstance(blocks, range) and len(blocks) and blocks.step == 1:
        first, last = blocks[0], blocks[-1]
    elif match := re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", str(blocks)):
        first, last = int(match[1]), int(match[2] or match[1])
    if not 0 <= first <= last < count:
        raise InterbasisError(
            f'expected blocks as "4-6", 4 or range(4, 7) between 0 and {count - 1}, received {blocks!r}'
        )
    if output:
        raise InterbasisError(
            "with blocks chosen the last node layer is the end of the cut; leave out output"
        )
    names = network.layers
    start, end = (names.index(entrances[k]) for k in (first, last + 1))
    return network.between(names[start : end + 1])

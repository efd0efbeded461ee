"""Encoders of Hugging Face (BERT, MiniLM, ViT, CLIP, SigLIP, DINOv2, Whisper): traced as any module is.

DINOv3 turns queries and keys by the row and the column of their patch; its class token is turned by 0 here,
so that all positions are turned alike. The encoder of T5 is taken, too, with a part that has no closed form:
attention whose scores have a bias by relative position. Such a section is differentiated automatically, and
the network takes samples of the example's length alone (`TOKENS`); `from_torch` with an example of your own
takes another.

The outputs are the logits where the model has a head (masked tokens, classes), else the last hidden states;
``head`` chooses the mean of these over all tokens, or the pooled first token. Samples of different lengths
are given without padding and without a mask: `Batches` cuts it off, so that sums run over real tokens only.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.models.own_output import own_output, replaced
from interbasis.models.traced.load import MAX_ROUNDED_ERROR, trace_network
from interbasis.network.network import Network

Head = Literal["tokens", "mean", "pooled"]
TOKENS = 8
"""Length of the example for a model of tokens."""


class Encoder(nn.Module):
    """Model of transformers as a module of one tensor to one tensor."""

    def __init__(self, model: nn.Module, head: Head | None):
        super().__init__()
        self.model = model
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.model(inputs)
        if self.head is None and hasattr(outputs, "logits"):
            return outputs.logits
        if self.head == "pooled":
            return outputs.pooler_output
        return outputs.last_hidden_state.mean(1) if self.head == "mean" else outputs.last_hidden_state


def is_encoder(model: Any) -> bool:
    """Whether a model is one of transformers' that put out nothing about the next token."""
    from transformers import PreTrainedModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if not isinstance(model, PreTrainedModel) or getattr(model.config, "is_decoder", False):
        return False
    name = type(model).__name__
    causal = name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return not causal and not name.endswith(("ForCausalLM", "LMHeadModel"))


def from_encoder(model: nn.Module, head: Head | None = None) -> Network:
    """Network of an encoder; its outputs are compared with the model's own."""
    config: Any = model.config
    decoders = [name for name, _ in model.named_modules() if name.rpartition(".")[2] == "decoder"]
    if getattr(config, "is_encoder_decoder", False) and decoders:
        raise InterbasisError(
            f"{type(model).__name__} has an encoder and a decoder, and only encoders are supported; pass "
            "model.get_encoder()"
        )
    if head == "pooled" and getattr(model, "pooler", None) is None:
        raise InterbasisError(f"{type(model).__name__} has no pooler; expected head mean or tokens")
    encoder, example = Encoder(model, head), example_for(model)
    with _all_tokens_turned(model):
        network = trace_network(encoder, example)
    _check(network, encoder, example)

    def renamed(step: Any) -> Any:  # node layers by the names that the model itself has for its parts
        ends = (replace(node, name=node.name.removeprefix("model.")) for node in (step.source, step.target))
        return replace(step, **dict(zip(("source", "target"), ends, strict=True)))

    sections, tail = tuple(map(renamed, network.sections)), tuple(map(renamed, network.tail))
    return replace(network, family=config.model_type, sections=sections, tail=tail)


def _all_tokens_turned(model: nn.Module) -> AbstractContextManager[None]:
    """DINOv3 as if class and register tokens were turned, too, by angles of 0."""
    code: Any = sys.modules[type(model).__module__]
    if not hasattr(code, "apply_rotary_pos_emb") or "dinov3" not in code.__name__:
        return nullcontext()

    def turn(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> tuple[Tensor, ...]:
        more = query.shape[-2] - cos.shape[-2]
        cos, sin = (nn.functional.pad(x, (0, 0, more, 0), value=at) for x, at in ((cos, 1.0), (sin, 0.0)))
        return tuple(x * cos + code.rotate_half(x) * sin for x in (query, key))

    return replaced((code, "apply_rotary_pos_emb", turn))


def _check(network: Network, encoder: Encoder, example: Tensor) -> None:
    """Compare outputs on the example with those of the model as it is."""
    inputs = example.double() if example.is_floating_point() else example
    expected = own_output(encoder, inputs, torch.float64)
    error = (network(inputs) - expected).abs().max() / expected.abs().max()
    if not error <= MAX_ROUNDED_ERROR:
        raise InterbasisError(
            f"{type(encoder.model).__name__} was traced, but its outputs are off by {error:.1e} of the "
            "largest; give from_torch a module of your own"
        )


def example_for(model: Any) -> Tensor:
    """Tokens, an image or a spectrogram of the size in a model's configuration."""
    config = model.config
    generator = torch.Generator().manual_seed(0)
    if model.main_input_name == "pixel_values":
        size = config.image_size
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return torch.randn(2, config.num_channels, *sides, generator=generator)
    if model.main_input_name == "input_features":
        frames = 2 * config.max_source_positions
        return torch.randn(2, config.num_mel_bins, frames, generator=generator)
    if hasattr(model, "patch_embed") and hasattr(model, "spatial_merge_size"):
        raise InterbasisError(
            f"{type(model).__name__} takes pictures of any size in patches; give from_torch pictures of one "
            "size and interbasis.models.hf.picture_tower.PictureTower(model)"
        )
    if model.main_input_name != "input_ids" or not hasattr(config, "vocab_size"):
        raise InterbasisError(
            f"{type(model).__name__} takes {model.main_input_name!r}, which is not supported; wrap it in "
            "an nn.Module and give from_torch an example"
        )
    longest = getattr(config, "max_position_embeddings", None) or TOKENS + 2
    padding = getattr(config, "pad_token_id", None)
    tokens = torch.randint(config.vocab_size, (2, min(TOKENS, max(2, longest - 2))), generator=generator)
    if padding is None:
        return tokens
    return torch.where(tokens == padding, (tokens + 1) % config.vocab_size, tokens)

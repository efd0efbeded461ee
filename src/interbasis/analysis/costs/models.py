"""Models by name or by shape, as networks without weights: costs follow from shapes alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from interbasis.base.errors import InterbasisError
from interbasis.graph.named_models import hub_options, open_model
from interbasis.network.network import Network

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def _config(kind: str, **settings: Any) -> Callable[[], "PretrainedConfig"]:
    def make() -> "PretrainedConfig":
        import transformers

        return getattr(transformers, kind)(**settings)

    return make


SHAPES: dict[str, Callable[[], "PretrainedConfig"]] = {
    "gpt2-small": _config("GPT2Config"),
    "smollm2-135m": _config(
        "LlamaConfig", hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=49152,
    ),
    "llama-1b": _config(
        "LlamaConfig", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256,
    ),
    "llama-7b": _config(
        "LlamaConfig", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, vocab_size=32000,
    ),
}  # fmt: skip
"""Shapes that are known by name, without weights."""


def open_shapes(model: str) -> tuple[Network, bool]:
    """Network of a model, of Hugging Face models without weights, and whether norms are centred.

    Raises:
        InterbasisError: It is neither a shape nor a model by name, or cannot be read.
    """
    family, _, name = model.partition(":")
    if model.lower() in SHAPES or (family == "hf" and name):
        from interbasis.models.hf.families import FAMILIES
        from interbasis.models.hf.load import skeleton_network
        from interbasis.models.hf.reading import language_config, load_config

        if model.lower() in SHAPES:
            return skeleton_network(SHAPES[model.lower()]())
        folder, blocks, output, _ = hub_options(model, name)
        config = language_config(load_config(folder))
        if config.model_type in FAMILIES:
            return skeleton_network(config, blocks, output)
    if not name and family not in ("modadd", "cifar10-conv"):
        raise InterbasisError(
            f"expected a shape ({', '.join(SHAPES)}) or a model by name (hf:…, mlp:…), received {model!r}"
        )
    return open_model(model).network, True

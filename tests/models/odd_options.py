"""Random options beyond a model type's defaults, and a network compared with its model under them."""

import random
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from cases import gram_error, normal
from interbasis import InterbasisError, Network, from_hf
from interbasis.models.hf.tiny import tiny_config, tiny_model, tiny_tokens
from interbasis.network.cores import General
from reference import jacobians, looped_jacobians, relative_error

ACTIVATIONS = ("relu", "gelu", "gelu_pytorch_tanh", "silu", "relu2", "tanh")
ACTIVATION_NAMES = [
    "hidden_act",
    "activation_function",
    "hidden_activation",
    "afn",
    "activation",
    "mlp_hidden_act",
]
SCALES = ["scal", "multiplier", "factor", "softcap", "soft_cap", "scalar", "alpha", "limit", "clip"]
"""Parts of the names of numbers that multiply or cap something."""
INERT = (
    "is_decoder is_encoder is_encoder_decoder return_dict use_cache add_cross_attention torchscript causal"
)
CHOICES: dict[str, tuple[object, ...]] = {
    "num_key_value_heads": (1, 2, 4),
    "head_dim": (4, 6),
    "sliding_window": (2, 4, None),
    "num_experts_per_tok": (1, 3),
    "n_group": (2,),
    "first_k_dense_replace": (0, 1),
    "decoder_sparse_step": (2,),
    "v_head_dim": (4, 6),
    "q_lora_rank": (6, None),
    "expert_selection_fn": ("sigmoid",),
    "topk_method": ("group_limited_greedy",),
    "norm_type": ("rms",),
    "layer_types": (
        ["full_attention"] * 2,
        ["sliding_attention"] * 2,
        ["full_attention", "sliding_attention"],
    ),
}
LOGITS = ("logits", "logits of fewer positions")
ROTARY = (
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
)  # fmt: skip


def odd_options(kind: str, seed: int) -> dict[str, Any]:
    """About half of what could be other than by default, drawn anew with every seed."""
    return _odd(tiny_config(kind), random.Random(f"{kind} {seed}"))


def _odd(config: Any, draw: random.Random) -> dict[str, Any]:
    from transformers import PretrainedConfig

    options: dict[str, Any] = {}
    for name, value in sorted(vars(config).items()):
        if name in INERT.split() or name.startswith(("_", "output_")) or draw.random() < 0.5:
            continue
        if name in CHOICES:
            options[name] = draw.choice(CHOICES[name])
        elif isinstance(value, bool):
            options[name] = not value
        elif name in ACTIVATION_NAMES:
            options[name] = draw.choice(ACTIVATIONS)
        elif name == "rope_parameters" and isinstance(value, dict) and "rope_theta" in value:
            options[name] = {"rope_theta": 50.0} | draw.choice(ROTARY)
        elif isinstance(value, float) and name.endswith(("eps", "epsilon")):
            options[name] = 0.05
        elif isinstance(value, float) and any(part in name for part in SCALES):
            options[name] = (value or 1.0) * draw.uniform(0.3, 0.9)
        elif isinstance(value, PretrainedConfig) and name in ("text_config", "attn_config"):
            options[name] = _odd(value, draw)
    return options


def odd_model(kind: str, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """Small model in float64 with as many of the odd options as transformers itself can run."""
    options = odd_options(kind, seed)
    draw = random.Random(seed)
    while True:
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                model = tiny_model(kind, torch.float64, **options)
                logits = model(tiny_tokens(), use_cache=False).logits
            if logits.isfinite().all():
                return model, options
        except Exception:  # whatever options cause in somebody else's code
            if not options:
                raise
        options.pop(draw.choice(sorted(options)))


def compare(model: Any, network: Network) -> dict[str, float]:
    """Relative errors of logits, of their gradients by the first block's stream, and of Jacobian Grams."""
    tokens = tiny_tokens()
    with torch.no_grad():
        found = {
            "logits of fewer positions": relative_error(
                network(tokens[:, :4]), model(tokens[:, :4], use_cache=False).logits
            )
        }
    f = network.prefix(tokens).detach()
    stream, logits = _with_stream(model, tokens, f[..., 1:])
    cotangent = normal(*logits.shape, seed=3)
    expected = torch.autograd.grad(logits, stream, cotangent)[0]
    f.requires_grad_()
    output = f
    for step in (*network.sections, *network.tail):
        output = step(output)
    found["logits"] = relative_error(output, logits)
    found["gradient"] = relative_error(torch.autograd.grad(output, f, cotangent)[0][..., 1:], expected)
    for section, at in zip(network.sections, network.activations(tokens[:, :4]), strict=False):
        general = isinstance(section.core, General)
        error = gram_error(section, at.detach(), looped_jacobians if general else jacobians)
        found[f"{section.source.name}: {section.core}"] = error
    return found


def _with_stream(model: Any, tokens: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The stream that the model's own first block reads, which begins as ``first``, and the logits."""
    streams: list[Tensor] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        streams.extend(x for x in (*args[:1], kwargs.get("hidden_states")) if isinstance(x, Tensor))

    blocks = [part[0] for part in model.modules() if isinstance(part, nn.ModuleList) and len(part)]
    hooks = [block.register_forward_pre_hook(note, with_kwargs=True) for block in blocks]
    model.requires_grad_(True)
    logits = model(tokens, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    same = [x for x in streams if x.shape == first.shape and relative_error(x, first) <= 1e-9]
    assert same, "no block of the model reads what the network begins with"
    return same[0], logits


def check_odd(kind: str, seed: int) -> None:
    """A type with odd options is refused in a sentence, or right in everything that is compared."""
    model, options = odd_model(kind, seed)
    try:
        network = from_hf(model)
    except InterbasisError:
        return
    for name, error in compare(model, network).items():
        assert error <= (1e-9 if name in LOGITS else 1e-10), (name, options)

"""Mixtures of experts of transformers' models as branches, by the names of their parts.

Mixtral, OLMoE, Qwen, Granite, gpt-oss, DeepSeek, GLM and their relatives hold all experts' weights in two
tensors. A router's kind is read from its parts and its model's type; the logits tell whether it was read
right, since every one of its options changes them.
"""

from typing import Any

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.models.hf.parts import GENERAL, Affine, Branch, first_part, frozen, weights
from interbasis.network.cores import Expert, Experts, Gated, Router
from interbasis.network.cores.gated import ClampedGated

BY_COLUMNS = ("aria_text", "gpt_oss", "llama4_text")
"""Types whose experts' matrices are transposed."""
SIGMOIDS = ("llama4_text",)
"""Types whose routers take sigmoids of scores, beside those with a bias for the choice."""
SOFTMAX_WITH_BIAS = ("ernie4_5_moe",)
UNNORMALISED = ("deepseek_v2", "llama4_text")
"""Types whose weights are not divided by their sum, and that have no setting for it."""
BIASES = "e_score_correction_bias expert_bias"
FACTORS = "routed_scaling_factor route_scale router_scaling_factor"


def is_mixture(module: Any) -> bool:
    """Whether a module is a mixture of experts that could be read."""
    return hasattr(getattr(module, "experts", None), "gate_up_proj")


def mixture(module: Any, config: Any, dense: Branch | None = None) -> Branch:
    """Mixture of experts as a branch; ``dense`` is an expert that all tokens visit."""
    kind, width = config.model_type, config.hidden_size
    experts = _experts(module.experts, kind)
    if dense is not None:
        experts.append(_expert(dense.read, dense.core, dense.out))
    gate = getattr(module, "shared_expert_gate", None)
    rows = [] if gate is None else [_with_bias(Affine.from_module(gate))]
    router = _router(module, config, int(dense is not None), rows)
    identity = torch.eye(width).to(experts[0].write)
    read = Affine(torch.cat([identity[:1] * 0, identity]), torch.eye(1 + width).to(identity)[0])
    average = getattr(module, "shared_expert_combination_strategy", None) == "average" and dense is not None
    out = Affine(0.5 * identity if average else identity, identity.new_zeros(width))
    return Branch(read, Experts(router, experts, kind == "llama4_text"), out)


def _router(module: Any, config: Any, shared: int, gates: list[Tensor]) -> Router:
    kind, router = config.model_type, first_part("gate router", module)
    inner = first_part("gate wg", router) or router
    if (getattr(router, "router_logit_softcapping", None) or 0) > 0:
        raise InterbasisError(f"a router with soft-capped scores is not supported; {GENERAL}")
    bias = first_part(BIASES, router, module, getattr(router, "moe_statics", None))
    weight, score_bias = weights(inner.weight), getattr(inner, "bias", None)
    score_bias = weight.new_zeros(len(weight)) if score_bias is None else weights(score_bias)
    by_setting = getattr(router, "expert_selection_fn", None)
    sigmoid = (
        kind in SIGMOIDS or by_setting == "sigmoid" or (bias is not None and kind not in SOFTMAX_WITH_BIAS)
    )
    normalised = getattr(router, "norm_topk_prob", kind not in UNNORMALISED)
    groups = getattr(router, "num_group", None) or 1
    if kind == "deepseek_v2" and router.topk_method == "greedy":
        groups = 1
    return Router(
        torch.cat([_with_bias(Affine(weight, score_bias)), *gates]),
        routed=len(weight),
        chosen=first_part("top_k", router, module),
        shared=shared,
        kind="sigmoid" if sigmoid else "softmax",
        normalised=normalised if sigmoid or by_setting is None else True,
        factor=float(first_part(FACTORS, router, module) or 1.0),
        choice_bias=None if bias is None else weights(bias).flatten().to(weight),
        choice_by_score=kind == "kolibri1",
        groups=groups,
        kept_groups=(getattr(router, "topk_group", None) or 1) if groups > 1 else 1,
        best_in_group=1 if kind == "deepseek_v2" else 2,
    )


def _experts(module: Any, kind: str) -> list[Expert]:
    """Experts from two tensors of all of them, with biases where there are any."""
    up, down = weights(module.gate_up_proj), weights(module.down_proj)
    if kind in BY_COLUMNS:
        up, down = up.mT, down.mT
    bias, out_bias = (getattr(module, f"{name}_proj_bias", None) for name in ("gate_up", "down"))
    bias = up.new_zeros(up.shape[:2]) if bias is None else weights(bias)
    out_bias = down.new_zeros(down.shape[:2]) if out_bias is None else weights(out_bias)
    core = (
        Gated(frozen(module.act_fn))
        if hasattr(module, "act_fn")
        else ClampedGated(module.alpha, module.limit)
    )
    if kind == "gpt_oss":  # gates and values by turns
        up, bias = (torch.cat([x[:, ::2], x[:, 1::2]], dim=1) for x in (up, bias))
    return [
        _expert(Affine(up[e], bias[e]), core, Affine(down[e].contiguous(), out_bias[e]))
        for e in range(len(up))
    ]


def _expert(read: Affine, core: Any, out: Affine) -> Expert:
    return Expert(_with_bias(read), core, out.weight, out.bias)


def _with_bias(read: Affine) -> Tensor:  # [out, 1 + in]
    return torch.cat([read.bias[:, None], read.weight], dim=1)

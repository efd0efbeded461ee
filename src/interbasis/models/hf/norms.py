"""The norms of transformers' models, by what their classes compute."""

from typing import Any

import torch
from torch import nn

from interbasis.models.hf.parts import Norm, weights

OLMO_EPSILON = 1e-5
"""Written into OLMo's layer norm, which has no parameters."""


def norm(module: Any) -> Norm:
    """Of a norm module: a layer norm in one of its forms, else an RMS norm with gain ``weight``."""
    name = type(module).__name__
    if type(module) is nn.LayerNorm:
        return Norm.layer(module)
    if name == "OlmoLayerNorm":
        ones = torch.ones(module.normalized_shape)
        return Norm(ones, torch.zeros_like(ones), OLMO_EPSILON, centred=True)
    gain = weights(module.weight)
    if name == "NemotronLayerNorm1P":
        return Norm(1 + gain, weights(module.bias), module.eps, centred=True)
    if name in ("CohereLayerNorm", "Cohere2LayerNorm"):
        return Norm(gain, torch.zeros_like(gain), module.variance_epsilon, centred=True)
    return Norm.rms(gain, module.variance_epsilon)

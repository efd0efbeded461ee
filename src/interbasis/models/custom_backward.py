"""Whether a module's backward pass is the derivative of what it computes, by finite differences.

`.detach()`, `torch.no_grad`, straight-through rounding, an `autograd.Function` with a backward of its own and
backward hooks change what autograd says and nothing that is computed. With outputs y(x), random weights v
and a random direction d,

    v · (y(x + εd) − y(x − εd)) / 2ε = v · (∂y/∂x) d    up to ε²,

and autograd gives the right side. x are the inputs, or the embeddings where inputs are tokens, moved a little
from the example: numbers of the example may lie exactly at a kink (black pixels before a ReLU without a
bias), where the derivative depends on the side it is taken from.
"""

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from interbasis.models.own_output import converted

STEPS = {torch.float64: (1e-6, 1e-4), torch.float32: (1e-3, 2e-2)}
"""ε in deviations of x, and the relative error allowed, by the shortest type that the module computes in."""
SHARE_MOVED = 0.1
"""Distance of x from the example, in standard deviations of the example."""
ROUNDING = 1e-8
"""Error allowed beside it, of the size of the outputs."""
DRAWS = 2
"""Points and directions that must all differ, since a step may cross a jump."""


@torch.enable_grad()
def has_custom_backward(
    module: nn.Module, example: Tensor, output_number: int = 0, dtype: torch.dtype = torch.float64
) -> bool:
    """Whether autograd's gradients of a module differ from the derivatives of what it computes.

    ``output_number`` is that of the output among all that it returns, ``dtype`` the shortest type that it
    computes in. False where that cannot be said: types shorter than float32, modules that autograd refuses.
    """
    try:
        limits = STEPS[dtype]
        return all(_differs(module, example, output_number, seed, limits) for seed in range(DRAWS))
    except Exception:  # somebody else's code
        return False


def _differs(
    module: nn.Module, example: Tensor, output_number: int, seed: int, limits: tuple[float, float]
) -> bool:
    """Whether the two sides differ at a random point beside the example, in a random direction."""

    def outputs(step: float, *, recorded: bool = False) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """y(x + step · d), x and d; with a graph for autograd where it is recorded."""
        random, directions = torch.Generator().manual_seed(seed), []
        with converted(module, torch.float64):
            inputs = example.double() if example.is_floating_point() else example
            inputs = inputs.detach().clone()
            x = [inputs] if inputs.is_floating_point() else _embeddings(module)
            for tensor in x:
                size = tensor.std().nan_to_num().item() or 1.0
                offset, d = size * torch.randn(2, *tensor.shape, generator=random).to(tensor)
                tensor += SHARE_MOVED * offset + step * d
                tensor.requires_grad_(recorded)
                directions.append(d)
            with torch.set_grad_enabled(recorded):
                copied = inputs + 0 if inputs.is_floating_point() else inputs  # it may compute in place
                return tree_leaves(module(copied))[output_number], x, directions

    step, allowed = limits
    y, x, directions = outputs(0.0, recorded=True)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)).to(y)
    gradients: tuple[Tensor | None, ...] = (None,) * len(x)
    if y.requires_grad:
        gradients = torch.autograd.grad((v * y).sum(), x, allow_unused=True)
    terms = [g * d for g, d in zip(gradients, directions, strict=True) if g is not None]
    along = sum(term.sum().item() for term in terms)
    size = sum(term.square().sum().item() for term in terms) ** 0.5
    above, below = (outputs(sign * step)[0] for sign in (1, -1))
    actual = (v * (above - below)).sum().item() / (2 * step)
    most = allowed * max(abs(actual), size) + ROUNDING * (v * above).norm().item()
    return abs(actual - along) > most


def _embeddings(module: nn.Module) -> list[Tensor]:
    """Weights that tokens are embedded with; all weights where the module has no `nn.Embedding`."""
    embeddings = [part.weight for part in module.modules() if isinstance(part, nn.Embedding)]
    weights = embeddings or [p for p in module.parameters() if p.is_floating_point()]
    return list({id(weight): weight for weight in weights}.values())

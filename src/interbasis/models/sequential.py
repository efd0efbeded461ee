"""PyTorch MLPs as networks: any `nn.Sequential` of linear layers and activations.

Node layers are the inputs of each Linear (`linear.0`, `linear.1`, …) and the output. The section that
begins at a Linear is F(f) = act(W f + b): read = [b W], core = act, write = [0; I]. What comes before the
first Linear is the prefix, whatever it is.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from interbasis.cores import Core, Elementwise, General, Linear
from interbasis.errors import InterbasisError
from interbasis.models.matrices import changed_copy
from interbasis.network import Network, NodeLayer, Prefix, Section, with_constant

ELEMENTWISE = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Softplus,
    nn.Softsign, nn.Mish, nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.LogSigmoid, nn.Tanhshrink,
    nn.Softshrink,
)  # fmt: skip
NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.AlphaDropout)


class Rows(Prefix):
    """Everything before the first Linear (flattening, say), then the constant in front."""

    def __init__(self, modules: list[nn.Module], width: int, dtype: torch.dtype, flat: bool = False):
        super().__init__()
        self.steps = nn.Sequential(*modules)
        self.width = width
        self.flat = flat
        self.like = nn.Buffer(torch.zeros((), dtype=dtype))

    def has_positions(self, inputs: Tensor) -> bool:
        return self._run(inputs[:1]).ndim == 3

    def forward(self, inputs: Tensor) -> Tensor:
        f = self._run(inputs)
        if f.shape[-1] != self.width or f.ndim not in (2, 3):
            raise InterbasisError(
                f"expected inputs of shape [samples, {self.width}] (or [samples, positions, {self.width}]) "
                f"at the first linear layer, received {list(f.shape)}; add an nn.Flatten if they are images"
            )
        if f.ndim == 3 and self.flat:
            raise InterbasisError(
                "this module flattens after a linear layer, which mixes positions and is not supported; "
                "expected inputs without positions, or the nn.Flatten before the first nn.Linear"
            )
        return with_constant(f if f.ndim == 3 else f[:, None])

    def _run(self, inputs: Tensor) -> Tensor:
        embeds = any(isinstance(module, nn.Embedding) for module in self.steps.modules())
        return self.steps(inputs if embeds and not inputs.is_floating_point() else inputs.to(self.like.dtype))


def from_torch(module: nn.Module, *, general: bool = False) -> Network:
    """The network of a PyTorch MLP, as it computes now in evaluation mode (dropout does nothing).

    Modules that are neither linear nor known to act elementwise are refused by name, or, with
    ``general=True``, handled by automatic differentiation: exact too, but slower.
    """
    modules = [(name, m) for name, m in _flatten(module, "") if not _computes_as(m, *NOTHING)]
    starts = [i for i, (_, m) in enumerate(modules) if _computes_as(m, nn.Linear)]
    if not starts:
        raise InterbasisError(
            f"expected an nn.Sequential with at least one nn.Linear, received {type(module).__name__}; "
            "put the layers of a module of your own into an nn.Sequential"
        )
    linears = [cast(nn.Linear, modules[i][1]) for i in starts]
    nodes = [NodeLayer(f"linear.{k}", linear.in_features + 1) for k, linear in enumerate(linears)]
    sections: list[Section] = []
    for k, (start, stop) in enumerate(zip(starts, [*starts[1:], len(modules)], strict=True)):
        core, at_zero = _core(modules[start + 1 : stop], linears[k], general)
        target = nodes[k + 1] if k + 1 < len(nodes) else NodeLayer("output", len(at_zero) + 1)
        if target.width != len(at_zero) + 1:
            raise InterbasisError(
                f"{modules[start][0]} and what follows give {len(at_zero)} values, but {modules[stop][0]} "
                f"takes {target.width - 1}"
            )
        sections.append(_section(linears[k], core, at_zero, nodes[k], target))
    before = [_snapshot(m) for _, m in modules[: starts[0]]]
    flat = any(_is_late_flatten(m) for _, m in modules[starts[0] :])
    prefix = Rows(before, linears[0].in_features, linears[0].weight.dtype, flat)
    return Network(
        prefix,
        tuple(sections),
        family="mlp",
        remake=lambda change: from_torch(changed_copy(module, change), general=general),
    )


def _flatten(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if _computes_as(module, nn.Sequential):
        for child, part in module._modules.items():  # named_children() would skip a module used twice
            assert part is not None
            yield from _flatten(part, f"{name}.{child}" if name else child)
    else:
        yield name or type(module).__name__, module


def _computes_as(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether it is one of these and has no forward of its own, which a subclass may."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)


def _snapshot(module: nn.Module) -> nn.Module:
    """A copy as it computes in evaluation mode, never in place: its input is needed afterwards."""
    module = deepcopy(module).eval()
    for part in module.modules():
        if getattr(part, "inplace", False):
            setattr(part, "inplace", False)  # noqa: B010
    return module


@torch.no_grad()
def _core(modules: list[tuple[str, nn.Module]], linear: nn.Linear, general: bool) -> tuple[Core, Tensor]:
    """The non-linearity between one Linear and the next, and what it would make of 0."""
    modules = [(n, m) for n, m in modules if not _is_late_flatten(m)]
    strange = [(n, m) for n, m in modules if not _is_elementwise(m)]
    if strange and not general:
        name, module = strange[0]
        raise InterbasisError(
            f"module {name!r} is a {type(module).__name__}, which has no closed form here; pass "
            "general=True to treat it by automatic differentiation (exact, slower)"
        )
    nothing = torch.zeros_like(linear.weight[:, 0])  # [out_features]
    if not modules:
        return Linear(), nothing
    steps = [_snapshot(m) for _, m in modules]
    function = steps[0] if len(steps) == 1 else nn.Sequential(*steps)
    if not strange:
        return Elementwise(function), function(nothing)
    if not _acts_on_rows(function, nothing):
        raise InterbasisError(
            f"module {strange[0][0]!r} ({type(strange[0][1]).__name__}) does not treat its last dimension "
            "row by row, so samples or positions would mix; use dim=-1, or put it before the first nn.Linear"
        )
    centred = _Centred(function)
    name = " → ".join(type(m).__name__ for m in steps)
    return General(centred, name, mixes_positions=False), centred.at_zero(nothing)


def _is_late_flatten(module: nn.Module) -> bool:
    """After a Linear rows are flat already and a Flatten does nothing (`Rows` refuses positions)."""
    return isinstance(module, nn.Flatten) and _computes_as(module, nn.Flatten) and module.start_dim == 1


def _is_elementwise(module: nn.Module) -> bool:
    if isinstance(module, nn.PReLU):
        return _computes_as(module, nn.PReLU) and module.num_parameters == 1
    return _computes_as(module, *ELEMENTWISE)


class _Centred(nn.Module):
    """function(u) − function(0), so that 0 is mapped to 0; the function acts on rows."""

    def __init__(self, function: nn.Module):
        super().__init__()
        self.function = function

    def at_zero(self, like: Tensor) -> Tensor:  # [..., c_in] -> [c_out]
        return self.function(like.new_zeros(1, like.shape[-1]))[0]

    def forward(self, u: Tensor) -> Tensor:  # [n, T, c_in] -> [n, T, c_out]
        return self.function(u.flatten(0, 1)).unflatten(0, u.shape[:2]) - self.at_zero(u)


def _acts_on_rows(function: nn.Module, like: Tensor) -> bool:
    """Whether [n, c] is treated row by row, and [n, T, c] as n·T rows."""
    function = deepcopy(function).double()
    rows = torch.linspace(-9, 9, 6 * len(like), dtype=torch.float64, device=like.device).sin().view(6, -1)
    try:
        one_by_one = torch.cat([function(row[None]) for row in rows])
        sequences = function(rows.view(2, 3, -1)).flatten(0, 1)
        return torch.allclose(function(rows), one_by_one) and torch.allclose(sequences, one_by_one)
    except (RuntimeError, ValueError, IndexError):
        return False


@torch.no_grad()
def _section(linear: nn.Linear, core: Core, at_zero: Tensor, source: NodeLayer, target: NodeLayer) -> Section:
    weight = linear.weight.detach().clone()
    bias = torch.zeros_like(weight[:, 0]) if linear.bias is None else linear.bias.detach().clone()
    affine = torch.cat([bias[:, None], weight], dim=1)  # [out, in + 1]
    skip = weight.new_zeros(target.width, source.width)
    skip[0, 0] = 1
    if isinstance(core, Linear):
        skip[1:] = affine
        return Section(source, target, skip, affine[:0], skip[:, :0], core)
    skip[1:, 0] = at_zero
    write = torch.eye(target.width, dtype=weight.dtype, device=weight.device)[:, 1:]
    return Section(source, target, skip, affine, write, core)

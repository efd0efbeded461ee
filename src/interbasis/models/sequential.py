"""PyTorch MLPs as networks: any `nn.Sequential` of linear layers and activations.

Node layers are the inputs of each Linear (`linear.0`, `linear.1`, …) and the output. The section that
begins at a Linear is F(f) = act(W f + b): read = [b W], core = act, write = [0; I]. What comes before the
first Linear is the prefix, whatever it is.

The network's outputs are compared with the module's own on an example, since hooks and the like are not seen
in weights. Both are run in float64, in which a module of any dtype differs from its network by rounding
alone, and the example has rows of different sizes, so that a hook that clips or saturates shows.
"""

from collections.abc import Iterator
from copy import deepcopy
from math import prod
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn

from interbasis.base.errors import Explained, InterbasisError
from interbasis.models.own_output import evaluation_mode, own_output, parts_with_hooks
from interbasis.network.cores import Core, Elementwise, General, Linear
from interbasis.network.cores.activations import bare
from interbasis.network.cores.per_feature import PerFeatureNorm, PerFeaturePReLU
from interbasis.network.network import Network, NodeLayer, Section
from interbasis.network.prefix import Prefix, with_constant

ELEMENTWISE = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Softplus,
    nn.Softsign, nn.Mish, nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.LogSigmoid, nn.Tanhshrink,
    nn.Softshrink,
)  # fmt: skip
CLOSED_FORMS = (nn.PReLU, *ELEMENTWISE)
IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.AlphaDropout)
"""Modules that return their input in evaluation mode."""
COMPUTING = (nn.modules.conv._ConvNd, nn.modules.rnn.RNNBase, nn.MultiheadAttention, nn.Transformer)
"""Layers that are sections of their own where they come first (`traced/`)."""
FAMILY = "mlp"
MAX_RELATIVE_ERRORS = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest error of outputs, of the largest of their row: in float64, where a module may round to float32 on
its way, and in float32, for what does not run in float64 (a module with tensors that it does not tell of)."""
INPUT_SIZES = (0.1, 1.0, 10.0, 100.0)
SAMPLES = 12
POSITIONS = 3
MAX_IMAGE_SIDE = 64
"""Images of 1 to so many pixels a side are tried where convolutions come first."""


class RowPrefix(Prefix):
    """Everything before the first Linear (flattening, say), then the constant in front.

    ``rows_only`` says why inputs cannot have positions, where they cannot.
    """

    def __init__(self, modules: list[nn.Module], width: int, dtype: torch.dtype, rows_only: str = ""):
        super().__init__()
        self.steps = nn.Sequential(*modules)
        self.width = width
        self.rows_only = rows_only
        self.like = nn.Buffer(torch.zeros((), dtype=dtype))

    def _get_name(self) -> str:
        return "Rows"  # part of the fingerprints of stored graphs

    def has_positions(self, inputs: Tensor) -> bool:
        return self.run(inputs[:1]).ndim == 3

    def forward(self, inputs: Tensor) -> Tensor:
        f = self.run(inputs)
        if f.shape[-1] != self.width or f.ndim not in (2, 3):
            raise InterbasisError(
                f"expected inputs of shape [samples, {self.width}] (or [samples, positions, {self.width}]) "
                f"at the first linear layer, received {list(f.shape)}; add an nn.Flatten if they are images"
            )
        if f.ndim == 3 and self.rows_only:
            raise InterbasisError(
                f"{self.rows_only}; expected [samples, {self.width}] at the first linear layer, received "
                f"{list(f.shape)}"
            )
        return with_constant(f if f.ndim == 3 else f[:, None])

    def run(self, inputs: Tensor) -> Tensor:
        """Input of the first Linear."""
        return self.steps(self.converted(inputs))

    def converted(self, inputs: Tensor) -> Tensor:
        """Inputs in the network's dtype, but for tokens that are to be embedded."""
        embeds = any(isinstance(module, nn.Embedding) for module in self.steps.modules())
        return inputs if embeds and not inputs.is_floating_point() else inputs.to(self.like.dtype)


def is_plain(module: nn.Module) -> bool:
    """Whether a module is an `nn.Sequential` with nothing that computes before its first linear layer."""
    if not _computes_as(module, nn.Sequential):
        return False
    parts = [part for _, part in _flatten(module, "") if not _computes_as(part, *IDENTITIES)]
    first = next((k for k, part in enumerate(parts) if _computes_as(part, nn.Linear)), None)
    return first is not None and not any(isinstance(part, COMPUTING) for part in parts[:first])


def from_sequential(module: nn.Module, example: Tensor | None, *, general: bool) -> Network:
    """Network of an `nn.Sequential`; its outputs are compared with the module's own."""
    with evaluation_mode(module):
        network = _network(module, general)
    _check_agreement(network, module, example)
    return network


def _network(module: nn.Module, general: bool) -> Network:
    modules = [(name, m) for name, m in _flatten(module, "") if not _computes_as(m, *IDENTITIES)]
    starts = [i for i, (_, m) in enumerate(modules) if _computes_as(m, nn.Linear)]
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
    rows_only = next(filter(None, (_rows_only(name, m) for name, m in modules[starts[0] :])), "")
    prefix = RowPrefix(before, linears[0].in_features, linears[0].weight.dtype, rows_only)
    return Network(prefix, tuple(sections), family=FAMILY)


def _flatten(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if _computes_as(module, nn.Sequential):
        for child, part in module._modules.items():  # named_children() would skip a module used twice
            assert part is not None
            yield from _flatten(part, f"{name}.{child}" if name else child)
    else:
        yield name or type(module).__name__, module


def _computes_as(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of one of these kinds and has no forward of its own, which a subclass may."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)


def _snapshot(module: nn.Module) -> nn.Module:
    """A copy as it computes in evaluation mode, never in place: its input is needed afterwards."""
    module = deepcopy(module).eval()
    for part in module.modules():
        part._backward_hooks.clear()  # they would change derivatives, though not what is computed
        part._backward_pre_hooks.clear()
        if getattr(part, "inplace", False):
            setattr(part, "inplace", False)  # noqa: B010
    return module


@torch.no_grad()
def _core(modules: list[tuple[str, nn.Module]], linear: nn.Linear, general: bool) -> tuple[Core, Tensor]:
    """The non-linearity between one Linear and the next, and its value at 0."""
    modules = [(n, m) for n, m in modules if not _is_late_flatten(m)]
    zeros = torch.zeros_like(linear.weight[:, 0])  # [out_features]
    for name, module in modules:
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise InterbasisError(
                f"module {name!r} is a {type(module).__name__} without running statistics, which takes those "
                "of the batch in evaluation, too, so samples would mix; expected track_running_stats=True"
            )
    mixing = [(n, m) for n, m in modules if not _is_per_feature(m) and not _computes_as(m, *CLOSED_FORMS)]
    if mixing and not general:
        name, module = mixing[0]
        raise InterbasisError(
            f"module {name!r} is a {type(module).__name__}, which has no closed form here; pass "
            "general=True to treat it by automatic differentiation (exact, slower)"
        )
    if not modules:
        return Linear(), zeros
    steps: list[nn.Module] = []
    for _, module in modules:
        per_feature: Any = PerFeaturePReLU if isinstance(module, nn.PReLU) else PerFeatureNorm
        steps.append(per_feature(module) if _is_per_feature(module) else _snapshot(module))
    function = steps[0] if len(steps) == 1 else nn.Sequential(*steps)
    if not mixing:
        names = ", ".join(f"{name!r} ({type(module).__name__})" for name, module in modules)
        expected = f"modules that take the {len(zeros)} values of the linear layer before them"
        with Explained(f"expected {expected}, received {names}", RuntimeError):
            return Elementwise(function), bare(function)(zeros)
    if not _acts_on_rows(function, zeros):
        raise InterbasisError(
            f"module {mixing[0][0]!r} ({type(mixing[0][1]).__name__}) does not treat its last dimension "
            "row by row, so samples or positions would mix; use dim=-1, or put it before the first nn.Linear"
        )
    centred = _Centred(function)
    name = " → ".join(type(m).__name__ for m in steps)
    return General(centred, name, mixes_positions=False), centred.at_zero(zeros)


def _is_late_flatten(module: nn.Module) -> bool:
    """Whether a module is a Flatten, which does nothing after a Linear (`RowPrefix` refuses positions)."""
    return isinstance(module, nn.Flatten) and _computes_as(module, nn.Flatten) and module.start_dim == 1


def _is_per_feature(module: nn.Module) -> TypeGuard[nn.PReLU | nn.BatchNorm1d]:
    """Whether each feature has a function of its own, the features being dimension 1."""
    if isinstance(module, nn.PReLU):
        return _computes_as(module, nn.PReLU) and module.num_parameters > 1
    return isinstance(module, nn.BatchNorm1d) and _computes_as(module, nn.BatchNorm1d)


def _rows_only(name: str, module: nn.Module) -> str:
    """Reason why inputs must not have positions, in words, for a module after the first Linear."""
    if _is_late_flatten(module):
        return (
            "this module flattens after a linear layer, which mixes positions and is not supported; give "
            "inputs without positions, or put the nn.Flatten before the first nn.Linear"
        )
    if _is_per_feature(module):
        return (
            f"module {name!r} is a {type(module).__name__}, which has its features in dimension 1, where "
            "inputs with positions have the positions; give inputs without positions"
        )
    return ""


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
        separate = torch.cat([function(row[None]) for row in rows])
        sequences = function(rows.view(2, 3, -1)).flatten(0, 1)
        return torch.allclose(function(rows), separate) and torch.allclose(sequences, separate)
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


def _check_agreement(network: Network, module: nn.Module, example: Tensor | None) -> None:
    """Compare outputs; where no inputs are known to do that with, refuse what hooks may have changed."""
    inputs = random_inputs(cast(RowPrefix, network.prefix)) if example is None else example
    error = None if inputs is None else _output_error(network, module, inputs)
    if error is None and example is not None:
        raise InterbasisError(
            f"the module and its network could not be compared on the example {list(example.shape)}: the "
            "module itself does not take it, or returns nothing finite; expected a batch of its inputs"
        )
    hooked = ", ".join(parts_with_hooks(module))
    if error is None and hooked:
        raise InterbasisError(
            f"there are forward hooks on {hooked}, so the module may compute something other than its layers "
            "say, and no inputs are known to compare on; pass some, from_torch(module, example), or remove "
            "the hooks"
        )
    if error:
        raise InterbasisError(
            f"the module's outputs are off by {error:.1e} of the largest from what its layers say"
            f"{f' (there are forward hooks on {hooked})' if hooked else ''}; remove hooks or write what they "
            "do as modules, and make an old-style weight_norm a torch.nn.utils.parametrizations.weight_norm"
        )


def _output_error(network: Network, module: nn.Module, inputs: Tensor) -> float | None:
    """Relative error of the outputs where that is more than allowed, else 0; None where it is unknown."""
    for dtype, allowed in MAX_RELATIVE_ERRORS.items():
        converted = cast(RowPrefix, network.prefix).converted(inputs.to(network.device))
        converted = converted.to(dtype) if converted.is_floating_point() else converted
        try:
            with torch.no_grad():
                outputs = network.to(dtype)(converted)
                expected = own_output(module, converted.clone(), dtype)  # it may compute in place
        except InterbasisError:
            raise
        except Exception:  # somebody else's code
            continue
        if not isinstance(expected, Tensor) or expected.shape != outputs.shape:
            return float("inf")
        error = _largest_error(outputs.flatten(1), expected.flatten(1))
        return error if error is None or error > allowed else 0.0
    return None


def _largest_error(outputs: Tensor, expected: Tensor) -> float | None:  # [n, outputs] each
    """Largest relative error of rows with finite outputs; infinite where only one of the two is finite.

    Rows whose outputs are small beside those of the others (a saturated sigmoid's) are measured by them.
    """
    finite = expected.isfinite().all(1)
    if not torch.equal(finite, outputs.isfinite().all(1)):
        return float("inf")
    if not finite.any():
        return None
    outputs, expected = outputs[finite], expected[finite]
    difference = (outputs - expected).abs().amax(1)
    size = expected.abs().amax(1)
    size = size.clamp_min(max(size.median().item(), torch.finfo(size.dtype).tiny))
    return (difference / size).max().item()


def random_inputs(prefix: RowPrefix) -> Tensor | None:
    """Random inputs that a prefix takes; None where there are none."""
    generator = torch.Generator().manual_seed(0)
    for inputs in _candidates(prefix, generator):
        try:
            with torch.no_grad():
                rows = prefix(inputs.to(prefix.like.device))
        except Exception:  # somebody else's code
            continue
        if rows.isfinite().all():
            return inputs
    return None


def _candidates(prefix: RowPrefix, generator: torch.Generator) -> Iterator[Tensor]:
    kinds = (nn.Embedding, nn.Unflatten, nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm)
    first = next((part for part in prefix.steps.modules() if isinstance(part, kinds)), None)
    if isinstance(first, nn.Embedding):
        for positions in (prefix.width // first.embedding_dim, POSITIONS):
            yield torch.randint(first.num_embeddings, (SAMPLES, positions), generator=generator)
        yield torch.randint(first.num_embeddings, (SAMPLES,), generator=generator)
        return
    yield _random((prefix.width,), generator)
    if isinstance(first, nn.Linear):  # one with a forward of its own, which is no section
        yield _random((first.in_features,), generator)
    elif isinstance(first, nn.Unflatten):
        yield _random((prod(first.unflattened_size),), generator)
    elif first is not None:
        for shape in _images(prefix, first):
            yield _random(shape, generator)


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    sizes = torch.tensor(INPUT_SIZES).repeat(SAMPLES // len(INPUT_SIZES)).view(-1, *[1] * len(shape))
    return sizes * torch.randn(SAMPLES, *shape, generator=generator)


def _images(prefix: RowPrefix, first: nn.Module) -> Iterator[tuple[int, ...]]:
    """Shapes [channels, side, …] of the first side that fits the first Linear."""
    channels = getattr(first, "in_channels", getattr(first, "num_features", 1))
    dimensions = next((d for d in (1, 2, 3) if type(first).__name__.endswith(f"{d}d")), 2)
    for side in range(1, MAX_IMAGE_SIDE + 1):
        shape = (channels, *[side] * dimensions)
        try:
            with torch.no_grad():
                width = prefix.run(torch.zeros(1, *shape, device=prefix.like.device)).shape[-1]
        except Exception:  # somebody else's code
            continue
        if width == prefix.width:
            yield shape
        if width >= prefix.width:
            return

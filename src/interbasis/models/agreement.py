"""Does a network that was read from a module compute what the module computes? Compared on an example.

Both are run in float64, in which a module of any dtype differs from its network by rounding alone, and the
example has rows of different sizes, so that a hook that clips or saturates shows.
"""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.models.own_output import own_output, parts_with_hooks
from interbasis.network.network import Network

if TYPE_CHECKING:
    from interbasis.models.sequential import Rows

COMPARED_IN = {torch.float64: 1e-6, torch.float32: 1e-4}
"""What outputs may be off by, of the largest of their row: in float64, where a module may round to float32 on
its way, and in float32, for what does not run in float64 (a module with tensors that it does not tell of)."""
SIZES = (0.1, 1.0, 10.0, 100.0)
SAMPLES = 12
POSITIONS = 3
LARGEST_IMAGE = 64
"""Images of 1 to so many pixels a side are tried where convolutions come first."""


def check_agreement(network: Network, prefix: "Rows", module: nn.Module, example: Tensor | None) -> None:
    """Compare outputs; where no inputs are known to do that with, refuse what hooks may have changed."""
    inputs = made_up_inputs(prefix) if example is None else example
    error = None if inputs is None else _error(network, prefix, module, inputs)
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


def _error(network: Network, prefix: "Rows", module: nn.Module, inputs: Tensor) -> float | None:
    """How far outputs are off where that is more than allowed, else 0; None where it cannot be said."""
    for dtype, allowed in COMPARED_IN.items():
        taken = prefix.as_taken(inputs.to(network.device))
        taken = taken.to(dtype) if taken.is_floating_point() else taken
        try:
            with torch.no_grad():
                outputs = network.to(dtype)(taken)
                expected = own_output(module, taken.clone(), dtype)  # it may compute in place
        except InterbasisError:
            raise
        except Exception:  # somebody else's code
            continue
        if not isinstance(expected, Tensor) or expected.shape != outputs.shape:
            return float("inf")
        error = _largest(outputs.flatten(1), expected.flatten(1))
        return error if error is None or error > allowed else 0.0
    return None


def _largest(outputs: Tensor, expected: Tensor) -> float | None:  # [n, outputs] each
    """Of the rows with finite outputs; infinite where only one of the two is finite.

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


def made_up_inputs(prefix: "Rows") -> Tensor | None:
    """Random inputs that what comes before the first Linear takes; None where none are found."""
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


def _candidates(prefix: "Rows", generator: torch.Generator) -> Iterator[Tensor]:
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
    sizes = torch.tensor(SIZES).repeat(SAMPLES // len(SIZES)).view(-1, *[1] * len(shape))
    return sizes * torch.randn(SAMPLES, *shape, generator=generator)


def _images(prefix: "Rows", first: nn.Module) -> Iterator[tuple[int, ...]]:
    """Shapes [channels, side, …] of the first side that fits the first Linear."""
    channels = getattr(first, "in_channels", getattr(first, "num_features", 1))
    dimensions = next((d for d in (1, 2, 3) if type(first).__name__.endswith(f"{d}d")), 2)
    for side in range(1, LARGEST_IMAGE + 1):
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

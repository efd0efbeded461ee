"""`from_torch`: a module to a network.

A plain `nn.Sequential` of linear layers and activations needs no example and has the node layers `linear.0`,
`linear.1`, … (`sequential.py`). Everything else is traced on an example (`traced/`).
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.models import sequential
from interbasis.models.custom_backward import has_custom_backward
from interbasis.models.matrices import changed_copy
from interbasis.models.own_output import check_no_global_hooks, check_own_forwards, replaced
from interbasis.network.cores import General
from interbasis.network.network import Change, Network


def from_torch(
    module: nn.Module,
    example: Tensor | None = None,
    *,
    layers: Sequence[str] | None = None,
    general: bool | None = None,
    output: str | int | None = None,
) -> Network:
    """Convert a PyTorch module, as it computes now in evaluation mode (dropout does nothing, batch norms
    fold).

    Derivatives are those of the function that it computes. Where its backward pass says something else
    (``detach``, ``torch.no_grad``, straight-through rounding, an ``autograd.Function`` with a backward of its
    own, backward hooks), that is not used, and a warning says so.

    Args:
        module: Any module of one tensor. A plain `nn.Sequential` of linear layers and activations is read as
            it is; anything else is traced on the example.
        example: A batch of inputs, on which the network's outputs are compared with the module's own.
            Required for all but a plain `nn.Sequential`, where the default is random inputs.
        layers: Names of modules whose inputs are to be the node layers, in order, as ``named_modules`` has
            them; ``"output"`` comes last and may be left out. Default: an input of every layer with weights.
        general: What to do with operations that have no closed form: True takes them by automatic
            differentiation (exact, slower), False refuses them. Default: those of a plain `nn.Sequential` are
            refused, others are taken.
        output: Which tensor is meant where the module returns several: a key of a dictionary, a name of a
            field or a place in a tuple ("logits", 0). Default: the only one.

    Returns:
        The network; ``interbasis show`` lists its sections and what comes before the first node layer.

    Raises:
        InterbasisError: The module cannot be traced or has a part that is not supported, which is named
            with its line, or the network's outputs are not the module's.
    """
    if not isinstance(module, nn.Module):
        raise InterbasisError(f"expected a torch.nn.Module, received {type(module).__name__}")
    check_no_global_hooks()
    check_own_forwards(module)
    if sequential.is_plain(module) and layers is None and output is None:
        network = _from_sequential(module, example, bool(general))
    else:
        network = _traced(module, example, layers, output)
        general_sections = [s for s in network.sections if isinstance(s.core, General)]
        if general is False and general_sections:
            section = general_sections[0]
            raise InterbasisError(
                f"between {section.source.name} and {section.target.name}: {section.core.name} has no "  # type: ignore[attr-defined]
                "closed form; pass general=True to take it by automatic differentiation (exact, slower)"
            )

    def remake(change: Change) -> Network:
        return from_torch(
            changed_copy(module, change), example, layers=layers, general=general, output=output
        )

    kind = type(module)
    name = "" if kind.__module__.startswith("torch.nn.modules.container") else kind.__name__
    return replace(network, remake=remake, name=name)


def _from_sequential(module: nn.Module, example: Tensor | None, general: bool) -> Network:
    """Read a module as it is, but trace one with a backward of its own, which a `General` core would call."""
    network = sequential.from_sequential(module, example, general=general)
    if not any(isinstance(section.core, General) for section in network.sections):
        return network
    assert isinstance(network.prefix, sequential.RowPrefix)
    inputs = sequential.random_inputs(network.prefix) if example is None else example
    if inputs is None or not has_custom_backward(module, inputs):
        return network
    return _traced(module, inputs, None, None)


def _traced(
    module: nn.Module, example: Tensor | None, layers: Sequence[str] | None, output: str | int | None
) -> Network:
    from interbasis.models.traced.load import trace_network

    if example is None:
        raise InterbasisError(
            f"{type(module).__name__} is traced on an example, and none was given; expected a batch of "
            "its inputs, from_torch(module, example)"
        )
    if not isinstance(example, Tensor) or example.ndim < 2:
        received = f"shape {list(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
        raise InterbasisError(
            f"expected an example that is one tensor [samples, …], received {received}; wrap a "
            "module of several inputs in an nn.Module that takes one tensor"
        )
    configs = [getattr(part, "config", None) for part in module.modules()]
    caching = [config for config in configs if getattr(config, "use_cache", False) is True]
    # causal models of transformers would return their keys and values as well
    with replaced(*((config, "use_cache", False) for config in caching)):
        return trace_network(module, example, layers, output)

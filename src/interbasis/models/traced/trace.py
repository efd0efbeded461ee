"""A module as a graph of torch's operations, by torch.export.

torch.export rather than torch.fx's symbolic tracing, for four reasons. One operation has one name: `F.relu`,
`x.relu_()`, `nn.ReLU(inplace=True)` and a hook that calls any of them are all ``aten.relu`` after the graph
is made functional, so that there is one rule for each part. Branches on shapes are taken as the example takes
them, and a branch on data is refused with its line, where symbolic tracing refuses both. Attention modules of
torch need no rule of their own: they arrive as linear maps around ``scaled_dot_product_attention``. And names
of modules and lines of the source come with every operation. Linear maps, convolutions and norms stay whole.

The module is exported as a float64 copy in evaluation mode, with numbers of samples and of positions left
open where the module leaves them open.
"""

import logging
import re
import traceback
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from interbasis.base.errors import Explained, InterbasisError, first_line
from interbasis.models.own_output import evaluation_mode, replaced

SAMPLES = (3, 5, 7, 11, 13)
"""Numbers of samples that are traced: the first that no dimension of the example has."""
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]+\n(?P<code>[^\n]*)')
TRACEBACKS = logging.getLogger("torch._subclasses.fake_tensor")
"""Prints tracebacks of errors that are handled."""
INSTALLED = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]")


@dataclass(frozen=True)
class SourceLocation:
    """Location of an operation in the user's code."""

    callers: tuple[str, ...]
    """Names of the modules that are being called, as `named_modules` has them, the outermost first."""
    source: str
    """file:line and the code there; empty where the trace does not say."""

    @property
    def module(self) -> str:
        """Name of the innermost module; the whole module is ''."""
        return self.callers[-1] if self.callers else ""

    def __str__(self) -> str:
        name = f"in {self.module!r}" if self.module else "in the module's own forward"
        return f"{name} ({self.source})" if self.source else name


@dataclass(frozen=True, eq=False)
class TracedModule:
    """Graph of a module: placeholders for weights and the input, operations in order, one output."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    """Weights, buffers and constants by the name of their placeholder, in float64 where they are real."""
    input: fx.Node
    output: fx.Node
    example: Tensor
    """Inputs that were traced: a prime number of samples, which no other dimension has."""
    output_number: int = 0
    """Number of the output among all tensors that the module returns, nested or not."""

    @property
    def samples(self) -> int:
        return len(self.example)

    @property
    def open_lengths(self) -> bool:
        """Whether the module takes sequences of any length, dimension 1."""
        return len(self.example.shape) > 1 and _is_open(self.input.meta["val"].shape[1])

    @property
    def shortest_dtype(self) -> torch.dtype:
        """Shortest type that the module computes in."""
        values = (node.meta.get("val") for node in self.graph.nodes)
        dtypes = {value.dtype for value in values if isinstance(value, Tensor)}
        short = (torch.bfloat16, torch.float16, torch.float32)
        return next((dtype for dtype in short if dtype in dtypes), torch.float64)

    def evaluate(self, node: fx.Node, inputs: Tensor) -> Any:
        """Compute a node's value for inputs, which may be on the meta device where only shapes matter."""
        values: dict[fx.Node, Any] = {self.input: inputs}

        def value(node: fx.Node) -> Any:
            if node not in values:
                if node.op == "placeholder":
                    values[node] = self.constants[node.name]
                else:
                    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
                    values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            return values[node]

        return value(node)

    def in_groups(self, function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """function(inputs), with as many samples at a time as were traced where their number is fixed."""
        if _is_open(self.input.meta["val"].shape[0]) or len(inputs) == self.samples:
            return function(inputs)
        results = []
        for group in inputs.split(self.samples):
            padding = group[-1:].expand(self.samples - len(group), *group.shape[1:])
            results.append(function(torch.cat([group, padding]))[: len(group)])
        return torch.cat(results)


def _is_open(size: int | torch.SymInt) -> bool:
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None


@torch.no_grad()
def trace(module: nn.Module, example: Tensor, output: str | int | None = None) -> TracedModule:
    """Export a float64 copy in evaluation mode; an error names the line that could not be traced.

    ``output`` says which is meant where the module returns several tensors.
    """
    problem = f"{type(module).__name__} could not be copied to be traced"
    remedy = "expected a module that copy.deepcopy takes"
    with evaluation_mode(module), Explained(problem, Exception, remedy=remedy):
        copy = deepcopy(module).double().eval()
    given = example.shape
    # a prime number of samples, which no other dimension has, so that the samples can be told apart
    samples = next(n for n in SAMPLES if n not in example.shape[1:])
    example = torch.cat([example] * -(-samples // len(example)))[:samples].clone()
    example = example.double() if example.is_floating_point() else example
    try:
        program = _export(copy, example)
    except InterbasisError:
        raise
    except Exception as error:  # somebody else's code
        if problem := _refusal(copy, example):
            raise InterbasisError(
                f"{type(module).__name__} does not take the example, of shape {list(given)}: {problem}; "
                "expected a batch of its inputs, [samples, …]"
            ) from None
        raise _untraceable(module, error) from error
    return _from_program(program, example, output)


def _refusal(module: nn.Module, example: Tensor) -> str:
    """The first line of the error that a module itself raises on the example; empty where it raises none."""
    try:
        with torch.no_grad():
            module(example)
    except Exception as error:  # somebody else's code
        return first_line(error)
    return ""


def _export(module: nn.Module, example: Tensor) -> ExportedProgram:
    """Export with as many open dimensions as the module allows: samples and positions, samples alone, none.

    Dimension 1 of images is their channels, whose number is not open.
    """
    errors = []
    for dimensions in (2, 1, 0) if example.ndim <= 3 else (1, 0):
        shapes = {k: Dim.AUTO if k < dimensions else Dim.STATIC for k in range(example.ndim)}
        try:
            with warnings.catch_warnings(), replaced((TRACEBACKS, "disabled", True)):
                warnings.simplefilter("ignore")
                program = export(module, (example,), dynamic_shapes=(shapes,), strict=False)
                return program.run_decompositions({})
        except Exception as error:  # somebody else's code
            errors.append(error)
    raise errors[0]


def _from_program(program: ExportedProgram, example: Tensor, output: str | int | None) -> TracedModule:
    signature, constants, inputs = program.graph_signature, {}, []
    for spec in signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(spec.arg.name)
            continue
        tensors = program.constants if spec.target in program.constants else program.state_dict
        constants[spec.arg.name] = tensors[spec.target or ""].detach()
    nodes = {node.name: node for node in program.graph.nodes}
    results = [spec.arg for spec in signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    number = _output_number(program, results, output)
    ends = nodes[inputs[0]], nodes[results[number].name]
    return TracedModule(program.graph, constants, *ends, example, number)


def _output_number(program: ExportedProgram, results: Sequence[object], output: str | int | None) -> int:
    """Number of the tensor that is meant among all results, by key, name of a field or place in a tuple."""
    spec, names = program.call_spec.out_spec, [""]
    if spec is not None:
        leaves: Any = tree_flatten_with_path(tree_unflatten(range(spec.num_leaves), spec))[0]
        names = [".".join(str(*astuple(key)) for key in path) for path, _ in leaves]
    tensors = {name: k for k, name in enumerate(names) if isinstance(results[k], TensorArgument)}
    if output is None and len(tensors) == 1:
        return next(iter(tensors.values()))
    if str(output) in tensors:
        return tensors[str(output)]
    if not tensors:
        raise InterbasisError("the module returns no tensor; expected one")
    first = next(iter(tensors))
    remedy = f"output={int(first) if first.isdecimal() else first!r}"
    listed = ", ".join(name or "itself" for name in tensors)
    if output is None:
        raise InterbasisError(
            f"the module returns {len(tensors)} tensors ({listed}), and a network has one; choose it with "
            f"from_torch(module, example, {remedy})"
        )
    raise InterbasisError(f"the module returns no tensor {output!r}; expected one of {listed}")


def location(node: fx.Node) -> SourceLocation:
    """The modules that call an operation, and the last line of the user's own code."""
    names = (str(name) for name, _ in (node.meta.get("nn_module_stack") or {}).values())
    return SourceLocation(tuple(filter(None, names)), _last_line(node.meta.get("stack_trace") or ""))


def _last_line(stack: str) -> str:
    """The innermost line of a stack that is not an installed package's, else the innermost of all."""
    frames = list(FRAME.finditer(stack))
    frames = [frame for frame in frames if not INSTALLED.search(frame["file"])] or frames
    return _line(*frames[-1].groups()) if frames else ""


def _line(file: str, number: str | int | None, code: str | None) -> str:
    return f"{Path(file).name}:{number}: {(code or '').strip()}"


def _untraceable(module: nn.Module, error: Exception) -> InterbasisError:
    """Error that names the innermost line of the user's code in the traceback, which ends in torch's."""
    library = str(Path(__file__).parents[2]), "<"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not INSTALLED.search(frame.filename) and not frame.filename.startswith(library)
    ]
    last = frames[-1] if frames else None
    place = _line(last.filename, last.lineno, last.line) if last else _last_line(str(error))
    text, kind = str(error).lower(), type(error).__name__
    about_data = "data-dependent" in text or kind == "GuardOnDataDependentSymNode"
    reason = "a branch or a number depends on the data" if about_data else first_line(error)
    return InterbasisError(
        f"{type(module).__name__} could not be traced{f' at {place}' if place else ''}: {reason}; expected a "
        "forward whose operations are the same for all inputs of a shape"
    )

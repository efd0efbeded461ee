"""A network as a chain of sections between node layers.

Every section has the shape *skip + write ∘ core ∘ read*,

    F(f) = P f + B · core(A f),

where P, A, B are constant matrices, biases are folded into them (the activation f carries a constant 1 in
front), and only the small core is non-linear. Rewritten so, a network computes what it computed before.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from interbasis.base.devices import near_sums, sums_device
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Dtype
from interbasis.network.attributions import (
    AttributionBlock,
    SignedTokens,
    signed_attributions,
    token_attributions,
)
from interbasis.network.chain import SectionChain
from interbasis.network.cores import (
    ClosedFormSquares,
    Core,
    Counted,
    Experts,
    PassCore,
    SamplesQueries,
    StatisticsCore,
    Sums,
    take_positions,
)
from interbasis.network.cores.squares import Squares
from interbasis.network.hooks import node_layer
from interbasis.network.masked import masked_pass
from interbasis.network.prefix import Prefix
from interbasis.network.prefix import with_constant as with_constant
from interbasis.network.section_jacobian import DenseJacobian, SectionJacobian
from interbasis.network.structured_matmul import adder, applier, transposed_applier
from interbasis.network.window import Grid
from interbasis.numerics.integration import Rule

Change = Callable[[Tensor], Tensor]
"""Function of a weight matrix that keeps its shape."""

ALIGNED_FEATURES = 16
"""`Section.aligned` has a multiple of so many features: rows of products then begin on a cache line, and
large ones take a third less time."""
MIN_ALIGNED_WIDTH = 256
"""Fewer features are left as they are."""


@dataclass(frozen=True)
class NodeLayer:
    """A cut through the network: the concatenation of every stream that crosses it."""

    name: str
    width: int
    """Number of coordinates, the constant among them where there is one."""
    constant: bool = True
    """Whether coordinate 0 is the constant 1."""
    isolated: int = 0
    """Coordinates after the constant that are features of their own, as a layer norm's variance is: they take
    part in no eigendecomposition."""
    grid: Grid | None = None
    """The shape of its positions where they are pixels; () is one position, None a sequence of any length."""

    @property
    def first_coordinate(self) -> int:
        """The first coordinate after the constant."""
        return int(self.constant)


class LayerMap(ABC):
    """A map from one node layer to the next; after the last of them it need not be a `Section`."""

    source: NodeLayer
    target: NodeLayer
    last_only: bool = False
    """Whether only the last position comes out."""
    reads_per_position: bool = True
    """Whether skip and read-outs at a position read the input there alone, not a stencil of positions."""
    stored_block: int | None = None
    """Number of the block of a file that the matrices are read from when used; None if they are in memory."""

    @abstractmethod
    def __call__(self, f: Tensor) -> Tensor: ...  # [n, T, d_in] -> [n, S, d_out]

    def direct(self, f: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:  # [d_in], [..., d_in]
        """Return f and small changes of it along the direct path, which no core bends: derivatives here."""

        def once(f: Tensor) -> Tensor:
            return self(f[None, None])[0, 0]

        changes = moved.reshape(-1, len(f)).to(f)
        pushed = [torch.autograd.functional.jvp(once, f, change)[1] for change in changes]
        return once(f), torch.stack(pushed).view(*moved.shape[:-1], -1)

    @property
    def one_by_one(self) -> bool:
        """Whether every output depends on the input of the same number alone."""
        return False

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """All weights."""

    @abstractmethod
    def to(self, *args: Any, **kwargs: Any) -> "LayerMap":
        """A copy in another dtype or on another device."""


class Shapes(NamedTuple):
    """Shapes of the matrices P, A and B of a section, which are known without the matrices."""

    skip: tuple[int, ...]  # (d_out, d_in)
    read: tuple[int, ...]  # (c_in, d_in)
    write: tuple[int, ...]  # (d_out, c_out)


@dataclass(frozen=True, eq=False)
class Section(LayerMap):
    """The map between two neighbouring node layers, F(f) = P f + B · core(A f), with F(0) = 0.

    It works in the network's own coordinates or, after `in_basis`, in those of any pair of bases.
    """

    source: NodeLayer
    target: NodeLayer
    skip: Tensor  # P [d_out, d_in]
    read: Tensor  # A [c_in, d_in]
    write: Tensor  # B [d_out, c_out]
    core: Core
    last_only: bool = False
    """Whether only the last position comes out."""

    def __repr__(self) -> str:
        (d_out, d_in), last = self.shapes.skip, ", last position" if self.last_only else ""
        return f"Section({self.source.name} → {self.target.name}: {self.core}, {d_in} → {d_out}{last})"

    def __call__(self, f: Tensor) -> Tensor:  # [n, T, d_in] -> [n, S, d_out]
        return self.from_read_outs(f, self.read_outs(f))

    def read_outs(self, f: Tensor) -> Tensor:  # [n, T, d_in] -> [n, T, c_in]
        """u = A f."""
        return self._apply_read(f)

    def from_read_outs(self, f: Tensor, u: Tensor) -> Tensor:  # -> [n, S, d_out]
        """P f + B · core(u)."""
        outputs = self.outputs(f)
        return self._add_written(self._apply_skip(f[:, outputs]), self.core(u, outputs))

    def at(self, f: Tensor, positions: Tensor) -> Tensor:  # [n, T, d_in], [n, S] -> [n, S, d_out]
        """The outputs at some positions, each sample's own; the core samples queries or mixes none."""
        at_positions = take_positions(f, positions)
        if not isinstance(self.core, SamplesQueries):
            return self(at_positions)
        return self._add_written(self._apply_skip(at_positions), self.core.at(self.read_outs(f), positions))

    def direct(self, f: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:  # [d_in], [..., d_in]
        """P f and P δ."""
        skip = near_sums(self.skip).to(f)
        return skip @ f, moved @ skip.T

    @cached_property
    def _apply_skip(self) -> Callable[[Tensor], Tensor]:
        return applier(self.skip)

    @cached_property
    def _apply_read(self) -> Callable[[Tensor], Tensor]:
        return applier(self.read)

    @cached_property
    def _apply_write(self) -> Callable[[Tensor], Tensor]:
        return applier(self.write)

    @cached_property
    def _add_written(self) -> Callable[[Tensor, Tensor], Tensor]:
        return adder(self.write)

    def pull_back(self, f: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:  # [n, d_in], [n, k, d_out]
        """g ↦ (P + B N̄ A)ᵀ g token by token, [n, k, d_in], where positions do not mix."""
        pull_skip, pull_read, pull_write = self._pulls
        inner = self.core.pull_back(self.read_outs(f[:, None])[:, 0], pull_write(cotangents), rule)
        return pull_skip(cotangents) + pull_read(inner)

    def soft_skip(self, f: Tensor, mask: Tensor) -> Tensor:  # [n, T, d_in], [n, d_out, d_in] -> [n, S, d_out]
        """P f with a real number for every entry of P and sample."""
        return torch.einsum("nsj,nij,ij->nsi", f[:, self.outputs(f)], mask, self.skip)

    @property
    def reads_windows(self) -> bool:
        """Whether an output reads several positions through constant matrices, as convolutions do."""
        return False

    def pull_back_windows(self, f: Tensor, positions: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        """∫dα of gradients of g · F_s at α f; f [T, d_in], outputs s [k], g [k, d_out] -> [k, T, d_in]."""
        raise NotImplementedError("for sections that read windows")

    def push_forward(self, f: Tensor, tangents: Tensor, rule: Rule) -> Tensor:  # [n, d_in], [n, M, d_in]
        """t ↦ (P + B N̄ A) t token by token, [n, M, d_out], where positions do not mix."""
        inner = self.core.push_forward(self.read_outs(f[:, None])[:, 0], self._apply_read(tangents), rule)
        return self._apply_skip(tangents) + self._apply_write(inner)

    @cached_property
    def _pulls(self) -> list[Callable[[Tensor], Tensor]]:
        """Products with the transposes of P, A and B."""
        return [transposed_applier(matrix) for matrix in (self.skip, self.read, self.write)]

    @cached_property
    def copies(self) -> tuple[Tensor, Tensor]:
        """Coordinates of the target that are coordinates of the source, and which: [c], [c]."""
        single = (self.skip != 0).sum(1) == 1
        largest, source = self.skip.max(1)
        target = (single & (largest == 1) & ~self.write.any(1)).nonzero()[:, 0]
        return target, source[target]

    @cached_property
    def columns_read(self) -> tuple[int, int]:
        """The first coordinate that read-outs depend on, one past the last; all without weights (meta)."""
        first, read = self.source.first_coordinate, self.read
        columns = list(range(read.shape[1])) if read.is_meta else read.any(0).nonzero()[:, 0].tolist()
        used = [column for column in columns if column >= first]
        return (used[0], used[-1] + 1) if used else (first, first)

    @property
    def columns_seen(self) -> int:
        """Number of coordinates of the source that lie in `columns_read`."""
        first, end = self.columns_read
        return end - first

    @property
    def is_narrow(self) -> bool:
        """Whether F depends on f through its read-outs alone, and they are fewer than coordinates."""
        first = self.source.first_coordinate
        return not self.skip[:, first:].any() and len(self.read) < self.source.width

    def outputs(self, f: Tensor) -> slice:  # [n, T, d]
        """The positions that come out."""
        return self.positions_out(f.shape[1])

    def positions_out(self, positions: int) -> slice:
        """Positions that come out of a number of input positions."""
        return slice(positions - 1 if self.last_only else 0, positions)

    @property
    def features_in(self) -> int:
        """Coordinates or features of the source."""
        return self.shapes.skip[1]

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of P, A and B."""
        return Shapes(*(tuple(matrix.shape) for matrix in (self.skip, self.read, self.write)))

    @cached_property
    def like(self) -> Tensor:  # empty, of its dtype, on its device
        return self.skip[:0, :0]

    def count_out(self, positions: int) -> int:
        """Number of positions that come out of a number of input positions."""
        here = self.positions_out(positions)
        return here.stop - here.start

    def in_basis(self, inverse: Tensor | None, transform: Tensor | None) -> "Section":
        """Return the map from source features to target features, F̂(f̂) = C_out F(C_in⁺ f̂).

        inverse C_in⁺ [d_in, r_in], transform C_out [r_out, d_out]; None is the identity.
        """
        skip, read, write = self.skip, self.read, self.write
        if inverse is not None:
            skip, read = skip @ inverse, read @ inverse
        if transform is not None:
            skip, write = transform @ skip, transform @ write
        return replace(self, skip=skip, read=read, write=write)

    def statistics(self, rows: Tensor) -> Sums:  # u [tokens, c_in]
        """Compute the sums of a `StatisticsCore` over read-outs at output positions."""
        assert isinstance(self.core, StatisticsCore)
        return self.core.statistics(rows[:, None], slice(0, 1))

    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None
    ) -> Sums:  # u [n, T, c_in]
        """Compute the sums of a `PassCore` over a batch of read-outs; arguments as for the core's."""
        assert isinstance(self.core, PassCore)
        return self.core.batch_sums(u, outputs, metric, signs, counted)

    def jacobian(self, transform: Tensor | None) -> SectionJacobian:
        """The Jacobian into the features C [r, d_out] of the target; None is the identity."""
        return DenseJacobian.from_section(self, transform)

    def attributions(
        self, f: Tensor, integral: Rule, counted: Counted | None = None
    ) -> Iterator[AttributionBlock]:  # f [n, T, r_in]
        """Yield A_is,j in blocks that fit in memory: (samples, outputs, block [r_out, tokens, r_in]).

        Of ``counted`` tokens, sums over t are over inputs that count, and A is 0 for outputs that do not.
        """
        return token_attributions(self, f, integral, counted)

    def signed_attributions(self, f: Tensor, integral: Rule, tokens: SignedTokens) -> Tensor:
        """Compute Σ φ A for every group of tokens and set of signs, [r_out, groups · R, r_in].

        f [n, T, r_in], or `needed_inputs` of the tokens' positions.
        """
        return signed_attributions(self, f, integral, tokens)

    def needed_inputs(self, f: Tensor, positions: Tensor | None) -> Tensor:  # [n, T or Q, d], [n, Q]
        """The part of f that outputs at these positions depend on; f may hold these Q < T alone."""
        if positions is None or self.core.mixes_positions or f.shape[1] == positions.shape[1]:
            return f
        return take_positions(f, positions)

    def changed_choices(self, f: Tensor, integral: Rule) -> Tensor | None:  # [n, T, r_in] -> [n, S]
        """Tokens that visit other experts on the line from 0 than at its end; None without experts."""
        if not isinstance(self.core, Experts):
            return None
        return self.core.changed_choices(self.read_outs(f), self.outputs(f), integral)

    @property
    def exact_is_cheapest(self) -> bool:
        """Whether exact attributions cost less than any estimate of them."""
        return False

    def squares(self, integral: Rule) -> Squares | None:
        """Closed form of Σ A² over tokens, where the core has one."""
        return self.core.squares(self, integral) if isinstance(self.core, ClosedFormSquares) else None

    def aligned(self) -> "Section":
        """Return the section padded with features that are 0 everywhere, where that is quicker."""
        more = -self.features_in % ALIGNED_FEATURES
        if not more or self.features_in < MIN_ALIGNED_WIDTH:
            return self
        skip, read = (torch.nn.functional.pad(matrix, (0, more)) for matrix in (self.skip, self.read))
        return replace(self, skip=skip, read=read)

    def masked(self, f: Tensor, mask: Tensor) -> Tensor:  # [n, T, r_in], [r_out, r_in] -> [n, S, r_out]
        """Compute the outputs if output i sees the inputs that row i of a mask keeps, all others at 0."""
        return masked_pass(self, f, mask)

    def tensors(self) -> list[Tensor]:
        """All weights, the core's among them."""
        return [self.skip, self.read, self.write, *self.core.tensors()]

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """A copy in another dtype or on another device."""
        skip, read, write = (matrix.to(*args, **kwargs) for matrix in (self.skip, self.read, self.write))
        core = self.core.to(*args, **kwargs)
        # the constant's column holds B · act(0), which may be known to more digits now than it was rounded to
        like = self.read.new_zeros(len(self.read))
        known = core.at_zero(like.to(*args, **kwargs)) - self.core.at_zero(like).to(*args, **kwargs)
        if known.any():
            skip = skip.clone()
            skip[:, 0] += write @ known.expand(write.shape[1])
        return replace(self, skip=skip, read=read, write=write, core=core)


@dataclass(frozen=True, eq=False)
class Network:
    """A prefix, the sections between the node layers, and a tail of steps after the last of them.

    Calling it gives the model's output. Inputs without positions (an MLP's rows) give outputs without
    positions, and so does a network of which only the last position comes out.
    """

    prefix: Prefix
    sections: tuple[Section, ...]
    tail: tuple[LayerMap, ...] = ()
    family: str = "network"
    """A name for its kind of model, for people to read."""
    name: str = ""
    """Name of the model, for people to read; empty where it has none."""
    class_names: tuple[str, ...] = ()
    """Names of its outputs, if they are known and no tokens."""
    feature_names: tuple[str, ...] = ()
    """Names of its inputs, if they are known: of the columns of a table, say."""
    rotate_last: bool = True
    """Whether the last node layer is rotated (PCA) when nothing else is said."""
    build_dtype: Dtype = "float64"
    """Dtype that a build computes in by default."""
    predicts_next: bool = False
    """Whether it takes tokens and its outputs at every position are about the token that follows."""
    token_names: tuple[str, ...] = ()
    """Texts of its tokens, if it knows them; a tokenizer says so otherwise."""
    tokenizer: str = ""
    """Folder of its tokenizer, where it was read from a folder that has one."""
    modulus: int | None = None
    """p, if it adds two numbers modulo p: then features are functions of two numbers with Fourier labels."""
    arrange: Callable[[Tensor], Tensor] | None = None
    """Function that arranges outputs as the model does where that is not [samples, positions, channels]."""
    remake: "Callable[[Change], Network] | None" = None
    """Converts the model that this network was made from again, with change(W) in place of every weight
    matrix W. Sections do not tell: their matrices hold structure (identities, residual paths, norms) too."""

    def __post_init__(self) -> None:
        chain = [*self.sections, *self.tail]
        for before, after in pairwise(chain):
            if before.target != after.source:
                raise InterbasisError(
                    f"sections must follow each other: one ends at {before.target}, "
                    f"the next begins at {after.source}"
                )
        if not self.sections:
            raise InterbasisError("a network needs at least one section, that is two node layers")

    def __repr__(self) -> str:
        layers = " → ".join(f"{node.name} ({node.width})" for node in self.nodes)
        return f"Network({self.name or self.family}: {layers})"

    @property
    def nodes(self) -> tuple[NodeLayer, ...]:
        return (self.sections[0].source, *(section.target for section in self.sections))

    @property
    def layers(self) -> list[str]:
        """The names of the node layers, in order."""
        return [node.name for node in self.nodes]

    @property
    def output_layer(self) -> NodeLayer:
        """Layer that the model puts out: the last node layer, or the end of the tail."""
        return (*self.sections, *self.tail)[-1].target

    @property
    def output_count(self) -> int:
        """Number of outputs, at one position."""
        return self.output_layer.width - self.output_layer.first_coordinate

    def named(
        self, name: str = "", class_names: Sequence[str] = (), feature_names: Sequence[str] = ()
    ) -> "Network":
        """The same network with names; those that are not given stay as they are.

        Raises:
            InterbasisError: There are not as many class names as outputs.
        """
        if class_names and len(class_names) != self.output_count:
            raise InterbasisError(
                f"expected a class name for each of {self.output_count} outputs, received {len(class_names)}"
            )
        return replace(
            self,
            name=name or self.name,
            class_names=tuple(class_names) or self.class_names,
            feature_names=tuple(feature_names) or self.feature_names,
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.sections[0].like.dtype

    @property
    def device(self) -> torch.device:
        return self.sections[0].like.device

    def __call__(self, inputs: Tensor) -> Tensor:
        """The model's output for these inputs."""
        return self.output_from(self.activations_at(len(self.sections), inputs), inputs)

    def output_from(self, f: Tensor, inputs: Tensor) -> Tensor:  # [n, S, width]
        """The model's output from the activations of the last node layer, arranged as the model does."""
        output = self.finish(f, inputs)
        return output if self.arrange is None else self.arrange(output)

    def finish(self, f: Tensor, inputs: Tensor) -> Tensor:  # [n, S, width]
        """Return the model's output as [samples, positions, channels]; inputs say if it has positions."""
        for step in self.tail:
            f = step(f)
        output = f[..., self.output_layer.first_coordinate :]
        single = ends_with_one_position((*self.sections, *self.tail))
        return output[:, -1] if single or not self.prefix.has_positions(inputs) else output

    def activations(self, inputs: Tensor) -> list[Tensor]:
        """f at every node layer, [n, T_l, width_l] each."""
        result = [self.prefix(inputs)]
        for section in self.sections:
            result.append(section(result[-1]))
        return result

    def activations_at(self, index: int, inputs: Tensor) -> Tensor:
        """f at one node layer, [n, T, width], running no further than there."""
        f = self.prefix(inputs)
        for section in self.sections[:index]:
            f = section(f)
        return f

    def run(self, f: Tensor, first: int, last: int) -> Tensor:  # [n, T, width]
        """f at node layer ``last`` from f at ``first``, by short cuts that may round otherwise."""
        return self._chain.run(f, first, last)

    @cached_property
    def _chain(self) -> SectionChain:
        return SectionChain(self.sections)

    def between(self, layers: Sequence[str]) -> "Network":
        """Return the network with fewer node layers.

        Args:
            layers: Names of at least two neighbouring node layers, in order, or TransformerLens' names.

        Raises:
            InterbasisError: There is no such node layer, or they are not neighbours in order.
        """
        names = self.layers
        wanted = [names.index(node_layer(name, names)) for name in layers]
        if len(wanted) < 2 or wanted != list(range(wanted[0], wanted[0] + len(wanted))):
            raise InterbasisError(
                "expected at least two neighbouring node layers in the network's order, without gaps or "
                f"repeats, received {', '.join(layers)}; the network has {', '.join(names)}"
            )
        first, last = wanted[0], wanted[-1]
        prefix = self.prefix if first == 0 else Head(self.prefix, self.sections[:first])
        tail = (*self.sections[last:], *self.tail)
        rotate = self.rotate_last or bool(tail)
        remake = self._remake_then(lambda network: network.between(names[first : last + 1]))
        cut = self.sections[first:last]
        return replace(self, prefix=prefix, sections=cut, tail=tail, rotate_last=rotate, remake=remake)

    def to(self, *args: Any, **kwargs: Any) -> "Network":
        """A copy in another dtype or on another device; the network itself is left alone."""
        return replace(
            self,
            prefix=deepcopy(self.prefix).to(*args, **kwargs),
            sections=tuple(section.to(*args, **kwargs) for section in self.sections),
            tail=tuple(step.to(*args, **kwargs) for step in self.tail),
            remake=self._remake_then(lambda network: network.to(*args, **kwargs)),
        )

    def _remake_then(self, then: "Callable[[Network], Network]") -> "Callable[[Change], Network] | None":
        """`remake` of what ``then`` makes of this network."""
        remake = self.remake
        return None if remake is None else lambda change: then(remake(change))

    def double(self) -> "Network":
        """A copy in float64, on the CPU where this network's device has none."""
        return self.to(sums_device(self.device), torch.float64)

    def fingerprint(self) -> str:
        """SHA-256 over all weights, rounded to float32: the same model, the same string."""
        chain = [*self.sections, *self.tail]
        digest = hashlib.sha256("\n".join(map(repr, [self.prefix, *chain])).encode())
        for tensors in (self.prefix.tensors, *(step.tensors for step in chain)):
            for tensor in tensors():  # step by step: all of them may be larger than memory
                digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
        return digest.hexdigest()


class Head(Prefix):
    """A prefix that includes sections: what comes before a cut that begins inside the network."""

    def __init__(self, prefix: Prefix, sections: tuple[Section, ...]):
        super().__init__()
        self.prefix, self.sections = prefix, sections

    def has_positions(self, inputs: Tensor) -> bool:
        return self.prefix.has_positions(inputs) and not ends_with_one_position(self.sections)

    def tensors(self) -> list[Tensor]:
        return self.prefix.tensors() + [tensor for section in self.sections for tensor in section.tensors()]

    def forward(self, inputs: Tensor) -> Tensor:
        f = self.prefix(inputs)
        for section in self.sections:
            f = section(f)
        return f

    def to(self, *args: Any, **kwargs: Any) -> "Head":
        prefix = self.prefix.to(*args, **kwargs)
        return Head(prefix, tuple(section.to(*args, **kwargs) for section in self.sections))


def ends_with_one_position(steps: Sequence[LayerMap]) -> bool:
    """Whether one position comes out of them, however many go in."""
    return steps[-1].target.grid == () or any(step.last_only for step in steps)

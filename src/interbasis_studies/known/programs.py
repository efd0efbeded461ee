"""Transformers with a program in their weights: every variable, and which reads which, is known.

A program is a chain of steps on named variables, each a subspace of the stream (as in RASP, Weiss, Goldberg &
Yahav 2021, arXiv:2106.06981). A head *selects* positions where a query, read off some variables, meets a key,
and *aggregates* a value of these positions into a new variable; an MLP computes new variables from those of
its own position. The five programs:

    reverse      position p attends to T − 1 − p and copies its token
    histogram    a head shares its attention between the first token and all tokens equal to its own, so that
                 the first one has 1 / (1 + count); an MLP makes that a one-hot count
    sort         likewise, with smaller tokens instead of equal ones, which gives the rank; position p then
                 attends to rank p − 1 (tokens are different)
    brackets     mean of +1 and −1 so far; an MLP says whether it is negative, or 0; a second head, how often
                 it was negative; a second MLP, whether the prefix is balanced
    induction    the token before (of the first position, its own); then attention to where that is the
                 current token, and the token there

Attention is soft: a position that is selected has the score `sharpness`, any other 0. At node layers before a
variable is written, and where nothing reads it any more, it is no part of the truth.

`plant_transformer` has weights of the same kind, of heads and an MLP that read and write known subspaces:

    token, position      one-hot, by the embedding
    previous, count      by the first attention: the token before (a head that attends one position back, by
                         positions), and the share of token 0 so far (a head that attends to all alike)
    copied               by the second attention: an induction head, which attends to where the previous token
                         is the current one, and copies the token there
    looked up            by the MLP: a table of the copied token

and the outputs read the last four. So which subspace acts on which is known for every section.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from interbasis.base.records import Record
from interbasis.network.cores import Attention, AttentionShape, Elementwise, Linear
from interbasis.network.network import Network, NodeLayer, Section
from interbasis.network.prefix import Prefix, with_constant
from interbasis_studies.known.planted import Draws
from interbasis_studies.known.truth import NO_PART, KnownNetwork, Truth

ProgramName = Literal["reverse", "histogram", "sort", "brackets", "induction"]
POSITIONS = 8
Reads = Mapping[str, Tensor]
"""Matrices [rows, size] by the variable that they read; "constant" is a column."""


class ProgramSpec(Record):
    """A transformer with a program in its weights."""

    program: ProgramName
    sequences: int = Field(300, ge=2)
    sharpness: float = Field(6.0, gt=0)
    """Attention score of a position that is selected; others have 0."""


class PlantedTransformerSpec(Record):
    """The one parameter of planted transformers."""

    sequences: int = Field(300, ge=2)


@dataclass(frozen=True, eq=False)
class Selector:
    """Attention to positions whose key meets the query, and the variable their mean value is written to."""

    query: Reads
    key: Reads
    value: Reads
    target: str


@dataclass(frozen=True, eq=False)
class AttentionStep:
    """Attention heads that act together."""

    heads: tuple[Selector, ...]
    causal: bool = True

    @property
    def reads(self) -> dict[str, set[str]]:
        """Variables that every new one is made from."""
        return {head.target: {*head.query, *head.key, *head.value} for head in self.heads}


@dataclass(frozen=True, eq=False)
class LookupStep:
    """An MLP with ReLUs: hidden units read variables, and new variables are sums of them."""

    read: Reads
    write: Mapping[str, Tensor]  # [size, hidden]

    @property
    def reads(self) -> dict[str, set[str]]:
        """Variables that every new one is made from."""
        return {target: set(self.read) - {"constant"} for target in self.write}


@dataclass(frozen=True, eq=False)
class Program:
    """Variables with their sizes, token and position first, and the steps that compute them."""

    sizes: dict[str, int]
    steps: tuple[AttentionStep | LookupStep, ...]
    outputs: tuple[str, ...]
    tokens: Callable[[np.random.Generator, int], np.ndarray]
    """Draws sequences of tokens, [n, T]."""
    layer_names: tuple[str, ...] = ()
    """Names of the node layers before the steps; default: step.0, step.1, …"""

    @property
    def width(self) -> int:
        return sum(self.sizes.values())

    def where(self, name: str) -> slice:
        """True coordinates of a variable."""
        names = list(self.sizes)
        start = sum(self.sizes[other] for other in names[: names.index(name)])
        return slice(start, start + self.sizes[name])

    def matrix(self, rows: int, blocks: Reads) -> Tensor:  # [rows, 1 + width]
        """Matrix that reads some variables, or the constant."""
        result = torch.zeros(rows, 1 + self.width, dtype=torch.float64)
        for name, block in blocks.items():
            first = 0 if name == "constant" else 1 + self.where(name).start
            result[: len(block), first : first + block.shape[1]] = block
        return result

    def live(self) -> list[set[str]]:
        """Variables at every node layer that are there and that something later reads."""
        read = [set(self.outputs)]
        for step in reversed(self.steps):
            written = {name: sources for name, sources in step.reads.items() if name in read[0]}
            read.insert(0, (read[0] - set(written)).union(*written.values()))
        return [*read, set(self.outputs)]

    def acts_on(self) -> list[Tensor]:
        """For every section, [variables, variables], whether the second is read by the first."""
        names, result = list(self.sizes), []
        for step in self.steps:
            matrix = torch.eye(len(names), dtype=torch.bool)
            for target, sources in step.reads.items():
                for source in sources:
                    matrix[names.index(target), names.index(source)] = True
            result.append(matrix)
        return [*result, torch.eye(len(names), dtype=torch.bool)]

    def sections(self) -> list[Section]:
        """Sections in true coordinates."""
        names = self.layer_names or [f"step.{k}" for k in range(len(self.steps))]
        nodes = [NodeLayer(name, 1 + self.width) for name in (*names, "unembed")]
        shown = [0, *(1 + k for name in self.outputs for k in range(self.width)[self.where(name)])]
        nodes.append(NodeLayer("output", len(shown)))
        identity, sections = torch.eye(1 + self.width, dtype=torch.float64), []
        for k, step in enumerate(self.steps):
            read, write, core = self._heads(step) if isinstance(step, AttentionStep) else self._lookup(step)
            sections.append(Section(nodes[k], nodes[k + 1], identity, read, write, core))
        last = identity[shown]
        sections.append(Section(nodes[-2], nodes[-1], last, last[:0], last[:, :0], Linear()))
        return sections

    def _heads(self, step: AttentionStep) -> tuple[Tensor, Tensor, Attention]:
        parts = [[head.query for head in step.heads], [head.key for head in step.heads]]
        parts.append([head.value for head in step.heads])
        h = max(len(block) for part in parts for reads in part for block in reads.values())
        read = torch.cat([self.matrix(h, reads) for part in parts for reads in part])
        write = torch.zeros(1 + self.width, len(step.heads) * h, dtype=torch.float64)
        for number, head in enumerate(step.heads):
            rows = range(1 + self.width)[1 + self.where(head.target).start : 1 + self.where(head.target).stop]
            write[list(rows), number * h : number * h + len(rows)] = torch.eye(len(rows), dtype=torch.float64)
        shape = AttentionShape(len(step.heads), h, causal=step.causal, scale=1.0)
        return read, write, Attention(shape)

    def _lookup(self, step: LookupStep) -> tuple[Tensor, Tensor, Elementwise]:
        hidden = len(next(iter(step.read.values())))
        by_target = {name: block.T for name, block in step.write.items()}
        write = self.matrix(hidden, by_target).T.contiguous()
        return self.matrix(hidden, step.read), write, Elementwise(nn.ReLU())


class MixedEmbedding(Prefix):
    """One-hot tokens and positions, mixed."""

    mixing: Tensor

    def __init__(self, mixing: Tensor, vocabulary: int):
        super().__init__()
        self.register_buffer("mixing", mixing)
        self.vocabulary = vocabulary

    def forward(self, tokens: Tensor) -> Tensor:  # [n, T] -> [n, T, width + 1]
        return with_constant(self.embedded(tokens).to(self.mixing) @ self.mixing.T)

    def embedded(self, tokens: Tensor) -> Tensor:  # [n, T] -> [n, T, true]
        """Token and position, one-hot, in the first true coordinates."""
        g = torch.zeros(*tokens.shape, self.mixing.shape[1], dtype=torch.float64)
        g[..., : self.vocabulary] = nn.functional.one_hot(tokens, self.vocabulary).double()
        positions = tokens.shape[1]
        g[..., self.vocabulary : self.vocabulary + positions] = _eye(positions)
        return g


def plant_program(spec: ProgramSpec, seed: int = 0) -> KnownNetwork:
    """A transformer with a program in its weights, its stream rotated at random in every layer.

    Args:
        spec: The program.
        seed: Seed of tokens and rotations.

    Returns:
        The network, its tokens, and the truth.
    """
    program = PROGRAMS[spec.program](spec.sharpness)
    return program_network(program, program.live(), Draws(seed), spec.sequences)


def plant_transformer(seed: int = 0, samples: int = 300) -> KnownNetwork:
    """A transformer whose subspaces and the interactions between them are known.

    Args:
        seed: Seed of tokens, the table of the MLP, and the rotations that mix every layer.
        samples: Sequences of random tokens.

    Returns:
        The network, its tokens, and the truth; it has no modules, so scores of these are undefined.
    """
    draws = Draws(seed)
    program = transformer_program(draws)
    return program_network(program, [program.sizes] * (1 + len(program.steps)), draws, samples)


def program_network(
    program: Program, shown: Sequence[Collection[str]], draws: Draws, sequences: int
) -> KnownNetwork:
    """A program as a transformer, with a random rotation of the stream in every layer.

    Args:
        program: The program.
        shown: Variables that are parts of the truth, for every node layer before the last.
        draws: Random numbers of tokens and rotations.
        sequences: Sequences of tokens.

    Returns:
        The network, its tokens, and the truth.
    """
    tokens = torch.from_numpy(program.tokens(draws("tokens"), sequences))
    plain, names, width = program.sections(), list(program.sizes), program.width
    mixings = [torch.linalg.qr(draws.normal("mixing", k, width, width)).Q for k in range(len(plain))]
    rotations = [torch.block_diag(torch.ones(1, 1, dtype=torch.float64), T) for T in mixings]
    mixed = tuple(
        section.in_basis(back.T, forward)
        for section, back, forward in zip(plain, rotations, [*rotations[1:], None], strict=True)
    )
    prefix = MixedEmbedding(mixings[0], program.sizes["token"])
    values = [with_constant(prefix.embedded(tokens))]  # at every node layer, in true coordinates
    for section in plain:
        values.append(section(values[-1]))
    labels = [
        torch.tensor([names.index(name) if name in here else NO_PART for name in names]) for here in shown
    ]
    sizes = torch.tensor(list(program.sizes.values()))
    outputs = torch.tensor([names.index(name) for name in program.outputs])
    parts = [label.repeat_interleave(sizes) for label in labels[: len(plain)]]
    parts.append(outputs.repeat_interleave(sizes[outputs]))
    truth = Truth(
        (*mixings, _eye(len(parts[-1]))),
        tuple(value[..., 1:].flatten(0, 1) for value in values),
        tuple(parts),
        tuple(program.acts_on()),
        modular=False,
    )
    network = Network(prefix, mixed, family="planted", rotate_last=False)
    return KnownNetwork(network, tokens, truth)


def _eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def _steps(values: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Read [2k, 1] and bias [2k, 1] of k steps, s_i = 1 above the middle of values i and i + 1, else 0.

    Two units each: s = relu(a (x − t) + ½) − relu(a (x − t) − ½), with a slope between the two values.
    """
    pairs = torch.tensor(values, dtype=torch.float64)
    middle, slope = (pairs[1:] + pairs[:-1]) / 2, 2 / (pairs[1:] - pairs[:-1]).abs()
    sides = torch.tensor([0.5, -0.5], dtype=torch.float64)
    read = slope.repeat_interleave(2)[:, None]
    return read, (sides - (slope * middle)[:, None]).reshape(-1, 1)


def _one_hot_counts(most: int) -> tuple[Reads, Tensor]:
    """Read of x = 1 / (1 + c) and write [most + 1, hidden] of the one-hot c, c = 0 … most."""
    read, bias = _steps([1 / (1 + c) for c in range(most + 1)])  # s_c = 1 where the count is at most c
    at_most = torch.zeros(most + 1, 2 * most + 1, dtype=torch.float64)
    for c in range(most):
        at_most[c, 2 * c : 2 * c + 2] = torch.tensor([1.0, -1.0])
    at_most[most, -1] = 1  # a unit that is always 1
    write = at_most.clone()
    write[1:] -= at_most[:-1]
    always = torch.ones(1, 1, dtype=torch.float64)
    return {"share": torch.cat([read, 0 * always]), "constant": torch.cat([bias, always])}, write


def _reverse(sharpness: float) -> Program:
    vocabulary, T = 5, POSITIONS
    query, key = {"position": sharpness * _eye(T)}, {"position": _eye(T).flip(0)}
    head = Selector(query, key, {"token": _eye(vocabulary)}, "reversed")
    return Program(
        {"token": vocabulary, "position": T, "reversed": vocabulary}, (AttentionStep((head,), causal=False),),
        ("reversed",), lambda draw, n: draw.integers(0, vocabulary, (n, T)),
    )  # fmt: skip


def _counting(sharpness: float, selects: Tensor) -> AttentionStep:
    """A head whose attention to the first token is 1 / (1 + tokens selected); it is the last of the words.

    ``selects`` [words, words], whether a query (row) selects a key (column), the first token left out.
    """
    words = len(selects) + 1
    key = torch.zeros(words, words, dtype=torch.float64)
    key[:-1, :-1] = selects.double()
    key[:, -1] = 1
    first = _eye(words)[-1:]
    head = Selector({"token": sharpness * _eye(words)}, {"token": key}, {"token": first}, "share")
    return AttentionStep((head,), causal=False)


def _histogram(sharpness: float) -> Program:
    words, T = 4, POSITIONS
    read, write = _one_hot_counts(T - 1)

    def tokens(draw: np.random.Generator, n: int) -> np.ndarray:
        return np.concatenate([np.full((n, 1), words), draw.integers(0, words, (n, T - 1))], axis=1)

    sizes = {"token": words + 1, "position": T, "share": 1, "count": T}
    steps = _counting(sharpness, _eye(words) > 0), LookupStep(read, {"count": write})
    return Program(sizes, steps, ("count",), tokens)


def _sort(sharpness: float) -> Program:
    words, T = 9, POSITIONS
    read, write = _one_hot_counts(T - 2)

    def tokens(draw: np.random.Generator, n: int) -> np.ndarray:
        drawn = np.argsort(draw.random((n, words)), axis=1)[:, : T - 1]
        return np.concatenate([np.full((n, 1), words), drawn], axis=1)

    after_first = _eye(T)[1:]  # position p reads off p − 1
    not_first = -torch.ones(T - 1, 1, dtype=torch.float64) * _eye(words + 1)[-1]
    lookup = Selector(
        {"position": sharpness * after_first}, {"rank": _eye(T - 1), "token": not_first},
        {"token": _eye(words + 1)[:-1]}, "sorted",
    )  # fmt: skip
    sizes = {"token": words + 1, "position": T, "share": 1, "rank": T - 1, "sorted": words}
    smaller = torch.ones(words, words).tril(-1) > 0
    steps = (
        _counting(sharpness, smaller),
        LookupStep(read, {"rank": write}),
        AttentionStep((lookup,), causal=False),
    )
    return Program(sizes, steps, ("sorted",), tokens)


def _brackets(sharpness: float) -> Program:
    """Only uniform attention, so nothing is sharp."""
    T = POSITIONS

    def tokens(draw: np.random.Generator, n: int) -> np.ndarray:
        result, balance = draw.integers(0, 2, (n, T)), np.zeros(n, dtype=int)
        proper = draw.random(n) < 0.7
        for t in range(T):  # these never close a bracket that is not open
            result[proper & (balance == 0), t] = 0
            balance += 1 - 2 * result[:, t]
        return result

    mean = Selector({}, {}, {"token": torch.tensor([[1.0, -1.0]], dtype=torch.float64)}, "mean")
    above, bias = _steps([0.0, 1 / T])  # 1 for a mean of 1 / T or more, 0 for 0 or less
    always = torch.ones(1, 1, dtype=torch.float64)
    units = {
        "mean": torch.cat([above, -above, 0 * always]), "constant": torch.cat([bias, bias, always])
    }  # fmt: skip
    negative = torch.tensor([[0.0, 0.0, 1.0, -1.0, 0.0]], dtype=torch.float64)
    zero = torch.tensor([[-1.0, 1.0, -1.0, 1.0, 1.0]], dtype=torch.float64)
    ever = Selector({}, {}, {"negative": always}, "ever")
    both = LookupStep({"zero": always, "ever": -2 * T * always}, {"balanced": always})
    sizes = {"token": 2, "position": T, "mean": 1, "negative": 1, "zero": 1, "ever": 1, "balanced": 1}
    steps = (
        AttentionStep((mean,)),
        LookupStep(units, {"negative": negative, "zero": zero}),
        AttentionStep((ever,)),
        both,
    )
    return Program(sizes, steps, ("balanced",), tokens)


def _induction(sharpness: float) -> Program:
    words, T = 4, POSITIONS
    before = torch.diag(torch.ones(T - 1, dtype=torch.float64), 1)  # position p looks for p − 1
    previous = Selector(
        {"position": sharpness * before}, {"position": _eye(T)}, {"token": _eye(words)}, "previous"
    )
    copied = Selector(
        {"token": sharpness * _eye(words)}, {"previous": _eye(words)}, {"token": _eye(words)}, "copied"
    )
    sizes = {"token": words, "position": T, "previous": words, "copied": words}
    steps = AttentionStep((previous,)), AttentionStep((copied,))
    return Program(sizes, steps, ("copied",), lambda draw, n: draw.integers(0, words, (n, T)))


PROGRAMS: dict[str, Callable[[float], Program]] = {
    "reverse": _reverse, "histogram": _histogram, "sort": _sort, "brackets": _brackets,
    "induction": _induction,
}  # fmt: skip
"""Programs by name, from the sharpness of attention."""


def transformer_program(draws: Draws) -> Program:
    """The steps on the six subspaces, with a random table."""
    words, T, outcomes, sharpness = 6, 10, 4, 6.0
    positions = _eye(T)
    token = positions[:, :words]  # a head has as many coordinates as there are positions
    before = torch.diag(torch.ones(T - 1, dtype=torch.float64), 1)  # row t − 1 is read off position t
    heads = (
        Selector({"position": sharpness * before}, {"position": positions}, {"token": token}, "previous"),
        Selector({}, {}, {"token": token[:1]}, "count"),
    )
    induction = Selector({"token": sharpness * token}, {"previous": token}, {"token": token}, "copied")
    rows = 2 * words
    read = {
        "copied": draws.normal("table read", 0, rows, words),
        "constant": draws.normal("table bias", 0, rows, 1) / 2,
    }
    table = LookupStep(read, {"looked up": draws.normal("table", 0, outcomes, rows)})
    return Program(
        {"token": words, "position": T, "previous": words, "count": 1, "copied": words,
         "looked up": outcomes},
        (AttentionStep(heads), AttentionStep((induction,)), table),
        ("previous", "count", "copied", "looked up"),
        lambda draw, n: draw.integers(0, words, (n, T)),
        ("first_attention", "second_attention", "mlp"),
    )  # fmt: skip

"""Residual MLPs made of independent parts, each in a subspace of its own, hidden by mixing every layer.

In true coordinates g = (g_1 … g_m) every part computes for itself,

    g_k ← g_k + B_k act( A_k g_k + ε A_k,k+1 g_k+1 + b_k ),        outputs y_k = O_k g_k,

and ε = 0 unless cross-talk is asked for. What the network stores at node layer l is f = T_l g, with a mixing
T_l of its own in every layer, so P = T_l+1 T_l⁺, A → A T_l⁺ and B → T_l+1 B. The outputs are not mixed.
Every random choice has a stream of its own: a parameter changes what it is about, and nothing else.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.base.records import Record
from interbasis.network.cores import Elementwise, Linear
from interbasis.network.network import Network, NodeLayer, Section
from interbasis.network.prefix import Prefix, with_constant
from interbasis_studies.known.truth import NO_PART, KnownNetwork, Truth

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh}
UNREAD_SCALE = 3.0
"""Standard deviation of directions that nothing reads; those of parts have 1."""
ACTIVE = 0.1
"""Share of sparse inputs that are not 0."""
CONDITION = 10.0
"""Largest over smallest stretching of a general mixing."""


class PlantedSpec(Record):
    """Parameters of a planted network."""

    parts: int = Field(4, ge=2)
    size: int = Field(6, ge=1)
    """True features of a part."""
    depth: int = Field(3, ge=1)
    """Residual sections."""
    hidden: int = Field(12, ge=1)
    """Hidden neurons of a part in every section."""
    outputs: int = Field(2, ge=1)
    """Outputs of a part."""
    samples: int = Field(4000, ge=2)
    inputs: Literal["normal", "laplace", "uniform", "sparse"] = "normal"
    """Distribution of the true input features, at variance 1."""
    correlation: float = Field(0.0, ge=0, lt=1)
    """Between the inputs of any two parts, true feature by true feature."""
    scale: float = Field(1.0, ge=1)
    """Standard deviation of the last part's inputs, the first part's being 1; others lie between."""
    cross_talk: float = Field(0.0, ge=0)
    """ε: how strongly a part reads its neighbour, relative to itself."""
    unread: int = Field(0, ge=0)
    """Directions of large variance that no part reads."""
    duplicated: bool = False
    """The second part computes the same as the first, from the same inputs: together they are one part."""
    mixing: Literal["none", "orthogonal", "general"] = "orthogonal"
    activation: Literal["gelu", "relu", "tanh"] = "gelu"
    crowding: float = Field(1.0, ge=1)
    """True features per dimension of the stream; above 1 they are in superposition."""

    @property
    def true_features(self) -> int:
        return self.parts * self.size + self.unread

    @property
    def width(self) -> int:
        return round(self.true_features / self.crowding)


class RowInputs(Prefix):
    """Rows of numbers as sequences of one position."""

    def has_positions(self, inputs: Tensor) -> bool:
        return False

    def forward(self, inputs: Tensor) -> Tensor:  # [n, d] -> [n, 1, d + 1]
        return with_constant(inputs)[:, None]


class Draws:
    """Random numbers by purpose: other purposes do not change them."""

    def __init__(self, seed: int):
        self._seed = seed

    def __call__(self, purpose: str, index: int = 0) -> np.random.Generator:
        return np.random.default_rng([self._seed, index, *purpose.encode()])

    def normal(self, purpose: str, index: int, *shape: int) -> Tensor:
        return torch.from_numpy(self(purpose, index).standard_normal(shape))


def plant(spec: PlantedSpec | None = None, seed: int = 0) -> KnownNetwork:
    """Make a residual MLP with known parts.

    Args:
        spec: The parameters; default: four parts of six features, mixed by rotations.
        seed: Seed of weights, mixings and inputs.

    Returns:
        The network, inputs for it, and the truth about both.

    Raises:
        InterbasisError: The parameters contradict each other.
    """
    spec = spec or PlantedSpec()
    if spec.width < 2:
        raise InterbasisError(
            f"the stream requires at least 2 dimensions, received {spec.width}; use less crowding"
        )
    draws = Draws(seed)
    blocks = [_ResidualStep.from_spec(spec, draws, layer) for layer in range(spec.depth)]
    outputs = _outputs(spec, draws)  # [outputs, true]
    values = [_inputs(spec, draws)]
    for block in blocks:
        values.append(block(values[-1]))
    mixings = [_mixing(spec, draws, layer) for layer in range(spec.depth + 1)]
    network = _network(spec, blocks, outputs, mixings)
    label = [0 if spec.duplicated and part == 1 else part for part in range(spec.parts)]
    label = [number - (spec.duplicated and number > 0) for number in label]
    parts = torch.tensor(label).repeat_interleave(spec.size)
    parts = torch.cat([parts, torch.full((spec.unread,), NO_PART)])
    output_parts = torch.tensor(label).repeat_interleave(spec.outputs)
    acts_on = torch.eye(max(label) + 1, dtype=torch.bool)
    if spec.cross_talk:
        for part in range(spec.parts):
            acts_on[label[part], label[(part + 1) % spec.parts]] = True
    truth = Truth(
        (*mixings, torch.eye(len(outputs), dtype=torch.float64)),
        (*values, values[-1] @ outputs.T),
        (*[parts] * (spec.depth + 1), output_parts),
        (*[acts_on] * spec.depth, torch.eye(len(acts_on), dtype=torch.bool)),
    )
    return KnownNetwork(network, values[0] @ mixings[0].T, truth)


class _ResidualStep:
    """One residual step in true coordinates: g + B act(A g + b)."""

    def __init__(self, read: Tensor, bias: Tensor, write: Tensor, core: Elementwise):
        self.read, self.bias, self.write, self.core = read, bias, write, core

    @classmethod
    def from_spec(cls, spec: PlantedSpec, draws: Draws, layer: int) -> "_ResidualStep":
        m, w, h = spec.parts, spec.size, spec.hidden
        A = draws.normal("read", layer, m, h, w) / w**0.5
        other = draws.normal("cross-talk", layer, m, h, w) * (spec.cross_talk / w**0.5)
        B = draws.normal("write", layer, m, w, h) / h**0.5
        b = draws.normal("bias", layer, m, h) / 2
        if spec.duplicated:
            A[1], other[1], B[1], b[1] = A[0], other[0], B[0], b[0]
        read, write = torch.block_diag(*A), torch.block_diag(*B)
        for part in range(m if spec.cross_talk else 0):
            neighbour = (part + 1) % m
            read[part * h : (part + 1) * h, neighbour * w : (neighbour + 1) * w] += other[part]
        read = torch.nn.functional.pad(read, (0, spec.unread))
        write = torch.nn.functional.pad(write, (0, 0, 0, spec.unread))
        return cls(read, b.flatten(), write, Elementwise(ACTIVATIONS[spec.activation]()))

    def __call__(self, g: Tensor) -> Tensor:  # [n, true] -> [n, true]
        return g + self.core.activation(g @ self.read.T + self.bias) @ self.write.T


def _inputs(spec: PlantedSpec, draws: Draws) -> Tensor:  # [samples, true]
    m, w, n = spec.parts, spec.size, spec.samples
    separate = _drawn(spec, draws("inputs"), (n, m, w))
    common = _drawn(spec, draws("common inputs"), (n, 1, w))
    g = (1 - spec.correlation) ** 0.5 * separate + spec.correlation**0.5 * common
    if spec.duplicated:
        g[:, 1] = g[:, 0]
    g = g * torch.logspace(0, float(np.log10(spec.scale)), m, dtype=torch.float64)[:, None]
    unread = UNREAD_SCALE * draws.normal("unread", 0, n, spec.unread)
    return torch.cat([g.flatten(1), unread], dim=1)


def _drawn(spec: PlantedSpec, generator: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Random inputs at mean 0 and variance 1."""
    if spec.inputs == "normal":
        values = generator.standard_normal(shape)
    elif spec.inputs == "uniform":
        values = generator.uniform(-(3**0.5), 3**0.5, shape)
    else:
        values = generator.laplace(0, 0.5**0.5, shape)
    if spec.inputs == "sparse":
        values = values * (generator.random(shape) < ACTIVE) / ACTIVE**0.5
    return torch.from_numpy(values)


def _outputs(spec: PlantedSpec, draws: Draws) -> Tensor:  # [outputs, true]
    blocks = draws.normal("outputs", 0, spec.parts, spec.outputs, spec.size) / spec.size**0.5
    return torch.nn.functional.pad(torch.block_diag(*blocks), (0, spec.unread))


def _mixing(spec: PlantedSpec, draws: Draws, layer: int) -> Tensor:  # [width, true]
    true = spec.true_features
    if spec.crowding > 1:
        columns = draws.normal("crowding", layer, spec.width, true)
        return columns / columns.norm(dim=0)
    if spec.mixing == "none":
        return torch.eye(true, dtype=torch.float64)
    T = torch.linalg.qr(draws.normal("mixing", layer, true, true)).Q
    if spec.mixing == "orthogonal":
        return T
    stretch = CONDITION ** torch.from_numpy(draws("stretch", layer).random(true) - 0.5)
    return T * stretch @ torch.linalg.qr(draws.normal("second mixing", layer, true, true)).Q


def _network(
    spec: PlantedSpec, steps: list[_ResidualStep], outputs: Tensor, mixings: list[Tensor]
) -> Network:
    nodes = [NodeLayer(f"layer{k}", len(T) + 1) for k, T in enumerate(mixings)]
    nodes.append(NodeLayer("output", len(outputs) + 1))
    inverses = [torch.linalg.pinv(T) for T in mixings]
    sections = []
    for k, block in enumerate(steps):
        skip = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), mixings[k + 1] @ inverses[k])
        read = torch.cat([block.bias[:, None], block.read @ inverses[k]], dim=1)
        write = torch.nn.functional.pad(mixings[k + 1] @ block.write, (0, 0, 1, 0))
        skip[:, 0] += write @ block.core.at_zero(block.bias).expand(len(block.bias))
        sections.append(Section(nodes[k], nodes[k + 1], skip, read, write, block.core))
    last = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), outputs @ inverses[-1])
    none = last[:, :0]
    sections.append(Section(nodes[-2], nodes[-1], last, last[:0], none, Linear()))
    return Network(RowInputs(), tuple(sections), family="planted", rotate_last=False)

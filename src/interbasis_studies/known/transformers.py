"""A transformer with set weights: heads and an MLP that read and write known subspaces of a mixed stream.

Tokens are random. In true coordinates the stream holds six subspaces, written one after the other:

    token, position      one-hot, by the embedding
    previous, count      by the first attention: the token before (a head that attends one position back, by
                         positions), and the share of token 0 so far (a head that attends to all alike)
    copied               by the second attention: an induction head, which attends to where the previous token
                         is the current one, and copies the token there
    looked up            by the MLP: a table of the copied token

and the outputs read the last four. So which subspace acts on which is known for every section.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from interbasis.base.records import Record
from interbasis.network.cores import Attention, AttentionShape, Elementwise, Linear
from interbasis.network.network import Network, NodeLayer, Section
from interbasis.network.prefix import Prefix, with_constant
from interbasis_studies.known.planted import Draws
from interbasis_studies.known.truth import KnownNetwork, Truth

TOKENS, POSITIONS, TABLE = 6, 10, 4
SHARPNESS = 6.0
"""Attention scores of the position that a head looks for; others have 0."""
SUBSPACES = {
    "token": TOKENS,
    "position": POSITIONS,
    "previous": TOKENS,
    "count": 1,
    "copied": TOKENS,
    "looked up": TABLE,
}
"""Their sizes, in the order of the true coordinates."""
READS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"previous": ("token", "position"), "count": ("token",)},
    {"copied": ("token", "previous")},
    {"looked up": ("copied",)},
    {},
)
"""Subspaces that each section writes anew, with those it reads; every one also passes on to itself."""
OUTPUTS = ("previous", "count", "copied", "looked up")


class PlantedTransformerSpec(Record):
    """The one parameter of planted transformers."""

    sequences: int = Field(300, ge=2)


class MixedEmbedding(Prefix):
    """One-hot tokens and positions, mixed."""

    mixing: Tensor

    def __init__(self, mixing: Tensor, vocabulary: int = TOKENS):
        super().__init__()
        self.register_buffer("mixing", mixing)
        self.vocabulary = vocabulary

    def forward(self, tokens: Tensor) -> Tensor:  # [n, T] -> [n, T, width + 1]
        g = embedded(tokens, self.vocabulary, self.mixing.shape[1])
        return with_constant(g.to(self.mixing) @ self.mixing.T)


def embedded(tokens: Tensor, vocabulary: int, true: int) -> Tensor:  # [n, T] -> [n, T, true]
    """Token and position, one-hot, in the first true coordinates."""
    g = torch.zeros(*tokens.shape, true, dtype=torch.float64)
    g[..., :vocabulary] = nn.functional.one_hot(tokens, vocabulary).double()
    positions = tokens.shape[1]
    g[..., vocabulary : vocabulary + positions] = torch.eye(positions, dtype=torch.float64)
    return g


def random_mixings(draws: Draws, layers: int, true: int) -> list[Tensor]:
    """A random rotation [true, true] for each layer."""
    return [torch.linalg.qr(draws.normal("mixing", layer, true, true)).Q for layer in range(layers)]


def true_values(plain: Sequence[Section], g: Tensor) -> tuple[Tensor, ...]:  # [n, T, true] -> [n · T, true]
    """True features at every node layer, from those at the first."""
    values = [g]
    f = with_constant(g)
    for section in plain:
        f = section(f)
        values.append(f[..., 1:])
    return tuple(value.flatten(0, 1) for value in values)


def mixed_sections(plain: Sequence[Section], mixings: Sequence[Tensor]) -> tuple[Section, ...]:
    """Sections of true coordinates between layers that are mixed; the last layer is not."""
    rotations = [torch.block_diag(torch.ones(1, 1, dtype=torch.float64), T) for T in mixings]
    return tuple(
        section.in_basis(rotations[k].T, rotations[k + 1] if k + 1 < len(plain) else None)
        for k, section in enumerate(plain)
    )


def plant_transformer(seed: int = 0, samples: int = 300) -> KnownNetwork:
    """A transformer whose subspaces and the interactions between them are known.

    Args:
        seed: Seed of tokens, the table of the MLP, and the rotations that mix every layer.
        samples: Sequences of random tokens.

    Returns:
        The network, its tokens, and the truth; it has no modules, so scores of these are undefined.
    """
    draws = Draws(seed)
    true = sum(SUBSPACES.values())
    tokens = torch.from_numpy(draws("tokens").integers(0, TOKENS, (samples, POSITIONS)))
    plain = _sections(draws)
    mixings = random_mixings(draws, len(plain), true)
    values = true_values(plain, embedded(tokens, TOKENS, true))
    mixed = mixed_sections(plain, mixings)
    network = Network(MixedEmbedding(mixings[0]), mixed, family="planted", rotate_last=False)
    names = list(SUBSPACES)
    parts = torch.arange(len(names)).repeat_interleave(torch.tensor(list(SUBSPACES.values())))
    sizes = torch.tensor([SUBSPACES[name] for name in OUTPUTS])
    of_outputs = torch.tensor([names.index(name) for name in OUTPUTS]).repeat_interleave(sizes)
    truth = Truth(
        (*mixings, torch.eye(len(of_outputs), dtype=torch.float64)),
        values,
        (*[parts] * len(plain), of_outputs),
        tuple(_acts_on(reads) for reads in READS),
        modular=False,
    )
    return KnownNetwork(network, tokens, truth)


def _acts_on(reads: dict[str, tuple[str, ...]]) -> Tensor:
    names = list(SUBSPACES)
    result = torch.eye(len(names), dtype=torch.bool)
    for target, sources in reads.items():
        for source in sources:
            result[names.index(target), names.index(source)] = True
    return result


def _where(name: str) -> slice:
    names = list(SUBSPACES)
    start = sum(SUBSPACES[other] for other in names[: names.index(name)])
    return slice(start, start + SUBSPACES[name])


def _matrix(rows: int, blocks: dict[str, Tensor]) -> Tensor:  # [rows, true + 1]
    """A matrix that reads some subspaces; the constant's column is 0 unless a block is called constant."""
    matrix = torch.zeros(rows, sum(SUBSPACES.values()) + 1, dtype=torch.float64)
    for name, block in blocks.items():
        where = slice(0, 1) if name == "constant" else slice(_where(name).start + 1, _where(name).stop + 1)
        matrix[: len(block), where] = block
    return matrix


def _sections(draws: Draws) -> list[Section]:
    """In true coordinates."""
    true, h = sum(SUBSPACES.values()), max(TOKENS, POSITIONS)
    nodes = [NodeLayer(name, true + 1) for name in ("first_attention", "second_attention", "mlp", "unembed")]
    outputs = sum(SUBSPACES[name] for name in OUTPUTS)
    nodes.append(NodeLayer("output", outputs + 1))
    identity = torch.eye(true + 1, dtype=torch.float64)
    one = torch.eye(h, dtype=torch.float64)
    shift = torch.diag(torch.ones(POSITIONS - 1, dtype=torch.float64), 1)  # row t − 1 is read off position t
    back = SHARPNESS * shift
    token = one[:, :TOKENS]
    zero_token = torch.zeros(1, TOKENS, dtype=torch.float64)
    zero_token[0, 0] = 1
    first = torch.cat(
        [
            _matrix(h, {"position": back}), _matrix(h, {}),
            _matrix(h, {"position": one[:, :POSITIONS]}), _matrix(h, {}),
            _matrix(h, {"token": token}), _matrix(h, {"token": zero_token}),
        ]
    )  # fmt: skip
    one_token = torch.eye(TOKENS, dtype=torch.float64)
    write = _matrix(2 * h, {"previous": one_token, "count": torch.eye(h + 1)[:, -1:]}).T.contiguous()
    attention = Attention(AttentionShape(2, h, scale=1.0))
    sections = [Section(nodes[0], nodes[1], identity, first, write, attention)]
    second = torch.cat(
        [
            _matrix(h, {"token": SHARPNESS * token}), _matrix(h, {"previous": token}),
            _matrix(h, {"token": token}),
        ]
    )  # fmt: skip
    copied = _matrix(h, {"copied": one_token}).T.contiguous()
    induction = Attention(AttentionShape(1, h, scale=1.0))
    sections.append(Section(nodes[1], nodes[2], identity, second, copied, induction))
    rows = 2 * TOKENS
    read = _matrix(rows, {"copied": draws.normal("table read", 0, rows, TOKENS),
                          "constant": draws.normal("table bias", 0, rows, 1) / 2})  # fmt: skip
    table = _matrix(rows, {"looked up": draws.normal("table", 0, TABLE, rows).T}).T.contiguous()
    sections.append(Section(nodes[2], nodes[3], identity, read, table, Elementwise(nn.ReLU())))
    shown = [1 + column for name in OUTPUTS for column in range(true)[_where(name)]]
    unembed = identity[[0, *shown]]
    sections.append(Section(nodes[3], nodes[4], unembed, unembed[:0], unembed[:, :0], Linear()))
    return sections

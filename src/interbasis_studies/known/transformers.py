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

import torch
from pydantic import Field

from interbasis.base.records import Record
from interbasis_studies.known.planted import Draws
from interbasis_studies.known.programs import AttentionStep, LookupStep, Program, Selector, program_network
from interbasis_studies.known.truth import KnownNetwork

TOKENS, POSITIONS, TABLE = 6, 10, 4
SHARPNESS = 6.0
"""Attention scores of the position that a head looks for; others have 0."""


class PlantedTransformerSpec(Record):
    """The one parameter of planted transformers."""

    sequences: int = Field(300, ge=2)


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


def transformer_program(draws: Draws) -> Program:
    """The steps on the six subspaces, with a random table."""
    positions = torch.eye(POSITIONS, dtype=torch.float64)
    token = positions[:, :TOKENS]  # a head has as many coordinates as there are positions
    before = torch.diag(torch.ones(POSITIONS - 1, dtype=torch.float64), 1)  # row t − 1 is read off position t
    heads = (
        Selector({"position": SHARPNESS * before}, {"position": positions}, {"token": token}, "previous"),
        Selector({}, {}, {"token": token[:1]}, "count"),
    )
    induction = Selector({"token": SHARPNESS * token}, {"previous": token}, {"token": token}, "copied")
    rows = 2 * TOKENS
    read = {
        "copied": draws.normal("table read", 0, rows, TOKENS),
        "constant": draws.normal("table bias", 0, rows, 1) / 2,
    }
    table = LookupStep(read, {"looked up": draws.normal("table", 0, TABLE, rows)})
    return Program(
        {"token": TOKENS, "position": POSITIONS, "previous": TOKENS, "count": 1, "copied": TOKENS,
         "looked up": TABLE},
        (AttentionStep(heads), AttentionStep((induction,)), table),
        ("previous", "count", "copied", "looked up"),
        lambda draw, n: draw.integers(0, TOKENS, (n, POSITIONS)),
        ("first_attention", "second_attention", "mlp"),
    )  # fmt: skip

"""Passes over data of two models: sums of differences, and the tokens where leading directions are active."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from interbasis.analysis.differences.measured_section import MeasuredSection
from interbasis.analysis.differences.records import Along
from interbasis.analysis.nested_states import nested, within
from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Chunk, Pass, add_sums
from interbasis.network.cores import Sums
from interbasis.network.network import Network
from interbasis.numerics.random_signs import random_positions

MAX_GROUPS_PER_CHUNK = 4
"""Groups of samples that a chunk is cut into, for errors over samples."""
COLUMNS = ("outputs", "inputs", "total", "passed_on", "arising", "jacobian", "own_jacobian")
"""Sums of every group of samples: positions that come out and go in, and traces in the metric W."""
PREFIX = -1
"""Number of the prefix (embeddings), where it stands in place of a section."""


@dataclass
class DifferenceSums:
    """Sums over data, by the number of the section and a name, and traces by section and group of samples."""

    sums: Sums = field(default_factory=dict)
    groups: dict[int, Tensor] = field(default_factory=dict)
    """[groups, COLUMNS] in float64."""

    def section(self, index: int, kind: str) -> Sums:
        """Sums of one section and kind."""
        return within(f"{index}.{kind}", self.sums)


class DifferencePass(Pass[DifferenceSums]):
    """Sums of the differences of neighbouring sections, from number ``first`` on."""

    phase = "differences"

    def __init__(
        self,
        networks: tuple[Network, Network],
        sections: Sequence[MeasuredSection],
        first: int,
        along: Along,
        prefix_transform: Tensor,
        queries: int | None = None,
    ):
        """``queries`` are query positions sampled per sequence in attention's Jacobians; None is all."""
        self.networks, self.sections, self.first, self.along = networks, sections, first, along
        self.prefix_transform, self.queries = prefix_transform, queries
        self.name, self.file = f"differences from section {first}", f"differences.{first}"

    def start(self) -> DifferenceSums:
        return DifferenceSums()

    @torch.no_grad()
    def update(self, state: DifferenceSums, chunk: Chunk) -> None:
        inputs = chunk.inputs
        size = -(-len(inputs) // MAX_GROUPS_PER_CHUNK)
        for number, part in enumerate(inputs.split(size)):
            self._add(state, part, chunk.first + number * size)

    def _add(self, state: DifferenceSums, inputs: Tensor, sample: int) -> None:
        f, g = (network.activations_at(self.first, inputs) for network in self.networks)
        if self.first == 0:
            size, change = f.shape[0] * f.shape[1], _square((f - g) @ self.prefix_transform.to(f).T)
            _add_row(state, PREFIX, {"outputs": size, "total": change, "arising": change})
        for k, measured in enumerate(self.sections, self.first):
            f, g = self._section(state, k, measured, f, g, sample)

    def _section(
        self, state: DifferenceSums, k: int, measured: MeasuredSection, f: Tensor, g: Tensor, sample: int
    ) -> tuple[Tensor, Tensor]:
        """Add one section's sums; return the next activations of both models."""
        T, shared = measured.transform.to(f), f if self.along == "first" else g
        if not measured.changed:
            after_f, after_g = measured.first(f), measured.second(g)
        else:
            D, computed, base = measured.outputs(shared)  # F(f) − G(f) and G(f) of the shared input
            along_first = self.along == "first"
            after_f = base + D if along_first else measured.first(f)
            after_g = measured.second(g) if along_first else base
        total = after_f - after_g
        row = {
            "outputs": after_f.shape[0] * after_f.shape[1], "inputs": f.shape[0] * f.shape[1],
            "total": _square(total @ T.T),
        }  # fmt: skip
        row["passed_on"] = row["total"]
        if measured.changed:
            sums = measured.core_sums(shared, self._queries(k, shared, sample))
            row["arising"] = _square(D @ T.T)
            row["passed_on"] = 0.0 if torch.equal(f, g) else _square((total - D) @ T.T)
            row["jacobian"], row["own_jacobian"] = measured.traces(sums, shared)
            own = (computed @ T.T).flatten(0, 1).double()
            D = D.flatten(0, 1).double()
            moments = {"gram": D.T @ D, "own": own.sum(0), "own_square": own.square().sum()}
            add_sums(state.sums, nested({f"{k}.core": sums, f"{k}.outputs": moments}))
        _add_row(state, k, row)
        return after_f, after_g

    def _queries(self, k: int, f: Tensor, sample: int) -> Tensor | None:  # [n, Q]
        """Sampled query positions of a section, addressed by sample; None is all."""
        if self.queries is None or self.queries >= f.shape[1]:
            return None
        key = ("queries", 0, k)
        return random_positions(key, sample, len(f), self.queries, f.shape[1]).to(f.device)

    def merge(self, state: DifferenceSums, other: DifferenceSums) -> None:
        add_sums(state.sums, other.sums)
        for k, rows in other.groups.items():
            _append(state.groups, k, rows)

    def dump(self, state: DifferenceSums) -> State:
        groups = {str(k): rows for k, rows in state.groups.items()}
        return nested({"sums": state.sums, "groups": groups}), {}

    def load(self, saved: State) -> DifferenceSums:
        groups = {int(k): rows for k, rows in within("groups", saved[0]).items()}
        return DifferenceSums(within("sums", saved[0]), groups)


def _add_row(state: DifferenceSums, k: int, row: Mapping[str, float]) -> None:
    """Add a group of samples; what the row does not name is 0."""
    rows = torch.tensor([[float(row.get(name, 0.0)) for name in COLUMNS]], dtype=torch.float64)
    _append(state.groups, k, rows)


def _append(groups: dict[int, Tensor], k: int, rows: Tensor) -> None:
    groups[k] = torch.cat([groups[k], rows.to(groups[k])]) if k in groups else rows


def _square(x: Tensor) -> float:
    return float(x.double().square().sum())


Readers = Mapping[str, Tensor]
"""Rows that read how active leading directions of one section are at a token, by side: "outputs" [k, d_out]
of the difference of the outputs, others [k, d_in] of the input; the constant's column centres it."""
Places = dict[str, Tensor]
"""By section and side: values [k, m], and the samples and positions [k, m] they are at."""


class PlacesPass(Pass[Places]):
    """The tokens where leading directions are most active, by the magnitude of the projection."""

    phase, name, file = "examples", "places of changes", "places"

    def __init__(
        self,
        networks: tuple[Network, Network],
        sections: dict[int, MeasuredSection],
        readers: dict[int, Readers],
        count: int,
        along: Along,
    ):
        self.network, self.along = networks[0 if along == "first" else 1], along
        self.sections, self.readers, self.count = sections, readers, count

    def start(self) -> Places:
        return {}

    @torch.no_grad()
    def update(self, state: Places, chunk: Chunk) -> None:
        f, first = self.network.prefix(chunk.inputs), 0  # number of the first position that is left
        for k, section in enumerate(self.network.sections[: max(self.readers, default=-1) + 1]):
            first_out = first + (f.shape[1] - 1 if section.last_only else 0)
            if k in self.readers:
                D, _, base = self.sections[k].outputs(f)
                for side, rows in self.readers[k].items():
                    x, position = (D, first_out) if side == "outputs" else (f, first)
                    self._add(state, f"{k}.{side}", x @ rows.to(x).T, chunk.first, position)
                f = base + D if self.along == "first" else base
            else:
                f = section(f)
            first = first_out

    def _add(self, state: Places, name: str, values: Tensor, sample: int, position: int) -> None:
        """Add values [n, T, k], the first of them at a sample and a position."""
        n, T, _ = values.shape
        flat = values.flatten(0, 1).T.double()  # [k, n·T]
        best = flat.abs().topk(min(self.count, n * T), dim=1).indices
        found = torch.stack([flat.gather(1, best), sample + best // T, position + best % T])  # [3, k, m]
        state[name] = found if name not in state else self._best(state[name], found)

    def _best(self, one: Tensor, other: Tensor) -> Tensor:
        both = torch.cat([one.to(other), other], dim=2)
        best = both[0].abs().topk(min(self.count, both.shape[2]), dim=1).indices
        return both.gather(2, best.expand(3, -1, -1))

    def merge(self, state: Places, other: Places) -> None:
        for name, found in other.items():
            state[name] = found if name not in state else self._best(state[name], found)

    def dump(self, state: Places) -> State:
        return dict(state), {}

    def load(self, saved: State) -> Places:
        return dict(saved[0])

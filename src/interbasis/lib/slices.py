"""Jacobians over slices of the data: samples on one side of a plane through the first node layer.

A slice s of the data has its own Gram M̂_s = E_s[ĴᵀĴ] and its own mean Jacobian J̄_s = E_s[Ĵ], both in the
features of two bases. Both come from the cores' sums over the slice, so one pass over the data serves all
slices and layers, once the bases are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interbasis.base.devices import sums_device
from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Chunk, Executor, Pass, add_sums
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.jacobians import Jacobians
from interbasis.network.cores import Moments, PassCore, StatisticsCore, Sums
from interbasis.network.network import Network, Section
from interbasis.network.section_jacobian import DenseJacobian
from interbasis.numerics.linalg import haar_rotation

SLICED = "slices"
"""Name of the pass."""
SLICES = 16
"""Planes, each of which makes a slice of the samples on one side of it; all samples are a slice as well."""


@dataclass(frozen=True, eq=False)
class SlicedSection:
    """Jacobians of one section in every slice that has samples, in features without the constant."""

    grams: Tensor
    """M̂_s [slices, r_in, r_in]."""
    means: Tensor
    """J̄_s [slices, r_out, r_in], at the output's own position."""


def jacobians_on_slices(jacobians: Jacobians, layers: Sequence[LayerBasis]) -> list[SlicedSection]:
    """Jacobians of every section between these bases, slice by slice, over the data of ``jacobians``."""
    pass_ = SlicesPass(jacobians.network, layers, jacobians.settings.seed)
    sections = (jacobians.executor or Executor(jacobians.network)).run(pass_, jacobians.data)
    return [
        section.jacobians(source, target)
        for section, source, target in zip(sections, layers, layers[1:], strict=False)
    ]


class SlicesPass(Pass[list["SliceSums"]]):
    """Sums of all cores, slice by slice."""

    name = phase = SLICED
    file = "slices"

    def __init__(self, network: Network, layers: Sequence[LayerBasis], seed: int):
        self.network, self.layers = network, layers
        self.planes = _planes(layers[0], seed).to(network.device, network.dtype)

    def start(self) -> list["SliceSums"]:
        return [
            SliceSums(section, None if layer.identity else layer.transform, len(self.planes) + 1)
            for section, layer in zip(self.network.sections, self.layers[1:], strict=True)
        ]

    @torch.no_grad()
    def update(self, state: list["SliceSums"], chunk: Chunk) -> None:
        f = chunk.activations_at(0)
        side = f.mean(1) @ self.planes.T > 0  # [n, planes]
        everything = torch.ones_like(side[:, :1])
        members = torch.cat([everything, side], dim=1).T  # [slices, n]
        for section in state:
            f = section.add(f, members)

    def merge(self, state: list["SliceSums"], other: list["SliceSums"]) -> None:
        for section, more in zip(state, other, strict=True):
            section.merge(more)

    def dump(self, state: list["SliceSums"]) -> State:
        tensors = {name: t for k, section in enumerate(state) for name, t in section.tensors(k).items()}
        return tensors, {"counts": [section.counts for section in state]}

    def load(self, saved: State) -> list["SliceSums"]:
        sections = self.start()
        for number, section in enumerate(sections):
            section.restore(number, *saved)
        return sections


def _planes(layer: LayerBasis, seed: int) -> Tensor:  # [planes, width]
    """Normals of planes through the mean: random mixtures of the layer's features, each at variance 1."""
    first = layer.first_feature
    C = layer.transform[first:]
    assert layer.eigenvalues is not None
    standard = C / layer.eigenvalues[first:].clamp_min(torch.finfo(torch.float64).tiny).sqrt()[:, None]
    turns = [haar_rotation(len(C), (seed, 2**32 + k)) for k in range(-(-SLICES // max(len(C), 1)))]
    return torch.cat(turns)[:SLICES] @ standard


class SliceSums:
    """Sums of one section's core, slice by slice."""

    def __init__(self, section: Section, transform: Tensor | None, slices: int):
        self.section, self.slices = section, slices
        self.jacobian = DenseJacobian.from_section(section, transform)
        self.metric = self.jacobian.metric
        self.sums: list[Sums] = [{} for _ in range(slices)]
        self.counts = [[0, 0] for _ in range(slices)]  # input positions, output positions

    def add(self, f: Tensor, members: Tensor) -> Tensor:  # [n, T, d], [slices, n]
        """Add a chunk, and return the activations of the next layer."""
        section, u = self.section, self.section.read_outs(f)
        outputs, core = section.outputs(f), section.core
        for number, member in enumerate(members):
            count = int(member.sum())
            if not count:
                continue
            self.counts[number][0] += count * f.shape[1]
            self.counts[number][1] += count * (outputs.stop - outputs.start)
            if isinstance(core, StatisticsCore):
                rows = u[member][:, outputs].flatten(0, 1)[:, None]
                more = core.statistics(rows, slice(0, 1))
            else:
                assert isinstance(core, PassCore)
                more = core.batch_sums(u[member], outputs, self.metric.to(u), None)
            add_sums(self.sums[number], more)
        return section.from_read_outs(f, u)

    def merge(self, other: "SliceSums") -> None:
        """Add the sums of other data."""
        for number, sums in enumerate(other.sums):
            add_sums(self.sums[number], sums)
            pairs = zip(self.counts[number], other.counts[number], strict=True)
            self.counts[number] = [a + b for a, b in pairs]

    def jacobians(self, source: LayerBasis, target: LayerBasis) -> SlicedSection:
        first, out = source.first_feature, target.first_feature
        directions = source.inverse[first:, first:].T  # [r, w]
        grams, means = [], []
        for (inputs, outputs), sums in zip(self.counts, self.sums, strict=True):
            if not inputs:
                continue
            moments: Moments = self.section.core.moments(sums, self.metric)
            gram = self.jacobian.gram(moments, outputs, inputs)
            inner = gram.inner(directions)
            grams.append(inner @ gram.K @ inner.T)
            local = moments.local.to("cpu", torch.float64) / outputs
            skip, read = (matrix.cpu().double() for matrix in (self.section.skip, self.section.read))
            mean = skip if self.jacobian.transform is None else self.jacobian.transform.cpu() @ skip
            mean = (mean + self.jacobian.write.cpu() @ local @ read) @ source.inverse
            means.append(mean[out:, first:])
        return SlicedSection(torch.stack(grams), torch.stack(means))

    def tensors(self, number: int) -> dict[str, Tensor]:
        return {
            f"{number}.{slice_}.{name}": total
            for slice_, sums in enumerate(self.sums)
            for name, total in sums.items()
        }

    def restore(self, number: int, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Take the sums of this section, the number-th, from a state."""
        self.counts = values["counts"][number]
        for name, total in tensors.items():
            section, slice_, key = name.split(".", 2)
            if int(section) == number:
                self.sums[int(slice_)][key] = total.to(sums_device(self.section.skip.device))

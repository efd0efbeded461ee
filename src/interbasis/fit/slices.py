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

from interbasis.fit.jacobian import Jacobians
from interbasis.fit.section_jacobian import SectionJacobian
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.cores import Moments, PassCore, StatisticsCore, Sums
from interbasis.network.network import Section
from interbasis.network.stencil_section import StencilSection
from interbasis.numerics.linalg import haar_rotation
from interbasis.runtime.errors import InterbasisError

SLICES = 16
"""Planes, each of which makes a slice of the samples on one side of it; all samples are a slice as well."""


@dataclass(frozen=True, eq=False)
class SlicedSection:
    """Jacobians of one section in every slice that has samples, in features without the constant."""

    grams: Tensor
    """M̂_s [slices, r_in, r_in]."""
    means: Tensor
    """J̄_s [slices, r_out, r_in], at the output's own position."""


@torch.no_grad()
def jacobians_on_slices(jacobians: Jacobians, layers: Sequence[LayerBasis]) -> list[SlicedSection]:
    """Of every section, over the data of ``jacobians``, between these bases."""
    network, batches = jacobians.network, jacobians.batches
    for step in network.sections:
        if isinstance(step, StencilSection):
            raise InterbasisError(
                f"the basis jib is unsupported for convolutions, and {step.source.name!r} → "
                f"{step.target.name!r} is one; choose lib"
            )
    if not jacobians.counted.all:
        raise InterbasisError(
            "the basis jib counts every token; build it with norm_limit=0 and skip_positions=0, or choose lib"
        )
    planes = _planes(layers[0], jacobians.seed).to(network.device, network.dtype)
    sections = [
        _SumsOfSlices(section, None if layer.identity else layer.transform, len(planes) + 1)
        for section, layer in zip(network.sections, layers[1:], strict=True)
    ]
    checkpoint = jacobians.checkpoints.checkpoint("slices", len(batches))
    for number, section in enumerate(sections):
        section.restore(number, checkpoint.tensors, checkpoint.values)

    def state() -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {name: t for k, section in enumerate(sections) for name, t in section.tensors(k).items()}
        return tensors, {"counts": [section.counts for section in sections]}

    for _, f in jacobians.activations(0, "slices", checkpoint, state):
        side = f.mean(1) @ planes.T > 0  # [n, planes]
        everything = torch.ones_like(side[:, :1])
        members = torch.cat([everything, side], dim=1).T  # [slices, n]
        for section in sections:
            f = section.add(f, members)
    return [
        section.jacobians(source, target)
        for section, source, target in zip(sections, layers, layers[1:], strict=False)
    ]


def _planes(layer: LayerBasis, seed: int) -> Tensor:  # [planes, width]
    """Normals of planes through the mean: random mixtures of the layer's features, each at variance 1."""
    first = layer.first_feature
    C = layer.transform[first:]
    assert layer.eigenvalues is not None
    standard = C / layer.eigenvalues[first:].clamp_min(torch.finfo(torch.float64).tiny).sqrt()[:, None]
    turns = [haar_rotation(len(C), (seed, 2**32 + k)) for k in range(-(-SLICES // max(len(C), 1)))]
    return torch.cat(turns)[:SLICES] @ standard


class _SumsOfSlices:
    """The core's sums of one section, slice by slice."""

    def __init__(self, section: Section, transform: Tensor | None, slices: int):
        self.section, self.slices = section, slices
        self.jacobian = SectionJacobian.of(section, transform)
        self.metric = self.jacobian.metric
        self.sums: list[Sums] = [{} for _ in range(slices)]
        self.counts = [[0, 0] for _ in range(slices)]  # input positions, output positions

    def add(self, f: Tensor, members: Tensor) -> Tensor:  # [n, T, d], [slices, n]
        """Take in a chunk; gives the activations of the next layer."""
        section, u = self.section, self.section.read_outs(f)
        outputs, core = section.outputs(f), section.core
        for number, member in enumerate(members):
            count = int(member.sum())
            if not count:
                continue
            self.counts[number][0] += count * f.shape[1]
            self.counts[number][1] += count * (outputs.stop - outputs.start)
            if isinstance(core, StatisticsCore):
                own = u[member][:, outputs].flatten(0, 1)[:, None]
                more = core.statistics(own, slice(0, 1))
            else:
                assert isinstance(core, PassCore)
                more = core.batch_sums(u[member], outputs, self.metric.to(u.dtype), None)
            totals = self.sums[number]
            for name, total in more.items():
                totals[name] = totals[name] + total if name in totals else total.double()
        return section.from_read_outs(f, u)

    def jacobians(self, source: LayerBasis, target: LayerBasis) -> SlicedSection:
        first, out = source.first_feature, target.first_feature
        directions = source.inverse[first:, first:].T  # [r, w]
        grams, means = [], []
        for (inputs, outputs), sums in zip(self.counts, self.sums, strict=True):
            if not inputs:
                continue
            moments: Moments = self.section.core.moments(sums, self.metric)
            gram = self.jacobian.gram(moments, outputs, inputs)
            inner = directions @ gram.X.T
            grams.append(inner @ gram.K @ inner.T)
            local = moments.local.to("cpu", torch.float64) / outputs
            skip, read = (
                matrix.to("cpu", torch.float64) for matrix in (self.section.skip, self.section.read)
            )
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
        """Take up the sums of this section, the number-th, from a state, where there is one."""
        if not values:
            return
        self.counts = values["counts"][number]
        for name, total in tensors.items():
            section, slice_, key = name.split(".", 2)
            if int(section) == number:
                self.sums[int(slice_)][key] = total.to(self.section.skip.device)

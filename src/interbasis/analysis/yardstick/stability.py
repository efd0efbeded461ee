"""The stability row: whether the same directions are found on other data, or in a network of another seed.

A method is fitted twice. On the test samples, a_i and b_j are the values of the two fits' leading directions,
at most `LEADING` of each. With S their covariances,

    subspace = tr(S_aa⁻¹ S_ab S_bb⁻¹ S_ba) / r         mean squared canonical correlation,
    matched  = mean |corr(a_i, b_π(i))|                 over the best one-to-one matching π.

Both are 1 where the fits agree up to scales (matched), or span the same (subspace). They compare values, not
coordinates, so that networks of other seeds, whose coordinates have nothing in common, can be compared, too.
Intervals are over test samples, moved to their centre: samples drawn again agree better than new ones would.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from interbasis.analysis.ablation.bootstrap import DRAWS
from interbasis.analysis.yardstick.codes import CodedPlace, CoordinateCode, LinearCode
from interbasis.analysis.yardstick.measure import estimate
from interbasis.compute.executor import chunk_size
from interbasis.data.batches import Batches
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network

LEADING = 16
"""Directions that are compared, at most."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Directions of a method at one place of a network, from some data."""

    network: Network
    place: CodedPlace
    code: LinearCode | CoordinateCode
    counted: CountedTokens

    def values(self, f: Tensor, count: int) -> Tensor:  # [n, T, width] -> [n, T, count]
        """Values of the leading directions."""
        x = f[..., self.place.columns].double() - self.code.centre.to(f.device)
        if isinstance(self.code, LinearCode):
            return x @ self.code.encoder[:count].to(x).T
        return x[..., self.code.order[:count].to(f.device)]


@torch.no_grad()
def sample_moments(fits: tuple[Fit, Fit], data: Batches) -> Tensor:  # [samples, 1 + 2r, 1 + 2r]
    """Σ over tokens that count in both fits of the outer product of (1, a, b), sample by sample."""
    count = min(LEADING, *(fit.code.directions for fit in fits))
    sums = []
    for _, inputs in data.chunks(chunk_size(fits[0].network, data)):
        values, counts = [], []
        for fit in fits:
            f = fit.network.activations_at(fit.place.layer, inputs.to(fit.network.device))
            values.append(fit.values(f, count))
            counts.append(fit.counted.at(fit.place.layer, fit.network.nodes[fit.place.layer], f))
        joint = torch.cat([torch.ones_like(values[0][..., :1]), *values], dim=2)
        joint = joint * (counts[0] & counts[1])[..., None]
        sums.append((joint.mT @ joint).cpu())
    return torch.cat(sums)


def agreement_of_moments(moments: Tensor) -> tuple[Tensor, Tensor]:  # [draws, 1 + 2r, 1 + 2r] -> [draws] each
    """Subspace and matched agreement."""
    counts = moments[:, :1, :1]
    mean = moments[:, :1, 1:] / counts
    S = moments[:, 1:, 1:] / counts - mean.mT * mean
    spread = S.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(S.dtype).tiny).sqrt()
    S, r = S / (spread[:, :, None] * spread[:, None]), S.shape[1] // 2
    aa, ab, bb = S[:, :r, :r], S[:, :r, r:], S[:, r:, r:]
    forward = torch.linalg.pinv(aa, hermitian=True) @ ab
    back = torch.linalg.pinv(bb, hermitian=True) @ ab.mT
    subspace = (forward * back.mT).sum((1, 2)) / r
    gains = ab.abs().numpy()
    pairs = [linear_sum_assignment(-gain) for gain in gains]
    matched = [gain[pair].mean() for gain, pair in zip(gains, pairs, strict=True)]
    return subspace, torch.from_numpy(np.array(matched))


def agreement(fits: tuple[Fit, Fit], data: Batches, seed: int) -> dict[str, object]:
    """Fields of `Agreement` that two fits of one method decide."""
    moments = sample_moments(fits, data)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(moments), (DRAWS, len(moments)), generator=generator)
    weights = torch.zeros(DRAWS + 1, len(moments), dtype=torch.float64)
    weights[1:].scatter_add_(1, chosen, torch.ones(chosen.shape, dtype=torch.float64))
    weights[0] = 1
    resampled = (weights @ moments.flatten(1)).view(-1, *moments.shape[1:])
    rows = agreement_of_moments(resampled)
    for row in rows:
        row[1:] += row[0] - row[1:].mean()  # correlations of samples drawn again are larger
    subspace, matched = map(estimate, rows)
    directions = moments.shape[1] // 2
    return {"directions": directions, "subspace": subspace.model_dump(), "matched": matched.model_dump()}

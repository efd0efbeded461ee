"""Fourier labels of modular addition's features: a feature over all p² pairs as a few cosines.

With f' the 2-D discrete Fourier transform of a feature f(x, y) and total = Σ |f'|², k = 0 included, the
shares are

    const                  |f'_00|² / total
    cos(kx)                2 |f'_k0|² / total, cos(ky) alike; written as one term, cos(kx)+cos(ky) with
                           the sum of the shares, where the two differ by less than 0.01
    cos(k_x x ± k_y y)     2 A±² / total                    the sum form
    cos(k_x x)·cos(k_y y)  (A₊ + A₋)² / total               the product form
    sin(k_x x)·sin(k_y y)  (A₊ − A₋)² / total

with A± = |f'_{k_x,±k_y}|. Either form describes the feature completely: its shares add up to 1, and
amplitudes and phases give the feature back. With φ± the phases of f'_{k_x,±k_y}, the product form has the
phases α = (φ₊ + φ₋)/2 on x and β = (φ₊ − φ₋)/2 on y:

    2A₊ cos(k_x x + k_y y + φ₊) + 2A₋ cos(k_x x − k_y y + φ₋)
      = 2(A₊ + A₋) cos(k_x x + α) cos(k_y y + β) − 2(A₊ − A₋) sin(k_x x + α) sin(k_y y + β).

Which form is written is chosen once per feature. `leading` takes the form with the larger leading share:
it is for people. `paper` takes the sum form iff ΣA₊²/ΣA₋² > Σ(A₊+A₋)²/Σ(A₊−A₋)², for comparison with the
paper. At the highest frequency of an even p the two forms coincide, and the sum form is written.

A feature is monosemantic where its leading term has nearly all of it; the shares of bases are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.stats import ks_2samp, norm
from torch import Tensor

from interbasis.analysis.features.activations import FeatureReader
from interbasis.analysis.features.records import FourierLabel, FourierTerm, MonosemanticCount
from interbasis.base.errors import InterbasisError
from interbasis.data.modadd import pairs
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network

Form = Literal["leading", "paper"]

MAX_BLOCK_VALUES = 2**23
"""Values of features that are transformed at once."""
MAX_SHARE_DIFFERENCE = 0.01
"""cos(kx) and cos(ky) are one term where their shares differ by less."""
ROUNDING = 1e-24
"""Shares below this are rounding errors of float64."""


def fourier(
    network: Network, layer: LayerBasis, form: Form = "leading", terms: int = 5
) -> list[FourierLabel]:
    """Label all features of a layer of a modular-addition network, over all pairs of numbers.

    A feature of a layer with several positions is summed over them.

    Args:
        network: A modular-addition network.
        layer: The basis of one of its node layers.
        form: Sums or products of cosines, chosen per feature: "leading" takes the form with the larger
            leading share, "paper" follows the paper's rule.
        terms: Terms per label, at most.

    Returns:
        One label per feature.
    """
    return label(surfaces(network, layer), form, terms)


def surfaces(network: Network, layer: LayerBasis) -> Tensor:  # [features, p, p]
    """Every feature as a function of x and y, summed over positions."""
    p = network.modulus
    if p is None:
        raise InterbasisError(
            f"Fourier labels are for modular addition, received a network of the family {network.family!r}; "
            "use features.label on surfaces of your own [features, p, p]"
        )
    reader = FeatureReader(network.double(), layer)
    values = torch.cat([reader(inputs).sum(1) for inputs in pairs(p).inputs.split(2**12)])
    return values.T.unflatten(1, (p, p))


def label(surfaces: Tensor, form: Form = "leading", terms: int = 5) -> list[FourierLabel]:
    """Label functions of two numbers, from one FFT.

    Args:
        surfaces: [features, p, p], x first.
        form: As for `fourier`.
        terms: Terms per label, at most.

    Returns:
        One label per feature.

    Raises:
        InterbasisError: The surfaces have another shape, or the form is unknown.
    """
    if surfaces.ndim != 3 or surfaces.shape[1] != surfaces.shape[2] or surfaces.shape[1] < 2:
        raise InterbasisError(
            f"expected features over all pairs, [features, p, p] with p ≥ 2, received {list(surfaces.shape)}"
        )
    if form not in ("leading", "paper"):
        raise InterbasisError(f"the form of a label is 'leading' or 'paper', not {form!r}")
    if terms < 1:
        raise InterbasisError(f"a label has at least one term, not {terms}")
    blocks = surfaces.split(max(1, MAX_BLOCK_VALUES // surfaces[0].numel()))
    return [label for block in blocks for label in Spectrum(block).labels(form, terms)]


class Spectrum:
    """The 2-D spectra of surfaces [features, p, p], and the shares of all terms they may be written in.

    Terms are addressed by slots: const, K of x (or of x and y together), K of y, then K·K of
    cos(k_x x + k_y y) or cos·cos and as many of cos(k_x x − k_y y) or sin·sin.
    """

    def __init__(self, surfaces: Tensor):
        p = surfaces.shape[1]
        self.K = K = p // 2  # the highest frequency
        self.transform = torch.fft.fft2(surfaces.double()) / p**2  # f' [features, p, p]: amplitudes
        total = self.transform.abs().square().sum((1, 2))
        total = total.where(total > 0, torch.ones_like(total))[:, None]  # [features, 1]
        self.x, self.y = self.transform[:, 1 : K + 1, 0], self.transform[:, 0, 1 : K + 1]  # [features, K]
        self.plus = self.transform[:, 1 : K + 1, 1 : K + 1]  # f'_{k_x, k_y} [features, K, K]
        self.minus = self.transform[:, 1 : K + 1, -K:].flip(2)  # f'_{k_x, −k_y} [features, K, K]
        # k and −k are two frequencies but for the highest of an even p
        self.times = torch.where(2 * torch.arange(1, K + 1) == p, 1.0, 2.0).double()  # [K]
        self.both = (self.times == 2)[:, None] & (self.times == 2)  # [K, K], (k_x, ±k_y) are two
        x, y = (self.times * part.abs().square() / total for part in (self.x, self.y))
        self.together = (x - y).abs() < MAX_SHARE_DIFFERENCE  # [features, K], cos(kx)+cos(ky) is one term
        const = self.transform[:, :1, 0].abs().square() / total
        both_shares = torch.where(self.together, x + y, x), torch.where(self.together, 0.0, y)
        self.single = torch.cat([const, *both_shares], dim=1)  # shares [features, 1 + 2K]
        a, b, total = self.plus.abs(), self.minus.abs(), total[:, None]
        times = torch.maximum(self.times[:, None], self.times)
        sums = times * a.square() / total, torch.where(self.both, 2.0, 0.0) * b.square() / total
        products = (a + b).square() / total, (a - b).square() / total
        self.sums = torch.cat([part.flatten(1) for part in sums], dim=1)  # shares [features, 2K²]
        forms = torch.cat([part.flatten(1) for part in products], dim=1)
        self.products = torch.where(self.both.flatten().repeat(2), forms, self.sums)

    def labels(self, form: Form, terms: int) -> list[FourierLabel]:
        """The largest terms of every feature, in sums or products of cosines."""
        # the paper's rule, or the form whose largest term of two variables is larger
        larger_sums = self.sums.amax(1) >= self.products.amax(1) - ROUNDING
        in_sums = self.prefers_sums() if form == "paper" else larger_sums
        shares = torch.cat([self.single, torch.where(in_sums[:, None], self.sums, self.products)], dim=1)
        largest = shares.topk(min(terms, shares.shape[1]), dim=1)
        rows = zip(largest.values.tolist(), largest.indices.tolist(), in_sums.tolist(), strict=True)
        return [
            FourierLabel(
                form="sum" if sums else "product",
                terms=tuple(
                    self.term(feature, slot, share, sums)
                    for place, (share, slot) in enumerate(zip(values, slots, strict=True))
                    if place == 0 or share > ROUNDING
                ),
            )
            for feature, (values, slots, sums) in enumerate(rows)
        ]

    def prefers_sums(self) -> Tensor:  # [features] bool
        """Whether the paper's rule takes the sum form."""
        a, b = self.plus.abs() * self.both, self.minus.abs() * self.both
        plus, minus = a.square().sum((1, 2)), b.square().sum((1, 2))
        cosines, sines = (a + b).square().sum((1, 2)), (a - b).square().sum((1, 2))
        return plus * sines > cosines * minus

    def term(self, feature: int, slot: int, share: float, in_sums: bool) -> FourierTerm:
        """The term at a slot of one feature, which has this share."""
        K = self.K
        phases: tuple[float, ...]
        amplitudes: tuple[float, ...]
        second, (row, column) = slot > K * (K + 2), divmod((slot - 1 - 2 * K) % (K * K), K)
        if slot == 0:
            text, frequencies, phases = "const", (0, 0), (0.0,)
            amplitudes = (self.transform[feature, 0, 0].real.item(),)
        elif slot <= 2 * K:
            k = (slot - 1) % K
            x, y = self.x[feature, k], self.y[feature, k]
            if slot > K:
                text, frequencies, waves = f"cos({k + 1}y)", (0, k + 1), [y]
            elif self.together[feature, k]:
                text, frequencies, waves = f"cos({k + 1}x)+cos({k + 1}y)", (k + 1, k + 1), [x, y]
            else:
                text, frequencies, waves = f"cos({k + 1}x)", (k + 1, 0), [x]
            phases = tuple(_phase(wave) for wave in waves)
            amplitudes = tuple((self.times[k] * wave.abs()).item() for wave in waves)
        elif in_sums or not self.both[row, column]:
            value = (self.minus if second else self.plus)[feature, row, column]
            text, frequencies = f"cos({row + 1}x{'-' if second else '+'}{column + 1}y)", (row + 1, column + 1)
            phases = (_phase(value),)
            amplitudes = (max(self.times[row], self.times[column]).item() * value.abs().item(),)
        else:
            plus, minus = self.plus[feature, row, column], self.minus[feature, row, column]
            a, b = plus.abs().item(), minus.abs().item()
            name, amplitude = ("sin", -2 * (a - b)) if second else ("cos", 2 * (a + b))
            text, frequencies = f"{name}({row + 1}x)·{name}({column + 1}y)", (row + 1, column + 1)
            phases = (_phase(plus) + _phase(minus)) / 2, (_phase(plus) - _phase(minus)) / 2
            amplitudes = (amplitude,)
        return FourierTerm(
            text=text, share=share, frequencies=frequencies, phases=phases, amplitudes=amplitudes
        )


def _phase(value: Tensor) -> float:
    return value.angle().item()


THRESHOLD = 0.9


class Monosemanticity(MonosemanticCount):
    """Leading shares of a layer's features, and the number of those that are mostly one term."""

    shares: tuple[float, ...]
    """The leading term's share of all features, the constant left out."""


def monosemantic(
    labels: Sequence[FourierLabel], top: int = 10, threshold: float = THRESHOLD, constant: bool = True
) -> Monosemanticity:
    """Count features whose leading share, rounded to whole per cent, exceeds the threshold.

    Args:
        labels: Labels of the features of one layer, in order.
        top: Number of features that are considered.
        threshold: Threshold of the leading term's share.
        constant: Whether the first feature is the constant.

    Returns:
        The counts, with and without the constant, and all shares.

    Raises:
        InterbasisError: ``top`` or ``threshold`` is out of range.
    """
    if top < 1 or not 0 <= threshold <= 1:
        raise InterbasisError(
            f"expected at least one feature and a threshold between 0 and 1, received top={top} and "
            f"threshold={threshold}"
        )
    shares = [label.share for label in labels]
    above = [round(100 * share) > round(100 * threshold) for share in shares]
    first = int(constant)
    counts = sum(above[:top]), sum(above[first:][:top])
    shown = tuple(shares[first:])
    return Monosemanticity(paper=counts[0], without_constant=counts[1], top=top, shares=shown)


@dataclass(frozen=True)
class ShareComparison:
    """The leading shares of several bases side by side, over a grid of shares."""

    grid: tuple[float, ...]
    density: dict[str, tuple[float, ...]]
    """Kernel density estimate (Gaussian, reflected at 0 and 1) per basis; its integral over the grid is 1."""
    cumulative: dict[str, tuple[float, ...]]
    """Fraction of features with at most this share, per basis."""
    distance: dict[tuple[str, str], float]
    """Kolmogorov–Smirnov distance of every pair of bases."""
    p_value: dict[tuple[str, str], float]


def compare(shares: dict[str, Sequence[float]], points: int = 101) -> ShareComparison:
    """Compare the leading shares of features in different bases.

    Args:
        shares: Leading shares of the features of each basis, {"lib": …, "pca": …}.
        points: Points of the grid that densities are given at.

    Returns:
        Densities, cumulative distributions, and Kolmogorov–Smirnov tests between bases.

    Raises:
        InterbasisError: A basis has no shares, or there are fewer than two points.
    """
    if points < 2 or not shares or any(len(values) == 0 for values in shares.values()):
        raise InterbasisError("expected at least two points, and at least one share for each basis")
    grid = np.linspace(0, 1, points)
    arrays = {name: np.asarray(values, dtype=float) for name, values in shares.items()}
    names = list(arrays)
    tests = {(a, b): ks_2samp(arrays[a], arrays[b]) for i, a in enumerate(names) for b in names[i + 1 :]}
    return ShareComparison(
        tuple(grid.tolist()),
        {name: tuple(_density(values, grid).tolist()) for name, values in arrays.items()},
        {name: tuple((values[:, None] <= grid).mean(0).tolist()) for name, values in arrays.items()},
        {pair: float(test.statistic) for pair, test in tests.items()},
        {pair: float(test.pvalue) for pair, test in tests.items()},
    )


def _density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Kernel density with the mass beyond 0 and 1 folded back; the kernel's width is at least 1 %."""
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    width = max(spread * len(values) ** -0.2, 0.01)  # Scott's rule
    folded = np.stack([grid, -grid, 2 - grid])[..., None]  # [3, points, 1]
    return norm.pdf(folded, values, width).mean(2).sum(0)

"""Share of a feature that one Fourier term explains, counted and compared between bases."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import gaussian_kde, ks_2samp

from interbasis.analysis.features.records import FourierLabel, MonosemanticCount
from interbasis.base.errors import InterbasisError

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
    return Monosemanticity(
        paper=sum(above[:top]),
        without_constant=sum(above[first:][:top]),
        top=top,
        shares=tuple(shares[first:]),
    )


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
    if spread > 0:
        kernel = gaussian_kde(values, bw_method=width / spread)
        return kernel(grid) + kernel(-grid) + kernel(2 - grid)
    folded = [(grid - values[0]), (-grid - values[0]), (2 - grid - values[0])]
    return sum(np.exp(-0.5 * (x / width) ** 2) for x in folded) / (width * np.sqrt(2 * np.pi))

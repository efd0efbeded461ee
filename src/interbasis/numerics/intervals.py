"""Confidence intervals."""

from torch import Tensor


def mean_interval(values: Tensor) -> tuple[float, float]:  # [n]
    """95 % interval of the mean of at least two values, by Student's t."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * values.std().item() / len(values) ** 0.5
    return values.mean().item() - half, values.mean().item() + half

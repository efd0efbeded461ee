"""One rotation that makes several symmetric matrices as diagonal as they can be made together.

Jacobi's method for simultaneous diagonalisation (Cardoso & Souloumiac 1996): the angle that is best for one
pair of coordinates, over all matrices, has a closed form. Pairs that share no coordinate are turned at once,
in the order of a round-robin tournament, so that a sweep over all pairs is w − 1 vectorised steps.
"""

import numpy as np
import torch
from torch import Tensor

MAX_SWEEPS = 60
SMALLEST_ANGLE = 1e-9
"""Radians. A sweep whose largest angle is below it is the last one."""


def joint_rotation(matrices: Tensor) -> Tensor:  # [k, w, w] -> [w, w]
    """R, orthogonal, whose rows minimise Σ_k Σ_{i≠j} (R A_k Rᵀ)_ij²; the identity where nothing is gained.

    The minimum is a local one, reached from the identity.
    """
    A = matrices.detach().to("cpu", torch.float64).numpy().copy()
    A = (A + A.transpose(0, 2, 1)) / 2
    width = A.shape[1]
    rotation = np.eye(width)
    for _ in range(MAX_SWEEPS if width > 1 else 0):
        largest = max(_turn(A, rotation, p, q) for p, q in _rounds(width))
        if largest < SMALLEST_ANGLE:
            break
    return torch.from_numpy(rotation)


def _turn(A: np.ndarray, rotation: np.ndarray, p: np.ndarray, q: np.ndarray) -> float:
    """Turn the pairs (p_i, q_i), which share no coordinate, in place; gives the largest angle."""
    difference, twice = A[:, p, p] - A[:, q, q], 2 * A[:, p, q]  # [k, pairs]
    on = (difference**2 - twice**2).sum(0)
    off = 2 * (difference * twice).sum(0)
    angle = 0.5 * np.arctan2(off, on + np.hypot(on, off))
    cosine, sine = np.cos(angle), np.sin(angle)
    for axis in (1, 2):
        view = A.swapaxes(1, axis)  # [k, turned, other]
        first, second = view[:, p], view[:, q]
        view[:, p] = cosine[:, None] * first + sine[:, None] * second
        view[:, q] = cosine[:, None] * second - sine[:, None] * first
    first, second = rotation[p], rotation[q]
    rotation[p] = cosine[:, None] * first + sine[:, None] * second
    rotation[q] = cosine[:, None] * second - sine[:, None] * first
    return float(np.abs(angle).max())


def _rounds(width: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """All pairs of coordinates in rounds of disjoint ones; a bye where the width is odd."""
    players = width + width % 2
    circle = list(range(players))
    rounds = []
    for _ in range(players - 1):
        pairs = [
            tuple(sorted((circle[i], circle[-1 - i])))
            for i in range(players // 2)
            if max(circle[i], circle[-1 - i]) < width
        ]
        rounds.append((np.array([p for p, _ in pairs]), np.array([q for _, q in pairs])))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds

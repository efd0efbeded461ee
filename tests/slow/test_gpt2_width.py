"""Closed forms at GPT2-small's width in float64, against the general path over all positions."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from cases import as_general, batch_moments, normal
from interbasis.network.cores import Attention, AttentionShape, Elementwise
from interbasis.network.network import NodeLayer, Section
from reference import relative_error

WIDTH, HIDDEN, HEADS, POSITIONS = 768, 3072, 12, 24
NODES = NodeLayer("in", WIDTH + 1), NodeLayer("out", WIDTH + 1)

pytestmark = pytest.mark.slow


def section(core: Attention | Elementwise, read: int, write: int) -> Section:
    reads = normal(read, WIDTH + 1, seed=1) / math.sqrt(WIDTH)
    writes = normal(WIDTH + 1, write, seed=2) / math.sqrt(write)
    return Section(*NODES, torch.eye(WIDTH + 1).double(), reads, writes, core)


def stream() -> torch.Tensor:
    f = normal(1, POSITIONS, WIDTH + 1, seed=3)
    f[..., 0] = 1
    return f


def test_attention() -> None:
    attention = section(Attention(AttentionShape(HEADS, WIDTH // HEADS)), 3 * WIDTH, WIDTH)
    f = stream()
    u, at = f @ attention.read.T, attention.outputs(f)
    metric = attention.write.T @ attention.write
    closed = batch_moments(attention.core, u, at, metric)
    general = batch_moments(as_general(attention).core, u, at, metric)
    assert relative_error(closed.gram, general.gram) <= 1e-10
    assert relative_error(closed.local, general.local) <= 1e-10


def test_mlp() -> None:
    mlp: Any = section(Elementwise(nn.GELU()), HIDDEN, HIDDEN)
    f = stream()
    u, at = f @ mlp.read.T, mlp.outputs(f)
    metric = mlp.write.T @ mlp.write
    closed = mlp.core.moments(mlp.core.statistics(u, at), metric)
    # one random direction per output coordinate would be too many here: compare quadratic forms x ΣNᵀQN xᵀ
    directions = normal(20, HIDDEN, seed=4)
    slopes = torch.autograd.functional.jvp(nn.GELU(), u, torch.ones_like(u))[1][0]  # [positions, hidden]
    pushed = directions[:, None] * slopes  # [20, positions, hidden]
    expected = torch.einsum("xsi,ij,xsj->x", pushed, metric, pushed)
    found = torch.einsum("xi,ij,xj->x", directions, closed.gram, directions)
    assert relative_error(found, expected) <= 1e-10

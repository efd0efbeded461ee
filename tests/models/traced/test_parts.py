"""Every part that is recognised, alone: outputs, and closed forms against per-sample Jacobians."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cases import normal
from interbasis import from_torch
from interbasis.network.cores import General, PassCore
from interbasis.network.network import Section
from interbasis.network.section_jacobian import DenseJacobian
from interbasis.network.stencil_section import StencilSection
from models.traced.networks import with_statistics
from reference import jacobian_gram, relative_error


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.map = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.map(x))


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.inner, self.causal = nn.MultiheadAttention(6, 2, batch_first=True), causal

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if self.causal else None
        return x + self.inner(x, x, x, attn_mask=mask, need_weights=not self.causal)[0]


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(7, 6), nn.Linear(6, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.tokens(x)))


ROWS, SEQUENCES = (6,), (4, 6)
PARTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Conv1d(6, 2, 1)), (6, 4)),
    "layer norm": (lambda: Function(nn.LayerNorm(6)), SEQUENCES),
    "RMS norm": (lambda: Function(nn.RMSNorm(6, eps=1e-6)), ROWS),
    "functions": (lambda: Function(lambda x: F.elu(F.softplus(torch.tanh(x)) * 2 - 1)), ROWS),
    "PReLU": (lambda: Function(nn.PReLU(6)), ROWS),
    "GLU": (lambda: Function(lambda x: F.glu(x, -1)), SEQUENCES),
    "chunks": (lambda: Function(lambda x: torch.cat([a.relu() for a in x.chunk(3, -1)], -1)), ROWS),
    "attention": (lambda: Attention(False), SEQUENCES),
    "causal attention": (lambda: Attention(True), SEQUENCES),
    "first position": (lambda: Function(lambda x: x[:, 0].relu()), SEQUENCES),
    "mean of positions": (lambda: Function(lambda x: x.relu().mean(1)), SEQUENCES),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1, bias=True), nn.SiLU()), (2, 5, 5)),
    "reflected": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.ReLU()),
        (2, 4, 4),
    ),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv1d(4, 4, 3, padding=2, dilation=2, groups=4), nn.GELU()),
        (4, 6),
    ),
    "three dimensions": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU()), (1, 3, 3, 3)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3, 2, 1, 1), nn.ReLU()), (2, 3, 3)),
    "pools": (lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.MaxPool2d(2), nn.AvgPool2d(2, 1, 1)), (2, 6, 6)),
    "flatten": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)),
        (2, 3, 3),
    ),
    "enlarged": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Upsample(scale_factor=2, mode="bilinear")),
        (2, 3, 3),
    ),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4)), (2, 3, 3)),
    "group norm of rows": (
        lambda: Function(
            lambda x: nn.functional.group_norm(x, 3, torch.arange(6).double(), torch.ones(6).double()).relu()
        ),
        (6,),
    ),
    "group norm of every position": (
        lambda: Function(lambda x: nn.functional.group_norm(x.flatten(0, 1), 2).view(-1, *SEQUENCES).relu()),
        SEQUENCES,
    ),
    "instance norm": (lambda: nn.Sequential(nn.Conv1d(2, 4, 2), nn.InstanceNorm1d(4, affine=True)), (2, 4)),
    "instance norm with stored statistics": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.InstanceNorm2d(4, track_running_stats=True)),
        (2, 3, 3),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str) -> None:
    torch.manual_seed(0)
    make, shape = PARTS[name]
    module = with_statistics(make())
    network = from_torch(module, normal(2, *shape))
    inputs = normal(3, *shape, seed=1)
    assert relative_error(network(inputs), module(inputs)) <= 1e-9
    for section, f in zip(network.sections, network.activations(inputs), strict=False):
        assert section(torch.zeros_like(f[:1])).abs().max() <= 1e-12
        if not isinstance(section, StencilSection) and not isinstance(section.core, General):
            _check_gram(section, f)


def _check_gram(section: Section, f: Tensor) -> None:
    jacobian, core = DenseJacobian.from_section(section, None), section.core
    u, outputs = section.read_outs(f), section.outputs(f)
    if isinstance(core, PassCore):
        sums = core.batch_sums(u, outputs, jacobian.metric, None)
    else:
        sums = core.statistics(u, outputs)  # type: ignore[attr-defined]
    count = len(f) * f.shape[1]
    gram = jacobian.gram(core.moments(sums, jacobian.metric), count, count)
    expected = jacobian_gram(section, f, torch.eye(section.target.width, dtype=torch.float64))[1:, 1:]
    assert relative_error(gram.matrix, expected) <= 1e-10


def test_embeddings_are_the_prefix_and_are_named() -> None:
    module = Tokens().double()
    tokens = torch.arange(12).view(3, 4) % 7
    network = from_torch(module, tokens)
    assert "embedding in tokens" in repr(network.prefix)
    assert relative_error(network(tokens[:, :3]), module(tokens[:, :3])) <= 1e-9

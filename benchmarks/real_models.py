"""MobileNetV2 on enlarged CIFAR images, as a model for the command line.

    cd benchmarks
    interbasis show python:real_models:mobilenet
    interbasis build python:real_models:mobilenet --data cifar10:PATH,samples=1000 --dtype float32 \
        --edge-method none --out RUN

Weights are read from the folder mobilenet of INTERBASIS_MODELS (default: ../models, next to the clone).
"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

CLONE = Path(__file__).parents[1]
sys.path.insert(0, str(CLONE / "tests"))

from models.traced import networks  # noqa: E402

SIDE = 64
"""Pixels of an enlarged image, twice those of CIFAR; 224, what it was trained on, costs 12 times as much."""


class OnSmallImages(nn.Module):
    """Rows of CIFAR in [−1, 1], enlarged and scaled as the network was trained."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self.mean = nn.Buffer(torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.deviation = nn.Buffer(torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, rows: Tensor) -> Tensor:  # [n, 3072] -> [n, 1000]
        images = functional.interpolate(rows.view(-1, 3, 32, 32), size=(SIDE, SIDE), mode="bilinear")
        return self.network(((images + 1) / 2 - self.mean) / self.deviation)


def mobilenet() -> tuple[nn.Module, Tensor]:
    """MobileNetV2 with its weights, and an example."""
    folder = Path(os.environ.get("INTERBASIS_MODELS", CLONE.parent / "models"))
    network = networks.MobileNetV2(networks.FULL, (32, 1280), 1000)
    network.load_state_dict(load_file(folder / "mobilenet" / "mobilenet_v2.safetensors"))
    return OnSmallImages(network).eval(), torch.rand(2, 3072, generator=torch.Generator().manual_seed(0))

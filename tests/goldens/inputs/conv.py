"""A small convolutional network with a residual path."""

import torch
from torch import Tensor, nn

import interbasis
from interbasis.network.network import Network


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        h = h + torch.relu(self.inner(h))
        return self.head(h.mean((2, 3)))


def network() -> Network:
    torch.manual_seed(2)
    return interbasis.from_torch(Block().double(), torch.zeros(1, 2, 6, 6, dtype=torch.float64))

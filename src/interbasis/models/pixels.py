"""Images as the first node layer of a convolutional network: pixels are positions, channels coordinates."""

import math

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.network.network import Prefix
from interbasis.network.prefix import with_constant
from interbasis.network.window import Grid


class Pixels(Prefix):
    """Images [n, channels, grid…], or rows [n, channels · pixels], to [n, pixels, 1 + channels]."""

    def __init__(self, channels: int, grid: Grid, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.channels, self.grid = channels, grid
        self.like = nn.Buffer(torch.zeros((), dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        shape = (self.channels, *self.grid)
        if inputs.shape[1:] not in (shape, (math.prod(shape),)):
            raise InterbasisError(
                f"expected images of shape [samples, {', '.join(map(str, shape))}] or rows of "
                f"{math.prod(shape)} numbers, received {list(inputs.shape)}"
            )
        return with_constant(inputs.to(self.like.dtype).reshape(len(inputs), self.channels, -1).mT)

"""Tokens as the first node layer of a transformer."""

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.network.prefix import Prefix, with_constant


def check_tokens(inputs: Tensor) -> None:
    """Refuse what are no integer tokens [samples, positions]."""
    if inputs.is_floating_point() or inputs.dtype == torch.bool or inputs.ndim != 2:
        raise InterbasisError(
            "expected integer tokens of shape [samples, positions], received "
            f"{inputs.dtype} of shape {list(inputs.shape)}"
        )


class TokenEmbedding(Prefix):
    """Token embedding, plus positions where there are any, normed by ``norm``, with the constant in front.

    ``context`` is the most positions that the network is right for: of learned positions all there are.
    """

    def __init__(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        *,
        context: int | None = None,
        norm: nn.Module | None = None,
    ):
        super().__init__()
        self.norm = norm
        self.tokens = nn.Parameter(tokens, requires_grad=False)  # [vocabulary, d]
        self.positions = None if positions is None else nn.Parameter(positions, requires_grad=False)
        self.context = context if positions is None else len(positions)

    def forward(self, inputs: Tensor) -> Tensor:  # [n, T] -> [n, T, d + 1]
        check_tokens(inputs)
        if self.context is not None and inputs.shape[1] > self.context:
            raise InterbasisError(
                f"the model takes samples of at most {self.context} positions, received tokens of shape "
                f"{list(inputs.shape)}; choose shorter ones (context={self.context} after the data's name)"
            )
        inputs = inputs.long()
        if inputs.numel() and not 0 <= inputs.min() <= inputs.max() < len(self.tokens):
            raise InterbasisError(
                f"tokens lie between 0 and {len(self.tokens) - 1}; received {inputs.min()} to {inputs.max()}"
            )
        x = self.tokens[inputs]
        x = x if self.positions is None else x + self.positions[: inputs.shape[1]]
        return with_constant(x if self.norm is None else self.norm(x))

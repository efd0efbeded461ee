"""A language model's labels: the token that follows each token of a sample, −100 (ignored) for the last."""

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.data.samples import IGNORED_LABEL


def next_tokens(tokens: Tensor) -> Tensor:  # [n, T] -> [n, T]
    labels = torch.full_like(tokens, IGNORED_LABEL, dtype=torch.long)
    labels[:, :-1] = tokens[:, 1:]
    return labels


def require_next_token_labels(name: str, tokens: Tensor, labels: Tensor) -> None:  # [n, T] each
    """Labels that are the tokens themselves, as transformers expects them, are not those that follow them."""
    if labels.shape != tokens.shape or tokens.ndim != 2 or tokens.is_floating_point():
        return
    labels = labels.to(tokens.device)
    counted, expected = labels != IGNORED_LABEL, next_tokens(tokens)
    copied = (labels == tokens)[counted].all()
    followed = (labels == expected)[counted & (expected != IGNORED_LABEL)].all()
    if copied and not followed:
        raise InterbasisError(
            f"{name}: the labels are the tokens themselves, but a language model's are those that follow; "
            "pass the tokens alone, and labels are derived, or pass (tokens[:, :-1], tokens[:, 1:])"
        )

"""Windows of tokens as samples: inputs [n, T], and as labels the token that follows each of them.

Packed, windows of T + 1 consecutive tokens follow each other without overlap, across the ends of documents.
Per document, every document is cut into pieces of its own, and short pieces are filled up with positions
that count nowhere: their label is −100 (ignored), and `Samples.lengths` says where they begin.
"""

from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from interbasis.base.errors import InterbasisError
from interbasis.data.samples import IGNORED_LABEL, Pair, Samples, Split
from interbasis.data.tokens import TokenStream

TOKENS_PER_READ = 2**16
"""Tokens that a pass over the samples reads at a time."""


class Windows(BaseModel):
    """Settings by which a stream of tokens becomes samples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    context: int = Field(512, ge=1)
    """Positions T of a sample."""
    per: Literal["window", "document"] = "window"
    """Packed windows, or pieces of single documents."""
    bos: int | None = Field(None, ge=0)
    """The token that begins every document."""
    eos: int | None = Field(None, ge=0)
    """The token that ends every document, where none begins it."""
    prepend: bool = False
    """Put ``bos`` in front of every sample that does not begin with it."""
    held_out: float = Field(0.1, gt=0, lt=1)
    """Share of the tokens, in whole documents, that is the test set of a file that holds both."""


def split(stream: TokenStream, windows: Windows, which: Split, name: str) -> TokenStream:
    """Training or test part of a stream: whole documents, so that none is in both.

    Where documents are so long that the test set would be less than half or more than twice what is wanted,
    as in a text without separators, it is the last tokens instead.
    """
    total, share = len(stream.tokens), windows.held_out
    if not total:
        raise InterbasisError(f"{name} is empty; expected at least one window of tokens")
    wanted = total - int(total * share)
    cut = 0
    if stream.starts is not None and len(stream.starts):
        after = stream.starts[stream.starts >= wanted]
        cut = int(after[0] if len(after) else stream.starts[-1])
    if not share / 2 <= (total - cut) / total <= min(2 * share, (1 + share) / 2):
        cut = wanted - wanted % stride(windows)
    if not 0 < cut < total:
        raise InterbasisError(
            f"{name} has {total} tokens, too few to hold out {share:.0%} of them as a test set with windows "
            f"of {windows.context}; name a smaller context, the whole of it with part=all, or give two files"
        )
    return stream.part(0, cut) if which == "train" else stream.part(cut, total)


def samples(stream: TokenStream, windows: Windows, name: str) -> Samples:
    """Samples of a stream, read when they are wanted."""
    if windows.prepend and windows.bos is None:
        raise InterbasisError(f"{name}: prepend needs to know the token; name it as bos=TOKEN")
    if windows.per == "document":
        return _documents(stream, windows, name)
    step = stride(windows)
    count = len(stream.tokens) // step
    if not count:
        raise InterbasisError(
            f"{name} has {len(stream.tokens)} tokens, fewer than the {step} of one window; name a smaller "
            "context"
        )

    def read(first: int, last: int) -> Pair:
        block = np.asarray(stream.tokens[first * step : last * step]).reshape(-1, step).astype(np.int64)
        tokens = torch.from_numpy(block)
        if windows.prepend:
            front = torch.full((len(tokens), 1), windows.bos or 0)
            return torch.cat([front, tokens[:, :-1]], 1), tokens
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Samples(count, read, "tokens", batch=max(1, TOKENS_PER_READ // windows.context))


def stride(windows: Windows) -> int:
    """Tokens of the stream that a packed window takes up."""
    return windows.context + (0 if windows.prepend else 1)


def _documents(stream: TokenStream, windows: Windows, name: str) -> Samples:
    if stream.starts is None:
        raise InterbasisError(
            f"{name}: per=document needs to know where documents begin; name the token as bos=TOKEN or "
            "eos=TOKEN"
        )
    left, right = _pieces(stream, stream.starts, windows)
    if not len(left):
        raise InterbasisError(f"{name} has no document of two tokens or more")

    def read(first: int, last: int) -> Pair:
        inputs = np.zeros((last - first, windows.context), np.int64)
        labels = np.full_like(inputs, IGNORED_LABEL)
        for row, (a, b) in enumerate(zip(left[first:last], right[first:last], strict=True)):
            labels[row, : b - a] = stream.tokens[a:b]
            inputs[row, 0] = (windows.bos or 0) if windows.prepend else stream.tokens[a - 1]
            inputs[row, 1 : b - a] = labels[row, : b - a - 1]
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    batch, lengths = max(1, TOKENS_PER_READ // windows.context), torch.from_numpy(right - left)
    return Samples(len(left), read, "tokens", batch=batch, lengths=lengths)


def _pieces(stream: TokenStream, starts: np.ndarray, windows: Windows) -> tuple[np.ndarray, np.ndarray]:
    """Runs left … right − 1 of at most T tokens to be predicted; every document begins a new one.

    Its first token has nothing before it to predict it from, unless bos is put there.
    """
    ends = np.append(starts[1:], len(stream.tokens))
    has_first = np.asarray(stream.tokens[starts]) == windows.bos if windows.prepend else True
    begins = starts + np.broadcast_to(has_first, len(starts))
    counts = -(-(ends - begins) // windows.context)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    left = np.repeat(begins, counts) + number * windows.context
    return left, np.minimum(left + windows.context, np.repeat(ends, counts))

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
from interbasis.data.flat import Flat
from interbasis.data.samples import IGNORED_LABEL, Pair, Samples, Split

TOKENS_PER_READ = 2**16
"""Of a pass over the samples."""


class Windows(BaseModel):
    """How a stream of tokens becomes samples."""

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


def split(flat: Flat, windows: Windows, which: Split, name: str) -> Flat:
    """The training or test part of a stream: whole documents, so that none is in both.

    Where documents are so long that the test set would be less than half or more than twice what is wanted,
    as in a text without separators, it is the last tokens instead.
    """
    total, share = len(flat.tokens), windows.held_out
    if not total:
        raise InterbasisError(f"{name} is empty; expected at least one window of tokens")
    wanted = total - int(total * share)
    cut = 0
    if flat.starts is not None and len(flat.starts):
        after = flat.starts[flat.starts >= wanted]
        cut = int(after[0] if len(after) else flat.starts[-1])
    if not share / 2 <= (total - cut) / total <= min(2 * share, (1 + share) / 2):
        cut = wanted - wanted % stride(windows)
    if not 0 < cut < total:
        raise InterbasisError(
            f"{name} has {total} tokens, too few to hold out {share:.0%} of them as a test set with windows "
            f"of {windows.context}; name a smaller context, the whole of it with part=all, or give two files"
        )
    return flat.part(0, cut) if which == "train" else flat.part(cut, total)


def samples(flat: Flat, windows: Windows, name: str) -> Samples:
    """The samples of a stream, read when they are wanted."""
    if windows.prepend and windows.bos is None:
        raise InterbasisError(f"{name}: prepend needs to know the token; name it as bos=TOKEN")
    if windows.per == "document":
        return _documents(flat, windows, name)
    step = stride(windows)
    count = len(flat.tokens) // step
    if not count:
        raise InterbasisError(
            f"{name} has {len(flat.tokens)} tokens, fewer than the {step} of one window; name a smaller "
            "context"
        )

    def read(first: int, last: int) -> Pair:
        block = np.asarray(flat.tokens[first * step : last * step]).reshape(-1, step).astype(np.int64)
        tokens = torch.from_numpy(block)
        if windows.prepend:
            front = torch.full((len(tokens), 1), windows.bos or 0)
            return torch.cat([front, tokens[:, :-1]], 1), tokens
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Samples(count, read, "tokens", batch=_batch(windows))


def stride(windows: Windows) -> int:
    """Tokens of the stream that one packed window takes up."""
    return windows.context + (0 if windows.prepend else 1)


def _batch(windows: Windows) -> int:
    return max(1, TOKENS_PER_READ // windows.context)


def _documents(flat: Flat, windows: Windows, name: str) -> Samples:
    if flat.starts is None:
        raise InterbasisError(
            f"{name}: per=document needs to know where documents begin; name the token as bos=TOKEN or "
            "eos=TOKEN"
        )
    left, right = _pieces(flat, flat.starts, windows)
    if not len(left):
        raise InterbasisError(f"{name} has no document of two tokens or more")

    def read(first: int, last: int) -> Pair:
        inputs = np.zeros((last - first, windows.context), np.int64)
        labels = np.full_like(inputs, IGNORED_LABEL)
        for row, (a, b) in enumerate(zip(left[first:last], right[first:last], strict=True)):
            labels[row, : b - a] = flat.tokens[a:b]
            inputs[row, 0] = (windows.bos or 0) if windows.prepend else flat.tokens[a - 1]
            inputs[row, 1 : b - a] = labels[row, : b - a - 1]
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    lengths = torch.from_numpy(right - left)
    return Samples(len(left), read, "tokens", batch=_batch(windows), lengths=lengths)


def _pieces(flat: Flat, starts: np.ndarray, windows: Windows) -> tuple[np.ndarray, np.ndarray]:
    """Runs left … right − 1 of at most T tokens to be predicted; every document begins a new one.

    Its first token has nothing before it to predict it from, unless bos is put there.
    """
    ends = np.append(starts[1:], len(flat.tokens))
    known = np.asarray(flat.tokens[starts]) == windows.bos if windows.prepend else np.ones(len(starts), bool)
    begins = starts + known
    counts = -(-(ends - begins) // windows.context)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    left = np.repeat(begins, counts) + number * windows.context
    return left, np.minimum(left + windows.context, np.repeat(ends, counts))

"""Whatever the user calls data, as chunks of inputs that can be passed over again and again."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress
from interbasis.data.samples import Samples, next_tokens, require_next_token_labels

Batch = Tensor | tuple[Tensor, Tensor]
Data = Batch | Sequence[Batch] | DataLoader[Any] | Dataset[Any] | np.ndarray | Samples

Chunk = TypeVar("Chunk", bound=tuple[Any, ...])
"""(index of the first sample, inputs, …)."""


class Batches:
    """A tensor of inputs, a pair (inputs, labels), a list of batches of either, `Samples`, a DataLoader or
    a Dataset.

    Batch sizes do not matter to any result: chunks are cut to the size a calculation needs. Of data that
    are split (`blocks`), ``offset`` is the index of the first sample in the whole. `Samples` that are
    filled up with padding come without it: samples of one length together, cut off where they end. With
    ``predicts_next`` they are for a language model: tokens alone have the tokens that follow as labels, and
    labels that are the tokens themselves are refused.
    """

    def __init__(self, data: Data, name: str = "data", offset: int = 0, predicts_next: bool = False):
        self.name = name
        self.offset = offset
        self.predicts_next = predicts_next
        self._batches = _as_batches(data, name)
        self.lengths = data.lengths if isinstance(data, Samples) else None  # [samples]
        self.revision = data.revision if isinstance(data, Samples) else ""
        """The commit of data that are streamed from the Hub."""
        self._length: int | None = None
        self._fingerprint = ""
        self.block_suffix = ""
        """Suffix of a block in the names of its stored files."""
        self._whole: Batches | None = None

    def blocks(self, count: int, multiple_of: int = 1) -> "list[Batches]":
        """Cut the data into blocks of neighbouring samples; all but the last hold whole multiples."""
        if count == 1:
            return [self]
        units, total = -(-len(self) // multiple_of), len(self)
        ends = [min(units * k // count * multiple_of, total) for k in range(count + 1)]
        return [self.part(k, first, last) for k, (first, last) in enumerate(pairwise(ends))]

    def part(self, number: int, first: int, last: int) -> "Batches":
        """Samples first … last − 1 as the part ``number`` of these data, with their own indices."""
        block = copy(self)
        block.offset, block._length = self.offset + first, last - first
        block._whole, block.block_suffix = self, f".{number}"
        block.lengths = None if self.lengths is None else self.lengths[first:last]
        if isinstance(self._batches, Samples):  # only these are read
            block._batches = self._batches.between(first, last)
        else:
            block._batches = _Part(self, first, last)
        return block

    @property
    def read_from_its_beginning(self) -> bool:
        """Whether a block is reached only by reading all before it: a DataLoader."""
        return isinstance(self._batches, DataLoader)

    @property
    def shuffled(self) -> bool:
        """Whether every pass sees another order."""
        batches = self._batches
        return isinstance(batches, DataLoader) and not isinstance(batches.sampler, SequentialSampler)

    def __len__(self) -> int:
        """Number of samples."""
        if self._length is None:
            known = len(self._batches) if isinstance(self._batches, Samples) else 0
            self._length = known or sum(len(inputs) for inputs in self._inputs())
        return self._length

    def head(self, count: int) -> "Batches":
        """The first ``count`` samples."""
        return self.part(0, 0, count)

    def drawn(self, count: int, seed: int, chosen: slice = slice(None)) -> "Batches":
        """Samples drawn at random, in memory and in the order drawn: the same first ones for every count.

        ``chosen`` takes some of those drawn, such as every second one.
        """
        drawn = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:count][chosen]
        if isinstance(self._batches, DataLoader):  # read once
            found = {
                place: inputs[k : k + 1]
                for wanted in [set(drawn.tolist())]
                for first, inputs in self.chunks(1024, padded=True)
                for k in range(len(inputs))
                if (place := first + k - self.offset) in wanted
            }
            inputs = torch.cat([found[place] for place in drawn.tolist()])
        else:
            inputs = torch.cat([self.between(place, place + 1) for place in drawn.tolist()])
        lengths = None if self.lengths is None else self.lengths[drawn]
        labels = torch.zeros(len(inputs), dtype=torch.int64)
        return Batches(Samples.from_tensors(inputs, labels, lengths=lengths), self.name)

    def between(self, first: int, last: int) -> Tensor:
        """The inputs of samples first … last − 1, with padding."""
        return torch.cat(list(self.part(0, first, last)._inputs()))

    def first(self) -> Tensor:
        """The first sample of the whole, as a batch of one."""
        batches = (self._whole or self)._batches
        if isinstance(batches, Samples) and len(batches):
            return batches.read(0, 1)[0]  # of a stream, no more than that
        return next((self._whole or self)._inputs())[:1]

    @property
    def labelled(self) -> bool:
        """Whether samples have labels, or tokens that follow; looked at in the first batch."""
        inputs, labels = next(self._checked())
        return labels is not None or (self.predicts_next and inputs.ndim == 2)

    def chunks(self, size: int, start: int = 0, *, padded: bool = False) -> Iterator[tuple[int, Tensor]]:
        """(index of the first sample, inputs) with ``size`` samples each, fewer in the last.

        Where there is padding, of one length each and cut off there, unless ``padded`` leaves it where it is.
        ``start`` samples are left out, for a pass that is resumed.
        """
        for first, parts in self._cut(size, ((inputs,) for inputs in self._inputs(start)), start):
            for place, (inputs,) in self._equal_lengths(first, parts, padded):
                yield place, inputs

    def ragged_chunks(self, size: int, start: int = 0) -> Iterator[tuple[int, list[Tensor]]]:
        """(index of the first sample, inputs) with ``size`` samples each, as runs of samples of one length.

        Without padding that is one run.
        """
        for first, parts in self._cut(size, ((inputs,) for inputs in self._inputs(start)), start):
            yield first, [inputs for _, (inputs,) in self._equal_lengths(first, parts)]

    def labelled_chunks(
        self, size: int, start: int = 0, *, padded: bool = False
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(index of the first sample, inputs, labels), cut as in `chunks`.

        ``padded`` leaves padding where it is, for those who look at positions with a label only.
        """
        for first, parts in self._cut(size, self._pairs(start), start):
            for place, (inputs, labels) in self._equal_lengths(first, parts, padded):
                yield place, inputs, labels

    def tracked(self, chunks: Iterable[Chunk], phase: str, progress: Progress) -> Iterator[Chunk]:
        """Yield the same chunks, and report progress after the work on each."""
        for chunk in chunks:
            yield chunk
            first, inputs, *_ = chunk
            progress(phase, first + len(inputs) - self.offset, len(self))

    def _equal_lengths(
        self, first: int, parts: tuple[Tensor, ...], padded: bool = False
    ) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """Parts of a chunk, cut off, with neighbouring samples of one length, and the first one's index."""
        if padded or self.lengths is None:
            yield first, parts
            return
        lengths = self.lengths[first - self.offset :][: len(parts[0])]
        values, counts = lengths.unique_consecutive(return_counts=True)
        ends = counts.cumsum(0).tolist()
        for left, right, length in zip([0, *ends[:-1]], ends, values.tolist(), strict=True):
            cut = tuple(p[left:right] if p.ndim == 1 else p[left:right, :length] for p in parts)
            yield first + left, cut

    def _cut(
        self, size: int, batches: Iterable[tuple[Tensor, ...]], behind: int
    ) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        waiting: list[tuple[Tensor, ...]] = []
        count, start = 0, self.offset + behind
        # runs of one length may end within a chunk; a pass resumed there is cut where a whole pass is
        short = 0 if self.lengths is None else -behind % size
        for batch in batches:
            waiting.append(batch)
            count += len(batch[0])
            if count < (short or size):
                continue
            joined = waiting[0] if len(waiting) == 1 else tuple(map(torch.cat, zip(*waiting, strict=True)))
            ends = [*range(short or size, count + 1, size)]
            for left, right in pairwise([0, *ends]):
                yield start + left, tuple(part[left:right] for part in joined)
            whole = ends[-1]
            waiting = [tuple(part[whole:] for part in joined)] if count > whole else []
            start, count, short = start + whole, count - whole, 0
        if count:
            yield start, tuple(map(torch.cat, zip(*waiting, strict=True)))

    def fingerprint(self) -> str:
        """SHA-256 over the inputs' type, shape and bytes, the same for every way of batching.

        Of data in many files, over the names, sizes, beginnings and ends of the files; of data that are
        streamed from the Hub, over the commit and the names, sizes and hashes of the files.
        """
        if self._whole is not None:
            return self._whole.fingerprint()
        if self.shuffled:
            return "shuffled again with every pass"
        if self._fingerprint:
            return self._fingerprint
        digest = hashlib.sha256()
        if isinstance(self._batches, Samples) and self._batches.identity:
            digest.update(f"{self._batches.identity} {len(self)}".encode())
            return digest.hexdigest()
        first = self.first()
        digest.update(f"{first.dtype}{list(first.shape[1:])}".encode())
        if self.lengths is not None:
            digest.update(self.lengths.numpy().data)
        for inputs in self._inputs():
            digest.update(inputs.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def labels_fingerprint(self) -> str:
        """SHA-256 over the labels of data given as tensors; empty for `Samples`, and where there are none."""
        if isinstance(self._batches, Samples) or self.shuffled:
            return ""
        digest, labelled = hashlib.sha256(), False
        for _, labels in self._checked():
            if isinstance(labels, Tensor):
                digest.update(f"{labels.dtype}{list(labels.shape[1:])}".encode())
                digest.update(labels.detach().cpu().contiguous().view(torch.uint8).numpy().data)
                labelled = True
        return digest.hexdigest() if labelled else ""

    def _pairs(self, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs, labels) of every batch; labels [n], or [n, T] where every position has one."""
        for inputs, labels in self._checked(start):
            if labels is None and self.predicts_next and inputs.ndim == 2:
                yield inputs, next_tokens(inputs)
                continue
            if not isinstance(labels, Tensor):
                raise InterbasisError(
                    f"{self.name}: labels are required here; pass (inputs, labels) or a list of such batches"
                )
            if labels.is_floating_point() or labels.ndim not in (1, 2) or len(labels) != len(inputs):
                raise InterbasisError(
                    f"{self.name}: expected integer labels, one for each of the {len(inputs)} samples or for "
                    f"each of their positions, received {labels.dtype} of shape {list(labels.shape)}"
                )
            if self.predicts_next and not isinstance(self._batches, Samples):
                require_next_token_labels(self.name, inputs, labels)
            yield inputs, labels

    def _inputs(self, start: int = 0) -> Iterator[Tensor]:
        for inputs, _ in self._checked(start):
            yield inputs

    def _checked(self, start: int = 0) -> Iterator[tuple[Tensor, Any]]:
        """(inputs, labels or None) of every batch that is not empty, without the first ``start`` samples."""
        first: Tensor | None = None
        empty = start == 0 and not self.block_suffix
        batches = self._batches
        if start and isinstance(batches, Samples):
            batches, start = batches.behind(start), 0
        for batch in batches:
            is_pair = isinstance(batch, (tuple, list)) and len(batch) > 1
            inputs, labels = batch[:2] if is_pair else (batch, None)
            inputs = inputs[0] if isinstance(inputs, (tuple, list)) else inputs
            if not isinstance(inputs, Tensor) or inputs.ndim == 0:
                raise InterbasisError(
                    f"{self.name}: a batch is a tensor of inputs or (inputs, labels), "
                    f"not {type(inputs).__name__}"
                )
            first = inputs if first is None else first
            if inputs.shape[1:] != first.shape[1:] or inputs.dtype != first.dtype:
                raise InterbasisError(
                    f"{self.name}: samples of {first.dtype} and shape {list(first.shape[1:])} are followed "
                    f"by {inputs.dtype} of shape {list(inputs.shape[1:])}; pass inputs with their labels as "
                    "a tuple (inputs, labels), since a list holds batches"
                )
            if len(inputs) > start:
                empty = False
                yield inputs[start:], labels[start:] if isinstance(labels, Tensor) else labels
            start = max(0, start - len(inputs))
        if empty:
            raise InterbasisError(f"{self.name} is empty: expected at least one sample")


class _Part:
    """The batches of some samples in the middle of others."""

    def __init__(self, whole: Batches, first: int, last: int):
        self._whole, self._first, self._last = whole, first, last

    def __iter__(self) -> Iterator[Any]:
        left = self._last - self._first
        for inputs, labels in self._whole._checked(self._first) if left else ():
            yield (inputs[:left], labels[:left]) if isinstance(labels, Tensor) else inputs[:left]
            left -= len(inputs)
            if left <= 0:
                return


def _as_batches(data: Data, name: str) -> Iterable[Any]:
    if isinstance(data, np.ndarray):
        return [torch.from_numpy(data)]
    if isinstance(data, Tensor):
        return [data]
    if isinstance(data, tuple):
        if len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
            raise InterbasisError(
                f"{name}: expected a tuple (inputs, labels) of two tensors; pass several batches as a list"
            )
        return [data]
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=1024)
    if isinstance(data, Iterator) or not hasattr(data, "__iter__"):
        raise InterbasisError(
            f"{name}: expected a tensor, (inputs, labels), a list of batches or a DataLoader, received "
            f"{type(data).__name__}; data are read several times, so convert a generator to a list"
        )
    return data

"""Activations on the way to a node layer, kept in files, so that later passes over the same data begin there.

Attention requires a pass over the data per section, each through all the blocks before it. The first of them,
to the last section, passes by where the others go; what it leaves on disk there spares them the way.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryFile, gettempdir
from typing import IO

import numpy as np
import torch
from torch import Tensor

from interbasis.network.cores import PassCore
from interbasis.network.network import Network


@dataclass
class StoredActivations:
    """One node layer's activations, [samples, T, width], in a file without a name."""

    file: IO[bytes]
    written: np.ndarray  # [samples], bool


@dataclass
class ActivationCache:
    """Runs a network to a node layer, from the nearest one before it that is stored.

    The files have no name and are gone with the process. What is not in them is computed, and where the disk
    is full everything is.
    """

    network: Network
    samples: int
    budget: int = 0
    """Bytes that the files may take together; no more than half of what is free in any case."""
    folder: Path | None = None
    """Folder of the files; default, or while there is no such folder: the system's temporary folder."""
    layers: tuple[int, ...] | None = None
    """The node layers to keep, all of them or none; default: those that spare most of the way."""
    _stored: dict[int, StoredActivations] | None = field(default=None, init=False)
    _positions: int = field(default=0, init=False)

    def __enter__(self) -> "ActivationCache":
        return self

    def __exit__(self, *_: object) -> None:
        for stored in (self._stored or {}).values():
            stored.file.close()

    def activations_at(self, index: int, first: int, inputs: Tensor) -> Tensor:
        """f at a node layer, [n, T, width], of the samples from number ``first`` on."""
        here = slice(first, first + len(inputs))
        f = self.network.prefix(inputs)
        if self._stored is None:
            self._stored, self._positions = self._choose(f), f.shape[1]
        stored = self._stored if f.shape[1] == self._positions else {}
        there = [k for k, layer in stored.items() if k <= index and layer.written[here].all()]
        start = max(there, default=0)
        f = self._read(start, here, f) if there else f
        for k in range(start, index):
            f = self.network.sections[k](f)
            if k + 1 in stored:
                self._write(k + 1, here, f)
        return f

    def stored_at(self, first: int, inputs: Tensor) -> set[int]:
        """The node layers at which activations of the samples from number ``first`` on are stored."""
        here = slice(first, first + len(inputs))
        stored = self._stored if self._stored and inputs.shape[1] == self._positions else {}
        return {k for k, layer in stored.items() if layer.written[here].all()}

    def _choose(self, f: Tensor) -> dict[int, StoredActivations]:
        """Before every section with a pass of its own but the first, the narrowest layer, as many as fit."""
        sections, nodes = self.network.sections, self.network.nodes
        passes = [k for k, section in enumerate(sections) if isinstance(section.core, PassCore)]
        if any(section.last_only for section in sections[:-1]) or len({node.grid for node in nodes}) > 1:
            return {}  # not all layers have the same positions
        between = [range(before + 1, k + 1) for before, k in pairwise(passes)]
        narrowest = [min(layers, key=lambda k: (nodes[k].width, -k)) for layers in between]
        if self.layers is not None:
            narrowest = list(self.layers)
        size = self.samples * f.shape[1] * f.element_size()
        folder = self.folder if self.folder is not None and self.folder.is_dir() else Path(gettempdir())
        budget = min(self.budget, disk_usage(folder).free // 2)
        for step in range(1, len(narrowest) + 1 if self.layers is None else 2):
            chosen = narrowest[::-1][::step]
            if sum(size * nodes[k].width for k in chosen) <= budget:
                return {
                    k: StoredActivations(TemporaryFile(dir=folder), np.zeros(self.samples, dtype=bool))
                    for k in chosen
                }
        return {}

    def _write(self, k: int, here: slice, f: Tensor) -> None:
        layer = (self._stored or {}).get(k)
        if layer is None or layer.written[here].all():
            return
        values = f.cpu().contiguous().numpy()
        try:
            layer.file.seek(here.start * values[0].nbytes)
            layer.file.write(values.data)
        except OSError:
            self.__exit__()
            self._stored = {}
        else:
            layer.written[here] = True

    def _read(self, k: int, here: slice, like: Tensor) -> Tensor:
        assert self._stored is not None
        shape = (here.stop - here.start, like.shape[1], self.network.nodes[k].width)
        result = torch.empty(shape, dtype=like.dtype)
        values = result.numpy()
        file = self._stored[k].file
        file.seek(here.start * values[0].nbytes)
        if file.readinto(values.data.cast("B")) != values.nbytes:  # type: ignore[attr-defined]
            raise OSError(f"stored activations of node layer {self.network.nodes[k].name!r} are cut short")
        return result.to(like.device)

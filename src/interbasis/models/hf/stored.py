"""Hugging Face models whose blocks stay in their safetensors files and are read one at a time.

A skeleton of the model, without weights, says which module is what. A block is read by giving its modules
their weights for a moment, so that every family's file reads it as it reads a model in memory. When a model
is opened, each block is compared with the model's own code by itself: embedding, this block, the final norm
and the logits.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from interbasis.base.errors import Explained, InterbasisError
from interbasis.models.hf.assemble import assemble, block_sections
from interbasis.models.hf.parts import BlocksAsRead, ModelParts
from interbasis.models.own_output import replaced
from interbasis.network.network import Network, Section
from interbasis.network.stored_section import StoredBlocks, StoredSection

OTHER_NAMES = {"lm_head.weight": "embed_out.weight"}
"""Names in files of weights that have another name in the model's code (GPT-NeoX)."""
REMEDY = "leave out --memory to load it as a whole"


def parameters_without_memory() -> AbstractContextManager[None]:
    """Modules that are made meanwhile have parameters on the device `meta`; buffers are made as usual."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:  # one that is shared is the same one in both places
            param = nn.Parameter(param.to("meta"), requires_grad=False)
        register(module, name, param)

    return replaced((nn.Module, "register_parameter", on_meta))


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A model's skeleton, its folder, and the function by which its family reads it."""

    skeleton: Any
    folder: Path
    parts: Callable[[Any], ModelParts]
    check: Callable[[Network, Any], None]
    """Compares a network with the model it was made from."""

    def network(self, output: bool, **about: Any) -> Network:
        """Network whose blocks stay in their files."""
        with self._loaded(None):
            whole, sections = self.parts(self.skeleton), list[Section]()
            blocks = StoredBlocks(partial(self._sections, whole))
            for k in range(len(whole.blocks)):
                with self._loaded(k):
                    loaded = enumerate(block_sections(whole, k))
                    sections += [StoredSection(section, blocks, k, number) for number, section in loaded]
                    self._check_block(replace(whole, blocks=[whole.blocks[k]]), k)
        return assemble(whole, output, sections, **about)

    def _check_block(self, parts: ModelParts, k: int) -> None:
        """Compare a model of one block with the model's own code."""
        parent, name = self._list
        config = self.skeleton.config
        changes: list[tuple[Any, str, Any]] = [(parent, name, nn.ModuleList([getattr(parent, name)[k]]))]
        if kinds := getattr(config, "layer_types", None):
            changes.append((config, "layer_types", [kinds[k]] * len(kinds)))
        with replaced(*changes):
            self.check(assemble(parts), self.skeleton)

    def _sections(self, whole: ModelParts, k: int) -> tuple[Section, ...]:
        with torch.no_grad(), self._loaded(k):
            return block_sections(whole, k)

    @cached_property
    def _list(self) -> tuple[nn.Module, str]:
        """Parent and name of the list of blocks."""
        blocks = self.parts(self.skeleton).blocks
        assert isinstance(blocks, BlocksAsRead)
        path = next(path for path, module in self.skeleton.named_modules() if module is blocks.layers)
        parent, _, name = path.rpartition(".")
        return self.skeleton.get_submodule(parent), name

    @cached_property
    def _files(self) -> dict[str, Path]:
        """Files of all stored tensors by name."""
        index = self.folder / "model.safetensors.index.json"
        problem = (
            "blocks are loaded one at a time from model.safetensors or the files in "
            f"model.safetensors.index.json, but {self.folder} has none that can be read"
        )
        with Explained(problem, OSError, SafetensorError, ValueError, KeyError, remedy=REMEDY):
            if index.is_file():
                places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                return {name: self.folder / file for name, file in places.items()}
            file = self.folder / "model.safetensors"
            with safe_open(file, "pt") as opened:
                return dict.fromkeys(opened.keys(), file)

    @contextmanager
    def _loaded(self, k: int | None) -> Iterator[None]:
        """Give the parameters of block k, or of all but the blocks, their weights meanwhile.

        Parameters that share a tensor share it.
        """
        parent, name = self._list
        blocks = getattr(parent, name)
        inside = {id(p) for p in (blocks if k is None else blocks[k]).parameters()}
        named = self.skeleton.named_parameters(remove_duplicate=False)
        empty = {name: p for name, p in named if (id(p) in inside) == (k is not None)}
        filled: dict[int, nn.Parameter] = {}
        for name in sorted(empty, key=lambda name: self._stored_name(name) is None):
            if id(empty[name]) not in filled:
                filled[id(empty[name])] = nn.Parameter(self._read(name), requires_grad=False)
        try:
            self._put({name: filled[id(parameter)] for name, parameter in empty.items()})
            yield
        finally:
            self._put(empty)

    def _put(self, parameters: dict[str, nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            parent, _, last = name.rpartition(".")
            self.skeleton.get_submodule(parent)._parameters[last] = parameter

    def _stored_name(self, name: str) -> str | None:
        prefix = getattr(self.skeleton, "base_model_prefix", "")
        inside = f"{prefix}.language_model.{name.removeprefix(f'{prefix}.')}", f"language_model.{name}"
        plain = name.removeprefix(f"{prefix}."), f"{prefix}.{name}", OTHER_NAMES.get(name)
        return next((known for known in (name, *plain, *inside) if known in self._files), None)

    def _read(self, name: str) -> Tensor:
        stored = self._stored_name(name)
        if stored is None:
            raise InterbasisError(f"{self.folder} has no weights {name!r} in its safetensors files; {REMEDY}")
        with safe_open(self._files[stored], "pt") as file:
            return file.get_tensor(stored).clone()  # so that the file is let go of


class HalfModel(StoredModel):
    """A model in memory, in half precision, whose blocks are converted one at a time as they are used."""

    @contextmanager
    def _loaded(self, k: int | None) -> Iterator[None]:
        yield

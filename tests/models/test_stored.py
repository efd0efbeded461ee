"""Models whose blocks stay in their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import interbasis
from interbasis.base.errors import InterbasisError
from interbasis.network.network import Section
from interbasis.network.stored_section import StoredBlocks, StoredSection
from tiny_models import random_model

FAMILIES = (
    "gpt2-odd",
    "gpt_neox",
    "qwen2",
    "gemma2",
    "llama3-tied",
    "olmo3",
    "smollm3",
    "gptj",
    "gemma3-images",
)
"""Scales by block, other names in files, windows by block, norms after branches, shared embeddings, positions
by block, none in some, a table of them, a language model within another model."""
TOKENS = torch.arange(14).view(2, 7) % 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    place = tmp_path_factory.mktemp("models")

    def save(name: str) -> Path:
        if not (place / name).is_dir():
            random_model(name, torch.float32).save_pretrained(place / name)
        return place / name

    return save


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_network_with_one_block_in_memory(
    folder: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stored = interbasis.from_hf(folder(name)), interbasis.from_hf(folder(name), stored=True)
    assert torch.equal(whole(TOKENS), stored(TOKENS))
    assert whole.fingerprint() == stored.fingerprint()
    assert torch.equal(whole.double()(TOKENS), stored.double()(TOKENS))
    assert repr(whole) == repr(stored)
    blocks = {id(s.__dict__["_at"][0]) for s in stored.sections if isinstance(s, StoredSection)}
    assert len(blocks) == 1
    assert {section.stored_block for section in stored.sections if isinstance(section, StoredSection)} == {
        0,
        1,
    }


def test_a_block_is_released_before_the_next_is_read() -> None:
    events: list[str] = []

    class Watched(StoredBlocks):
        def release(self) -> None:
            events.append("release")
            super().release()

    section = interbasis.from_torch(torch.nn.Sequential(torch.nn.Linear(3, 2))).sections[0]

    def load(block: int) -> tuple[Section]:
        events.append(f"load {block}")
        return (section,)

    blocks = Watched(load)
    for block in (0, 0, 1, 0):
        assert blocks.sections(block)[0] is section
    assert events == ["release", "load 0", "release", "load 1", "release", "load 0"]
    assert blocks.to(torch.float64) is blocks.to(torch.float64)
    assert blocks.to(torch.float64).sections(1)[0].skip.dtype == torch.float64


def test_some_blocks_and_the_logits_as_last_layer(folder: Callable[..., Any]) -> None:
    for options in ({"blocks": 1}, {"output": True}):
        whole, stored = (interbasis.from_hf(folder("gpt2-odd"), stored=s, **options) for s in (False, True))
        assert whole.layers == stored.layers
        assert torch.equal(whole(TOKENS), stored(TOKENS))


def test_half_precision_and_several_files(folder: Callable[..., Any], tmp_path: Path) -> None:
    source = folder("llama3-tied")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    tensors = {name: t.bfloat16() for name, t in load_file(source / "model.safetensors").items()}
    places = {name: f"part-{k % 2}.safetensors" for k, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: t for name, t in tensors.items() if places[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    whole, stored = (interbasis.from_hf(tmp_path, stored=s) for s in (False, True))
    assert stored.dtype == torch.float32
    assert torch.equal(whole(TOKENS), stored(TOKENS))


def test_weights_that_differ_from_what_the_code_computes_are_refused(
    folder: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    source = folder("gpt2-odd")
    forward = transformers.models.gpt2.modeling_gpt2.GPT2MLP.forward
    monkeypatch.setattr(
        transformers.models.gpt2.modeling_gpt2.GPT2MLP, "forward", lambda self, x: 2 * forward(self, x)
    )
    with pytest.raises(InterbasisError, match="logits are off"):
        interbasis.from_hf(source, stored=True)


def test_what_cannot_be_stored_is_refused(folder: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(InterbasisError, match="folder or a Hub id"):
        interbasis.from_hf(torch.nn.Linear(2, 2), stored=True)
    source = folder("gpt2-odd")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.raises(InterbasisError, match=r"none that can be read .* --memory"):
        interbasis.from_hf(tmp_path, stored=True)
    save_file({"transformer.wte.weight": torch.zeros(23, 12)}, tmp_path / "model.safetensors")
    with pytest.raises(InterbasisError, match="has no weights"):
        interbasis.from_hf(tmp_path, stored=True)

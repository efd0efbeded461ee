"""A model by its name on the Hub, opened from a mirror: the cache folder that huggingface_hub writes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import interbasis
from interbasis.graph.store import load
from tiny_models import SMALL, random_model

pytest.importorskip("transformers")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def mirrored(model: Path, home: Path, name: str) -> None:
    """A model's folder as HF_HOME/hub/models--ORGANISATION--NAME: files by hash, names that link to them."""
    place = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    for folder in (place / "blobs", place / "refs", snapshot):
        folder.mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    for file in model.iterdir():
        blob = place / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)


def test_a_name_on_the_hub_is_built_from_a_mirror_without_a_network(tmp_path: Path) -> None:
    random_model("gpt2", torch.float32).save_pretrained(tmp_path / "model")
    mirrored(tmp_path / "model", tmp_path / "home", "lab/tiny")
    tokens = torch.randint(SMALL["vocab_size"], (90,)).numpy().astype("uint16")
    tokens.tofile(tmp_path / "text.uint16")
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    offline = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [
        sys.executable, "-m", "interbasis", "build", "hf:lab/tiny", "--out", str(tmp_path / "run"),
        "--data", f"tokens:{tmp_path / 'text.uint16'},context=8", "--edge-group", "4",
    ]  # fmt: skip
    ended = subprocess.run(command, env=kept | offline, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    built = load(tmp_path / "run").provenance
    assert built.model == "hf:lab/tiny"
    assert built.model_fingerprint == interbasis.from_hf(tmp_path / "model").fingerprint()

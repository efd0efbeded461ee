"""Peak memory of builds within a limit, measured in a process of their own."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interbasis.base.tensor_file import Entry, write_tensors

pytestmark = pytest.mark.slow

MEASURED = """
import atexit, json, sys
from interbasis.cli import main
from interbasis.base.memory import peak_bytes
atexit.register(lambda: print(json.dumps({"peak": peak_bytes()})))  # main ends the process
main(sys.argv[1:])
"""


def write_random(folder: Path, config: Any, dtype: torch.dtype) -> int:
    """A random model, written one tensor at a time: it is never in memory as a whole."""
    from transformers import AutoModelForCausalLM

    from interbasis.models.hf.stored import parameters_without_memory

    config.dtype = dtype
    with parameters_without_memory():
        skeleton = AutoModelForCausalLM.from_config(config)

    def random(parameter: Tensor) -> Tensor:
        scale = 0.05 if parameter.ndim > 1 else 0.0
        return (torch.randn(parameter.shape) * scale + (parameter.ndim == 1)).to(dtype)

    folder.mkdir()
    config.architectures = [type(skeleton).__name__]
    config.save_pretrained(folder)
    entries = [
        Entry(name, tuple(p.shape), dtype, partial(random, p)) for name, p in skeleton.named_parameters()
    ]
    write_tensors(folder / "model.safetensors", entries, {"format": "pt"})
    return sum(entry.bytes for entry in entries) * 4 // dtype.itemsize


def build(folder: Path, windows: int, context: int, *options: Any, blocks: str = "") -> Any:
    tokens = np.random.default_rng(0).integers(0, 500, windows * (context + 1)).astype(np.uint16)
    np.save(folder / "tokens.npy", tokens)
    data = f"tokens:{folder / 'tokens.npy'},context={context},part=all"
    command = [sys.executable, "-c", MEASURED, "build", f"hf:{folder}{blocks}", "--data", data, *options]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])["peak"]


@pytest.mark.skipif(
    os.environ.get("INTERBASIS_LARGE") != "1", reason="takes 1.2 GB and minutes; set INTERBASIS_LARGE=1"
)
def test_24_blocks_that_exceed_the_limit(tmp_path: Path) -> None:
    from transformers import GPT2Config

    config = GPT2Config(
        n_embd=1024, n_layer=24, n_head=16, n_positions=64, vocab_size=500, bos_token_id=0, eos_token_id=1
    )
    weights = write_random(tmp_path / "model", config, torch.float32)
    limit = 1_150_000_000
    assert weights > limit
    options = ["--memory", "1.15GB", "--out", str(tmp_path / "run"), "--edge-group", "positions"]
    peak = build(tmp_path / "model", 2, 64, *options, "--edge-sources", "1")
    print(f"24 blocks: weights {weights:,}, limit {limit:,}, peak {peak:,}")
    assert peak <= limit


@pytest.mark.skipif(
    os.environ.get("INTERBASIS_LARGE") != "1", reason="takes 12 GB and minutes; set INTERBASIS_LARGE=1"
)
def test_a_block_of_the_shape_of_llama_7b(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_hidden_layers=1,
        vocab_size=500, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    write_random(tmp_path / "model", config, torch.bfloat16)
    options = ["--memory", "12GB", "--out", str(tmp_path / "run"), "--edge-group", "positions"]
    peak = build(tmp_path / "model", 1, 256, *options, "--edge-sources", "1", blocks=",blocks=0")
    print(f"a block of Llama-7B: peak {peak:,}")
    assert peak <= 12 * 10**9

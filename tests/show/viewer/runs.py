"""Runs to look at: the shipped modular-addition model with results that the real stages wrote."""

import importlib.util
from pathlib import Path
from types import ModuleType

from command_line import run_command
from interbasis import build, from_hf
from interbasis.run.run import open_run
from pages import ROOT

DATA = "modadd,samples=600"
PROMPT = "Once there was a girl named Lily . She went to the park and saw a cat ."


def command(*arguments: object) -> None:
    """What a user types behind `interbasis`."""
    ended = run_command(*arguments)
    assert ended.code == 0, ended.err


def add_results(folder: Path) -> None:
    """All results that a page can show, measured on few pairs."""
    run = open_run(folder)
    run.ablate(data=DATA, stable=False)
    run.curves(data=DATA)
    run.modules(null_graphs=3)
    run.features(data=DATA, top=40, ends=4, bands=2, per_band=2)


def story_run(folder: Path) -> Path:
    """A language model with layer norms, made in seconds, with features, modules and a traced prompt."""
    small_model = load_example("small_model")
    model = small_model.make(folder / "model", steps=120)
    data = f"tokens:{model}/tokens.uint16,context=34,samples=60"
    command("build", f"hf:{model}", "--data", data, "--out", folder / "run")
    run = open_run(folder / "run")
    run.features(top=12, ends=3, bands=0)
    run.modules(null_graphs=2)
    run.trace(prompt=PROMPT, checks=4)
    return folder / "run"


def load_example(name: str) -> ModuleType:
    """A Python file of `examples/`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def long_trace(folder: Path) -> Path:
    """A run of a random GPT-2 with a traced prompt of 200 tokens, not pruned below 300 nodes."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=200, n_embd=24, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).eval().save_pretrained(folder / "model")
    tokens = torch.randint(64, (4, 200))
    network = from_hf(folder / "model")
    build(network, tokens, edge_group=64).save(folder / "run")
    run = open_run(folder / "run", network, tokens)
    run.trace(sample=0, checks=0, node_threshold=0.99, max_nodes=100)
    return folder / "run"

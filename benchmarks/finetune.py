"""A language model trained on another corpus, for `interbasis diff` between the two.

    python benchmarks/finetune.py MODEL-FOLDER TEXT --out FOLDER [--steps 4000] [--stop STEP] [--rate 1e-3]

TEXT holds documents separated by <|endoftext|>; the last tenth of them is kept for tests. FOLDER becomes a
model folder with the tokenizer of MODEL-FOLDER and tokens_{train,test}.uint16. The same command resumes.
The rate falls over all steps; ``--stop`` ends earlier.
"""

import argparse
import math
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from interbasis_studies.training.state import TrainingState, discard_state

CONTEXT = 256
BATCH = 16
WARM_UP = 100
SAVE_EVERY = 200
TEST_WINDOWS = 64


def write_tokens(model: Path, text: Path, out: Path) -> None:
    """Write tokens of the training and of the test documents, each of which begins with the first token."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    documents = [part.strip() for part in text.read_text(encoding="utf-8").split("<|endoftext|>")]
    documents = [part for part in documents if part]
    kept = len(documents) * 9 // 10
    for split, part in (("train", documents[:kept]), ("test", documents[kept:])):
        ids = [
            token
            for document in part
            for token in (tokenizer.bos_token_id, *tokenizer(document, add_special_tokens=False).input_ids)
        ]
        np.array(ids, dtype=np.uint16).tofile(out / f"tokens_{split}.uint16")


def batch(tokens: Tensor, step: int) -> Tensor:  # [BATCH, CONTEXT + 1]
    starts = torch.randint(len(tokens) - CONTEXT, (BATCH,), generator=torch.Generator().manual_seed(step))
    return torch.stack([tokens[start : start + CONTEXT + 1] for start in starts.tolist()])


def cross_entropy(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def held_out_loss(model: torch.nn.Module, tokens: Tensor) -> float:
    with torch.no_grad():
        rows = tokens[: TEST_WINDOWS * (CONTEXT + 1)].view(TEST_WINDOWS, CONTEXT + 1)
        return sum(float(cross_entropy(model, part)) for part in rows.split(8)) / (TEST_WINDOWS / 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--stop", type=int)
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokens_test.uint16").exists():
        write_tokens(options.model, options.text, out)
    train, test = (
        torch.tensor(np.fromfile(out / f"tokens_{split}.uint16", np.uint16).astype(np.int64))
        for split in ("train", "test")
    )
    model = AutoModelForCausalLM.from_pretrained(options.model)
    print(f"{len(train):,} tokens; test loss before: {held_out_loss(model, test):.4f}", flush=True)
    weights = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(weights.values(), lr=options.rate, weight_decay=0.0)
    recipe = {"steps": options.steps, "rate": options.rate}
    state = TrainingState(out / "training.safetensors", recipe, weights, optimizer)
    counters = state.restore(step=0, seconds=0)
    began = time.process_time() - counters["seconds"]
    for step in range(counters["step"], options.stop or options.steps):
        slope = math.cos(math.pi / 2 * step / options.steps) ** 2
        optimizer.param_groups[0]["lr"] = options.rate * min((step + 1) / WARM_UP, slope)
        loss = cross_entropy(model, batch(train, step))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if (step + 1) % SAVE_EVERY == 0:
            seconds = int(time.process_time() - began)
            state.save(step=step + 1, seconds=seconds)
            print(f"step {step + 1}, {seconds} s: test loss {held_out_loss(model, test):.4f}", flush=True)
    model.save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(options.model / name, out / name)
    discard_state(out / "training.safetensors")


if __name__ == "__main__":
    main()

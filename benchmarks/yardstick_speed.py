"""Speed of the rank row of a language model, beside its own forward pass in the same process.

    python benchmarks/yardstick_speed.py FOLDER TRAIN_TOKENS TEST_TOKENS [--tests 80] [--layers ln1.1,ln1.2]

Prints processor seconds of one thread per test window of 256: of Hugging Face's forward pass without
gradients (the best of three numbers of windows at once), and of all points of the row, methods
lib,pca,slicing,random,neuron, ranks 16,24,32,48 beside none and all, each layer alone and all together.
"""

import argparse
import time
from pathlib import Path
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM

import interbasis
from interbasis.analysis.yardstick.measure import Meter
from interbasis.graph.named_models import open_data

CONTEXT, ALL_WINDOWS = 256, 4680


def forward_seconds(folder: Path, inputs: torch.Tensor) -> float:
    """Least processor seconds of a window."""
    model, seconds = AutoModelForCausalLM.from_pretrained(folder), []
    with torch.no_grad():
        for size in (4, 8, 16):
            begun = time.process_time()
            for part in inputs.split(size):
                model(part, use_cache=False)
            seconds.append(time.process_time() - begun)
    return min(seconds) / len(inputs)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("folder", "train", "test"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--tests", type=int, default=80)
    parser.add_argument("--layers", default="ln1.1,ln1.2,ln1.3,ln1.4")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, tests = (
        open_data(f"tokens:{path},context={CONTEXT},part=all").head(count)
        for path, count in ((options.train, 60), (options.test, options.tests))
    )
    inputs = torch.cat([batch[0] for batch in tests])
    forward, spent, measure = forward_seconds(options.folder, inputs), 0.0, Meter.measure

    def timed(self: Meter, *arguments: object) -> object:
        nonlocal spent
        begun = time.process_time()
        result = measure(self, *arguments)  # type: ignore[arg-type]
        spent += time.process_time() - begun
        return result

    with patch.object(Meter, "measure", timed):
        interbasis.yardstick(
            interbasis.from_hf(str(options.folder)), data, test_data=tests,
            methods=("lib", "pca", "slicing", "random", "neuron"), layers=options.layers.split(","),
            ranks=(16, 24, 32, 48), removed=(), norm_limit=0.0, jacobian_samples=20, jacobian_queries=16,
            progress=False,
        )  # fmt: skip
    row = spent / len(inputs)
    print(f"forward pass {forward:.4f} s per window, {CONTEXT / forward:,.0f} tokens/s")
    print(f"rank row {row:.4f} s per window, {row / forward:.1f} forward passes")
    print(f"{ALL_WINDOWS:,} windows: {ALL_WINDOWS * row / 60:.1f} minutes of one thread")


if __name__ == "__main__":
    main()

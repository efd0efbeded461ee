"""Peak memory of opening a checkpoint in bfloat16 and building one block, in a process of its own.

    python benchmarks/half_precision.py FOLDER           makes a model of 0.5 G parameters there, once
    python benchmarks/half_precision.py FOLDER --whole   the same with a copy of the whole model in float32

The second is what opening did before blocks were converted as they run.
"""

import argparse
import json
import resource
from pathlib import Path

import torch

from interbasis import build, from_hf

SIZES = {
    "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 14, "num_attention_heads": 24,
    "num_key_value_heads": 8, "vocab_size": 8000, "max_position_embeddings": 256,
}  # fmt: skip


def peak_mib() -> int:
    """Most memory that this process has taken so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--whole", action="store_true")
    asked = parser.parse_args()
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if not (asked.folder / "config.json").is_file():
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**SIZES)).bfloat16().save_pretrained(asked.folder)
        return
    model = AutoModelForCausalLM.from_pretrained(asked.folder, dtype="auto") if asked.whole else asked.folder
    network = from_hf(model, 3)
    opened = peak_mib()
    print(f"opened: {opened} MiB", flush=True)
    tokens = torch.randint(SIZES["vocab_size"], (2, 32), generator=torch.Generator().manual_seed(0))
    build(network, tokens, basis="lib", exact=True)
    print(json.dumps({"whole": asked.whole, "opened_mib": opened, "built_mib": peak_mib()}))


if __name__ == "__main__":
    main()

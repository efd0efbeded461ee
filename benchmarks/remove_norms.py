"""Does a language model without layer norms need fewer edges? GPT-2's norms are trained away, then counted.

    python benchmarks/remove_norms.py MODEL TRAIN_TOKENS TEST_TOKENS OUT [--minutes 10] [--between 100]
        [--more 500] [--block 2] [--samples 100] [--tests 200]

The recipe is Heimersheim's (arXiv:2409.13710): each norm's division by the token's standard deviation becomes
a division by the mean of these, one norm after the other (before the MLPs, before attention, the last one),
with ``--between`` steps of training between two and ``--more`` at the end. OUT/state.safetensors is the
training so far; the same command goes on. After the last step, a fixed norm is an affine map and is folded
into the weights that follow, and the edges needed in one block are counted with and without norms (LIB and
PCA; a rise of the cross-entropy by 0.1 is allowed), in OUT/with and OUT/without, which resume, too.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import interbasis
from interbasis.models.hf.assemble import assemble
from interbasis.models.hf.families import FAMILIES
from interbasis.models.hf.parts import Affine, Branch, ModelParts
from interbasis.network.network import Network
from interbasis_studies.training.state import TrainingState

CONTEXT, BATCH, LEARNING_RATE = 256, 16, 3e-4


class RemovableNorm(nn.Module):
    """A layer norm that, once ``scale`` is positive, divides by it in place of a token's own deviation."""

    def __init__(self, norm: nn.LayerNorm):
        super().__init__()
        self.weight, self.bias, self.epsilon = norm.weight, norm.bias, norm.eps
        self.register_buffer("scale", torch.zeros(()))
        self.last_deviation = 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        deviation = (x.square().mean(-1, keepdim=True) + self.epsilon).sqrt()
        self.last_deviation = deviation.mean().item()
        return x / (self.scale if self.scale > 0 else deviation) * self.weight + self.bias


def windows(path: Path) -> Tensor:
    """Consecutive windows of tokens, [n, CONTEXT]."""
    tokens = torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int64))
    return tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT)


def removable(model: Any) -> list[RemovableNorm]:
    """Put removable norms in place of all norms; they are removed in this order."""
    blocks = model.transformer.h
    for block in blocks:
        block.ln_1, block.ln_2 = RemovableNorm(block.ln_1), RemovableNorm(block.ln_2)
    model.transformer.ln_f = RemovableNorm(model.transformer.ln_f)
    return [*(b.ln_2 for b in blocks), *(b.ln_1 for b in blocks), model.transformer.ln_f]


def loss(model: Any, tokens: Tensor) -> Tensor:
    """Cross-entropy of the next token."""
    logits = model(tokens, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(model: Any, data: Tensor, state: TrainingState, options: argparse.Namespace) -> int:
    """Go on training for some minutes; the number of steps that are done."""
    norms, begun = options.norms, time.monotonic()
    total = len(norms) * options.between + options.more
    step = state.restore(step=0)["step"]
    while step < total and time.monotonic() - begun < 60 * options.minutes:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(step))[:BATCH]
        number, since = divmod(step, options.between)
        if since == 0 and number < len(norms):
            with torch.no_grad():
                model(data[order], use_cache=False)
            norms[number].scale.fill_(norms[number].last_deviation)
        value = loss(model, data[order])
        state.optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        state.optimizer.step()
        step += 1
        if step % 50 == 0 or step == total:
            state.save(step=step)
            print(f"step {step} of {total}: loss {value.item():.4f}", flush=True)
    state.save(step=step)
    return step


def folded(affine: Affine, norm: RemovableNorm) -> Affine:
    """W · norm(x) + b as one affine map of x."""
    weight = affine.weight * (norm.weight / norm.scale)
    weight = weight - weight.mean(1, keepdim=True)
    return Affine(weight.detach(), (affine.bias + affine.weight @ norm.bias).detach())


def without_norms(parts: ModelParts, norms: list[RemovableNorm]) -> ModelParts:
    """The model's parts with all norms in the weights that follow them."""
    count = len(parts.blocks)

    def after(branch: Branch | None, norm: RemovableNorm) -> Branch:
        assert branch is not None
        return replace(branch, read=folded(branch.read, norm))

    blocks = [
        replace(
            block, norm1=None, norm2=None,
            attention=after(block.attention, norms[count + k]), mlp=after(block.mlp, norms[k]),
        )
        for k, block in enumerate(parts.blocks)
    ]  # fmt: skip
    return replace(parts, blocks=blocks, norm=None, unembedding=folded(parts.unembedding, norms[-1]))


def count_edges(name: str, network: Network, options: argparse.Namespace) -> None:
    """Edges needed in one block, in LIB and PCA."""
    first, last = (f".{options.block + k}" for k in (0, 1))
    names = network.layers
    starts = [k for k, layer in enumerate(names) if layer.endswith(first)]
    end = next(k for k, layer in enumerate(names) if layer.endswith(last))
    result = interbasis.yardstick(
        network.between(names[starts[0] : end + 1]), options.train[: options.samples],
        test_data=options.test[: options.tests], methods=("lib", "pca"), rows=("edges",),
        edge_samples=min(50, options.samples), norm_limit=0.0, folder=options.out / name,
        jacobian_samples=options.samples, jacobian_queries=32,
    )  # fmt: skip
    print(name, f"cross-entropy {result.baseline:.4f}")
    for row in result.edges:
        print(name, row.model_dump_json(exclude={"curve"}), flush=True)


def main() -> None:
    """Train for some minutes; where that ends, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("model", "train", "test", "out"):
        parser.add_argument(name, type=Path)
    for name, default in (("minutes", 10.0), ("between", 100), ("more", 500), ("block", 2)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--samples", type=int, default=100, help="windows that bases are fitted on")
    parser.add_argument("--tests", type=int, default=200, help="windows that edges are removed on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.train, options.test = windows(options.train), windows(options.test)
    original = interbasis.from_hf(str(options.model))
    model = AutoModelForCausalLM.from_pretrained(options.model)
    parts_of = FAMILIES[model.config.model_type]
    options.norms = removable(model)
    weights = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(weights.values(), LEARNING_RATE, weight_decay=0.0)
    options.out.mkdir(parents=True, exist_ok=True)
    state = TrainingState(
        options.out / "state.safetensors", {"between": options.between, "more": options.more},
        weights, optimizer, {f"scale{k}": norm.scale for k, norm in enumerate(options.norms)},
    )  # fmt: skip
    done = train(model, options.train, state, options)
    if done < len(options.norms) * options.between + options.more:
        print("not finished; the same command goes on")
        return
    model.eval()
    scales = [norm.scale.item() for norm in options.norms]
    print("scales", [round(scale, 3) for scale in scales])
    plain = AutoModelForCausalLM.from_pretrained(options.model)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.endswith("scale")})
    network = assemble(without_norms(parts_of(plain), options.norms))
    with torch.no_grad():
        tokens = options.test[:8]
        print(f"cross-entropy without norms {loss(model, options.test[:100]).item():.4f}")
        difference = network.double()(tokens) - model.double()(tokens, use_cache=False).logits
        print(f"largest difference of the folded network's logits {difference.abs().max():.1e}")
    count_edges("with", original, options)
    count_edges("without", network, options)


if __name__ == "__main__":
    main()

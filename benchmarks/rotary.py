"""One block with rotary positions and grouped keys (Llama's) beside one without (GPT-2's), in one run.

python benchmarks/rotary.py [WIDTH …]      default: 384 576

Random weights, float32, heads of 64, a third of the heads for keys, 2,048 tokens in sequences of 256 and of
1,024, edges from signed sums over the positions of a sequence. Seconds of the processor, the least of a few
runs, so that other work on the machine does not count; the ratios are what matters.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import interbasis
from common import machine, report
from interbasis.data.batches import Batches
from interbasis.fit.edges import EdgeSettings, SectionEdges
from interbasis.fit.section_jacobian import SectionJacobian
from interbasis.fit.statistics import collect
from interbasis.network.cores import Attention
from interbasis.network.network import Network
from interbasis.numerics.integration import rule
from interbasis.numerics.linalg import haar_rotation
from interbasis.numerics.random_signs import Sources

HEAD, VOCABULARY, TOKENS = 64, 1000, 2048
LENGTHS = (256, 1024)


def plain_block(width: int) -> Network:
    """GPT-2's: layer norms, an MLP four times as wide, every head with its own keys."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_embd=width, n_head=width // HEAD, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=1
    )
    return _enlarged(GPT2LMHeadModel(config))


def rotary_block(width: int) -> Network:
    """Llama's: RMS norms, a gated MLP 8/3 times as wide, three heads to a key head."""
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=1, hidden_size=width, num_attention_heads=width // HEAD, vocab_size=VOCABULARY,
        num_key_value_heads=width // HEAD // 3, intermediate_size=8 * width // 3,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return _enlarged(LlamaForCausalLM(config))


def _enlarged(model: GPT2LMHeadModel | LlamaForCausalLM) -> Network:
    with torch.no_grad():
        for parameter in model.eval().parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
    return interbasis.from_hf(model, 0)


def processor_seconds(work: Callable[[], object], repeat: int = 3) -> float:
    """Of this process, the least of a few runs."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def phases(network: Network, tokens: Tensor) -> dict[str, float]:
    """Statistics of the block, the Jacobian Gram of its attention, edges of all its sections."""
    with torch.no_grad():
        activations = network.activations(tokens)
        took = {"statistics": processor_seconds(lambda: collect(network, Batches(tokens)))}
        for number, section in enumerate(network.sections):
            f = activations[number]
            out, back = (
                haar_rotation(section.target.width, (0, 1)),
                haar_rotation(section.source.width, (0, 2)),
            )
            attention = isinstance(section.core, Attention)
            if attention:
                jacobian = SectionJacobian.of(section, out)
                metric, u, outputs = jacobian.metric.float(), section.read_outs(f), section.outputs(f)
                took["Jacobian, attention"] = processor_seconds(
                    lambda: section.core.batch_sums(u, outputs, metric, None)  # noqa: B023
                )
            transform = back.float()
            here = section.in_basis(transform.T, out.float())

            def measure() -> None:
                settings = EdgeSettings(rule("gradient"), Sources("positions", 1))
                edges = SectionEdges(here, settings, transform, number, f.shape[1])  # noqa: B023
                for first, some in enumerate(f.split(1)):  # noqa: B023
                    edges.add(some, first)

            seconds = processor_seconds(measure)
            took["edges"] = took.get("edges", 0.0) + seconds
            if attention:
                took["edges, attention"] = seconds
    return took


def main() -> None:
    torch.set_num_threads(1)
    for width in map(int, sys.argv[1:] or (384, 576)):
        plain, rotary = plain_block(width), rotary_block(width)
        for length in LENGTHS:
            tokens = torch.randint(
                0, VOCABULARY, (TOKENS // length, length), generator=torch.Generator().manual_seed(1)
            )
            figures: dict[str, object] = machine() | {"tokens": TOKENS}
            without, turned = phases(plain, tokens), phases(rotary, tokens)
            for phase in without:
                figures |= {
                    f"s {phase}, plain": without[phase],
                    f"s {phase}, rotary": turned[phase],
                    f"ratio, {phase}": turned[phase] / without[phase],
                }
            report(f"rotary over plain, width {width}, T = {length:,}", figures)


if __name__ == "__main__":
    main()

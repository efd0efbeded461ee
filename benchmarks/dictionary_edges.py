"""Edges between dictionaries against backward passes batched over active features, on the same data.

    python benchmarks/dictionary_edges.py [MODEL-FOLDER] [--features 4608 --active 32 --positions 8]

Attributions of the active features of a few output positions to the active features at all positions they
see. A user without closed forms takes the gradient of every active feature's pre-activation, batched, and
multiplies it with the decoder's rows. Dictionaries are random: the cost does not depend on their values.
Processor time of one thread; the ratio is backward passes over closed forms.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import interbasis
from interbasis.dictionaries.chain import Chain
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.edges import SectionInDictionaries
from interbasis.dictionaries.layers import REMAINDERS, ActiveFeatures, DictionaryLayer
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import rule

CASES = {
    "MLP": ("mlp_in.0", "ln1.1"),
    "norm": ("ln2.0", "mlp_in.0"),
    "attention": ("attn_in.0", "ln2.0"),
    "block": ("ln1.0", "ln1.1"),
}


def random_dictionary(width: int, features: int, active: int, seed: int) -> Dictionary:
    generator = torch.Generator().manual_seed(seed)
    W = torch.nn.functional.normalize(torch.randn(features, width, generator=generator), dim=1)
    return Dictionary(W, torch.zeros(features), 0.1 * W, torch.zeros(width), active=active)


def seconds(function: Callable[[], Tensor], repeats: int = 3) -> tuple[float, Tensor]:
    """The least processor time of some runs, and the result."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = function()
        times.append(time.process_time() - start)
    return min(times), result


def backward(
    sections: Sequence[Section], f: Tensor, rows: Tensor, positions: Tensor, vectors: Tensor, local: bool
) -> Tensor:
    """Attributions [S, k, T, M], or [n, k, M] where positions do not mix, by batched backward passes."""
    with torch.enable_grad():
        at = f.clone().requires_grad_()
        output = at[None]
        for section in sections:
            output = section(output)
        output = output[0]
    if local:  # one pass serves all tokens: their outputs do not depend on each other
        (gradients,) = torch.autograd.grad(output, at, rows.transpose(0, 1), is_grads_batched=True)
        return gradients.transpose(0, 1) @ vectors.mT
    blocks = []
    seeds = torch.zeros(rows.shape[1], *output.shape)
    for s, position in enumerate(positions.tolist()):
        seeds.zero_()
        seeds[:, position] = rows[s]
        (gradients,) = torch.autograd.grad(output, at, seeds, is_grads_batched=True, retain_graph=True)
        blocks.append(torch.einsum("ktd,tmd->ktm", gradients, vectors))
    return torch.stack(blocks)


@torch.no_grad()
def measure(
    network: Network, source: DictionaryLayer, target: DictionaryLayer, tokens: Tensor, positions: Tensor
) -> tuple[float, float, float]:
    integral = rule("gradient")
    sections = network.sections[source.index : target.index]
    chain = Chain(sections, integral)
    f = network.activations_at(source.index, tokens[None])
    activations = [x[0] for x in chain.activations(f)]
    z, out = (
        ActiveFeatures(a.indices[0], a.values[0], a.real[0])
        for a in (source.encode(f), target.encode(activations[-1][None]))
    )
    vectors = source.split(z, f[0], f[0])
    if not chain.mixes_positions:
        fast = None
        if len(sections) == 1:
            fast = SectionInDictionaries.from_layers(source, target, sections[0], integral)

        def closed() -> Tensor:
            if fast is None:
                return chain.attributions_at_tokens(activations, vectors, target.rows(out.indices))
            blocks = fast.attributions(f[0], z, vectors[:, -len(REMAINDERS) :], out)
            return torch.cat([block for _, block in blocks])

        slow, expected = seconds(
            lambda: backward(sections, f[0], target.rows(out.indices), positions, vectors, local=True)
        )
        quick, received = seconds(closed)
        error = (received - expected).abs().max() / expected.abs().max()
        return slow, quick, error.item()
    rows = target.rows(out.indices[positions])

    def met() -> Tensor:
        A = chain.attributions(activations, chain.push(activations, vectors), rows, positions)
        total = A["anywhere"].unflatten(2, rows.shape[:2]).permute(2, 3, 0, 1).clone()
        total[torch.arange(len(positions)), :, positions] += A["own"]
        return total

    slow, expected = seconds(lambda: backward(sections, f[0], rows, positions, vectors, local=False), 1)
    quick, received = seconds(met)
    expected = expected[:, :, : received.shape[2]]
    error = (received - expected).abs().max() / expected.abs().max()
    return slow, quick, error.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="folder of a Hugging Face model; default: SmolLM2's shape")
    parser.add_argument("--features", type=int, default=4608)
    parser.add_argument("--active", type=int, default=32)
    parser.add_argument("--positions", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.model:
        network = interbasis.from_hf(arguments.model)
    else:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=1000, hidden_size=576, intermediate_size=1536, num_hidden_layers=2,
            num_attention_heads=9, num_key_value_heads=3,
        )  # fmt: skip
        network = interbasis.from_hf(LlamaForCausalLM(config))
    tokens = torch.randint(0, 1000, (arguments.context,))
    positions = torch.linspace(1, arguments.context - 1, arguments.positions).long()
    print("| between | backward passes (s) | closed form (s) | ratio | largest difference |")
    print("|---|---:|---:|---:|---:|")
    for name, places in CASES.items():
        layers = []
        for seed, place in enumerate(places):
            width = network.sections[network.layers.index(place)].columns_seen
            random = random_dictionary(width, arguments.features, arguments.active, seed)
            layers.append(DictionaryLayer.from_network(network, place, random))
        slow, quick, error = measure(network, layers[0], layers[1], tokens, positions)
        print(f"| {name} | {slow:.2f} | {quick:.3f} | {slow / quick:.1f} | {error:.0e} |")


if __name__ == "__main__":
    main()

"""One block of a language model's shape (random weights, T = 1,024, float32): every phase, per 1,000 tokens.

python benchmarks/language.py statistics [MODEL …]   the one pass: means, Grams, the cores' sums
python benchmarks/language.py mlp [MODEL …]          basis and edges of the MLP, beside backward passes
python benchmarks/language.py attention [MODEL …]    the same of attention; also with sampled queries
python benchmarks/language.py whole [MODEL …]        a build of the block, and the time of all blocks from it
python benchmarks/language.py all [MODEL …]          all of these

MODEL is gpt2 (GPT2-small), smollm2 (SmolLM2-135M) or llama (Llama-3.2-1B, as much as a block tells); default:
gpt2 and smollm2.

Backward passes are those of reference.py, looped and batched, the fastest of them counted; for attention they
take one stochastic source over positions, where the closed form is exact. Edges are estimated with signed
sums over groups of tokens, and judged by exact ones on the same tokens.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import interbasis
from common import machine, peak_gigabytes, report, seconds
from interbasis.data.batches import Batches
from interbasis.fit.edges import EdgeSettings, SectionEdges
from interbasis.fit.section_jacobian import SectionJacobian
from interbasis.fit.statistics import collect
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.cores import Moments, SamplesQueries
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import rule
from interbasis.numerics.random_signs import Sources
from reference import batched, fused, looped

POSITIONS, SAMPLES = 1024, 16
FEW_SAMPLES = 4
"""For attention's exact basis, which takes long."""
GROUP = 128
"""Tokens whose attributions are summed with signs; as many groups give edges within about 5 %."""
QUERIES = 64
"""Positions sampled per sequence."""
ROWS, COLUMNS = 16, 64
"""Output features that backward passes are timed for; input features from which edges are exact, too."""
PHASES = ("statistics", "Jacobians", "bases", "edges")
PAPER_SAMPLES = 500
RULE = rule("gradient")
SMALL_VOCABULARY = {"vocab_size": 1000, "bos_token_id": 0, "eos_token_id": 1}


@dataclass(frozen=True)
class Shape:
    """A block's shape, and how many of them the model has."""

    name: str
    blocks: int
    llama: dict[str, float] | None = None
    """What a Llama's configuration says; None is GPT2-small."""

    @property
    def setting(self) -> str:
        return f"{self.blocks} blocks on {PAPER_SAMPLES} × {POSITIONS:,} tokens"

    def block(self) -> Network:
        """The first block of a random model of this shape, its weights larger than at initialisation."""
        torch.manual_seed(0)
        model: GPT2LMHeadModel | LlamaForCausalLM
        if self.llama is None:
            model = GPT2LMHeadModel(GPT2Config(n_layer=1, **SMALL_VOCABULARY))
        else:
            model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **self.llama, **SMALL_VOCABULARY))
        with torch.no_grad():
            for parameter in model.eval().parameters():
                if parameter.ndim > 1:
                    parameter.mul_(2)
        return interbasis.from_hf(model, 0)


SHAPES = {
    "gpt2": Shape("GPT2-small", 12),
    "smollm2": Shape(
        "SmolLM2-135M",
        30,
        {
            "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
            "rope_theta": 100_000.0,
        },
    ),
    "llama": Shape(
        "Llama-1B",
        16,
        {
            "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 8192, "rope_theta": 500_000.0,
        },
    ),
}  # fmt: skip


def rotation(width: int) -> Tensor:
    return torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0]


def basis(section: Section, transform: Tensor, f: Tensor, queries: int | None = None) -> Tensor:
    """M′ in float64, sample by sample, with all of its linear algebra."""
    jacobian = SectionJacobian.of(section, transform)
    core, tokens = section.core, f.shape[0] * f.shape[1]
    if not isinstance(core, SamplesQueries):
        sums: dict[str, Tensor] = {}
        for some in f.split(2):
            batch = core.statistics(some @ section.read.T, section.outputs(some))
            sums = {name: sums.get(name, 0) + total.double() for name, total in batch.items()}
        moments = core.moments(sums, jacobian.metric)
    else:
        every = torch.arange(f.shape[1] if queries is None else queries)
        strata = every + (0 if queries is None else torch.rand(len(f), queries))
        positions = (strata * (f.shape[1] / len(every))).long().expand(len(f), -1)
        scale, metric = f.shape[1] / len(every), jacobian.metric.to(f.dtype)
        local, gram_sum = core.moments(core.sums_at(f @ section.read.T, positions, metric), metric)
        moments = Moments(scale * local, scale * gram_sum)
    gram = jacobian.gram(moments, tokens, tokens)
    return gram.X.T @ gram.K @ gram.X


def edges(section: Section, f: Tensor) -> Tensor:
    """Ê of a section in the coordinates of two bases, with signed sums over groups."""
    total = SectionEdges(section, EdgeSettings(RULE, Sources(GROUP, 1)), longest=f.shape[1])
    for number, some in enumerate(f.split(2)):
        total.add(some, 2 * number)
    return total.sums.edges.rms


def exact_edges(section: Section, f: Tensor) -> Tensor:
    """Exact Ê into ROWS features from COLUMNS features, the constants left out."""
    rows, columns = slice(1, 1 + ROWS), slice(1, 1 + COLUMNS)
    total = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
    for one in f.split(1):
        u, few = one @ section.read.T, one[..., columns].contiguous()
        for start in range(0, f.shape[1], 32):
            here = slice(start, start + 32)
            inner = section.core.attributions(u, few, section.read[:, columns], here, RULE)
            block = torch.einsum("ic,ctj->itj", section.write[rows], inner)
            block += section.skip[rows, None, columns] * few[0, here]
            total += block.double().square().sum(1)
    return (total / (f.shape[0] * f.shape[1])).sqrt()


def looped_edges(section: Section, f: Tensor) -> Tensor:
    """The usual way: one backward pass per output feature, a sign per output position."""
    f = f.detach().requires_grad_()
    signs = torch.randint(0, 2, f.shape[:2]).to(f) * 2 - 1
    output = (signs[..., None] * section(f)).sum((0, 1))
    rows = []
    for feature in output:
        (gradient,) = torch.autograd.grad(feature, f, retain_graph=True)
        product = gradient * f
        product = product.sum(1) if section.core.mixes_positions else product
        rows.append(product.detach().square().flatten(0, -2).sum(0))
    return torch.stack(rows)


def per_thousand(work: Callable[[Tensor], object], f: Tensor, repeat: int = 1) -> float:
    """Wall time, the best of ``repeat``."""
    return 1000 * seconds(lambda: work(f), repeat) / (f.shape[0] * f.shape[1])


def compare(name: str, section: Section, f: Tensor) -> None:
    """Backward passes are timed for ROWS of the output features, and their time is scaled to all of them."""
    transform = rotation(section.target.width)
    figures: dict[str, object] = machine() | {"dtype": str(f.dtype)}
    few = f[:FEW_SAMPLES] if section.core.mixes_positions else f
    with torch.no_grad():
        basis(section, transform, f[:1])  # warm
        mine = per_thousand(lambda some: basis(section, transform, some), few, 2)
    figures |= {"tokens, basis": few.shape[0] * few.shape[1], "s basis, ours": mine}
    if isinstance(section.core, SamplesQueries):
        with torch.no_grad():
            exact = torch.linalg.eigvalsh(basis(section, transform, few))
            sampled = torch.linalg.eigvalsh(basis(section, transform, few, QUERIES))
            figures[f"s basis, {QUERIES} queries sampled"] = per_thousand(
                lambda some: basis(section, transform, some, QUERIES), few, 2
            )
        figures["error of the 10 leading Λ, sampled"] = ((sampled - exact) / exact)[-10:].abs().max().item()
    single, scale = transform[:ROWS].to(f.dtype), section.target.width / ROWS
    theirs = {
        f"s basis, looped, {samples * POSITIONS} tokens": scale
        * per_thousand(lambda some: looped(fused(section), single, some), f[:samples], 2)
        for samples in (1, 2)
    } | {
        f"s basis, batched by {at_once}": scale
        * per_thousand(lambda some, at_once=at_once: batched(section, single, some, at_once), f[:1])
        for at_once in (2, 4)
    }
    figures |= theirs | {"ratio, basis": min(theirs.values()) / mine}
    figures |= compare_edges(section, f)
    report(name, figures | {"GB peak": peak_gigabytes()})


def compare_edges(section: Section, f: Tensor) -> dict[str, object]:
    """Time of signed sums for all edges, and their error for some of them, by exact ones."""
    source, target = rotation(section.source.width).to(f.dtype), rotation(section.target.width).to(f.dtype)
    features = f @ source.T
    whole, few = section.in_basis(source.T, target), section.in_basis(source.T, target[:ROWS])
    found: list[Tensor] = []
    with torch.no_grad():
        mine = per_thousand(lambda some: found.append(edges(whole, some)), features)
        exact = exact_edges(whole, features)
    error = ((found[0][1 : 1 + ROWS, 1 : 1 + COLUMNS] - exact) / exact).abs().median().item()
    groups = f.shape[0] * f.shape[1] // GROUP
    usual = per_thousand(lambda some: looped_edges(fused(few), some), features[:1], 2)
    usual *= section.target.width / ROWS
    return {
        "tokens, edges": f.shape[0] * f.shape[1],
        f"s edges, groups of {GROUP}": mine,
        f"median error of Ê, {groups} groups": error,
        "s edges, looped": usual,
        "ratio, edges": usual / mine,
    }


def whole_build(shape: Shape, network: Network, tokens: Tensor) -> None:
    """LIB and edges of one block, every node layer; from it all blocks on as many tokens as in the paper.

    What goes with the tokens is told from what is done once by two builds, on a part of the samples and on
    all. Edges are signed sums over the sequence, in the sampled form at some of its positions. Activations
    between blocks lie on disk (`cache_gigabytes`), so that no pass runs through other blocks.
    """
    part = tokens[: len(tokens) // 4]
    hours: dict[str, dict[str, float]] = {}
    for name, queries in (("exact", None), ("sampled", QUERIES)):
        settings = {"jacobian_queries": queries, "edge_group": "positions", "edge_positions": queries}
        graphs = [
            interbasis.build(network, some, dtype="float32", edge_sources=1, **settings)
            for some in (part, tokens)
        ]
        took = [graph.provenance.timings for graph in graphs]
        more = len(tokens) - len(part)
        by_sample = {phase: (took[1][phase] - took[0][phase]) / more for phase in PHASES}
        by_sample["bases"] = 0.0  # decompositions know nothing of the data's length
        once = {phase: took[0][phase] - by_sample[phase] * len(part) for phase in PHASES}
        hours[name] = {
            phase: shape.blocks * (once[phase] + PAPER_SAMPLES * by_sample[phase]) / 3600 for phase in PHASES
        }
        figures = machine() | {
            f"s {phase} per 1,000 tokens": 1000 / POSITIONS * value for phase, value in by_sample.items()
        }
        figures |= {f"s {phase} once": value for phase, value in once.items()}
        figures |= {f"hours {phase}, {shape.setting}": value for phase, value in hours[name].items()}
        figures |= {f"hours, {shape.setting}": sum(hours[name].values()), "GB peak": peak_gigabytes()}
        if name == "exact":
            exact = graphs[1]
        else:
            mixed = sum((hours["exact"] | {"edges": hours[name]["edges"]}).values())
            figures |= {f"hours, {shape.setting}, basis exact": mixed} | errors(exact, graphs[1])
        how = "exact basis, edges from all" if queries is None else f"basis and edges from {queries}"
        report(f"LIB with edges, one block of {shape.name}, {how} positions of a sequence", figures)


def errors(exact: InteractionGraph, sampled: InteractionGraph) -> dict[str, object]:
    """Of the leading Λ of sampled positions on these few tokens, the worst in all layers."""
    worst = 0.0
    for one, other in zip(exact.layers[:-1], sampled.layers[:-1], strict=True):
        leading = slice(1 + one.isolated, 11 + one.isolated)
        ratio = other.eigenvalues[leading] / one.eigenvalues[leading]
        worst = max(worst, (ratio - 1).abs().max().item())
    return {"error of the 10 leading Λ, worst layer": worst}


def main() -> None:
    which, models = (sys.argv[1] if len(sys.argv) > 1 else "all"), sys.argv[2:] or ["gpt2", "smollm2"]
    for shape in (SHAPES[model] for model in models):
        measure(which, shape)


def measure(which: str, shape: Shape) -> None:
    network = shape.block()
    tokens = torch.randint(0, 1000, (SAMPLES, POSITIONS), generator=torch.Generator().manual_seed(1))
    if which in ("statistics", "all"):
        took = per_thousand(lambda some: collect(network, Batches(some)), tokens, 2)
        figures = machine() | {"s statistics": took, "GB peak": peak_gigabytes()}
        report(f"statistics of one block of {shape.name} (PCA, and the cores' sums)", figures)
    with torch.no_grad():
        activations = dict(zip(network.layers, network.activations(tokens), strict=True))
    sections = {section.source.name: section for section in network.sections}
    for name, layer in (("mlp", "mlp_in.0"), ("attention", "attn_in.0")):
        if which in (name, "all"):
            compare(f"{name}, {shape.name}, T = 1,024", sections[layer], activations[layer])
    if which in ("whole", "all"):
        whole_build(shape, network, tokens)


if __name__ == "__main__":
    main()

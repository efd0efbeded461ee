"""One block of GPT2-small's shape (random weights, T = 1,024, float32): every phase, per 1,000 tokens.

python benchmarks/language.py statistics   the one pass: means, Grams, the cores' sums
python benchmarks/language.py mlp          basis and edges of the MLP section, beside backward passes
python benchmarks/language.py attention    the same of the attention section; also with sampled queries
python benchmarks/language.py whole        a build of the block, and the time of the paper's setting from it

Backward passes are those of reference.py, looped and batched, the fastest of them counted; for attention they
take one stochastic source over positions, where the closed form is exact. Edges are estimated with signed
sums over groups of tokens, and judged by exact ones on the same tokens.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import interbasis
from common import machine, peak_gigabytes, report, seconds
from interbasis.attribution import EdgeSums, Sources, _add
from interbasis.cores import Moments
from interbasis.data.batches import Batches
from interbasis.integration import rule
from interbasis.jacobian import assemble
from interbasis.network import Network, Section
from interbasis.statistics import collect
from reference import batched, looped

SAMPLES, POSITIONS, GROUP, QUERIES, ROWS = 4, 1024, 16, 128, 16
WIDE_GROUP = 256
"""Tokens in a group where there are as many as in the paper."""
PAPER_SAMPLES, PAPER_BLOCKS = 500, 12
RULE = rule("gradient")


def gpt2_block() -> Network:
    """The first block of a random GPT2-small, its weights larger than at initialisation."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, vocab_size=1000, bos_token_id=0, eos_token_id=1)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
    return interbasis.from_hf(model, 0)


def rotation(width: int) -> Tensor:
    return torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0]


def basis(section: Section, transform: Tensor, f: Tensor, queries: int | None = None) -> Tensor:
    """M′ in float64, sample by sample, with all of its linear algebra."""
    write = transform @ section.write.double()
    metric = write.T @ write
    core, tokens = section.core, f.shape[0] * f.shape[1]
    if core.has_statistics:
        sums: dict[str, Tensor] = {}
        for some in f.split(2):
            found = core.statistics(some @ section.read.T, section.outputs(some))
            sums = {name: sums.get(name, 0) + total.double() for name, total in found.items()}
        moments = core.moments(sums, metric)
    else:
        every = torch.arange(f.shape[1] if queries is None else queries)
        strata = every + (0 if queries is None else torch.rand(len(f), queries))
        at = (strata * (f.shape[1] / len(every))).long().expand(len(f), -1)
        scale = f.shape[1] / len(every)
        found = core.moments_at(f @ section.read.T, at, metric.to(f.dtype))
        moments = Moments(scale * found.local, scale * found.gram)
    gram = assemble(section, transform, write, moments, tokens, tokens)
    return gram.X.T @ gram.K @ gram.X


def edges(section: Section, f: Tensor, group: int | None) -> Tensor:
    """Ê of a section in the coordinates of two bases, with signed sums over groups or exact."""
    total = EdgeSums.zero(section, group is not None)
    _add(total, section, f, RULE, None if group is None else Sources(group, 1))
    return total.edges.rms


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


def per_thousand(work: Callable[[Tensor], object], f: Tensor) -> float:
    """CPU seconds of all threads, so that other work on the machine does not count."""
    start = time.process_time()
    work(f)
    return 1000 * (time.process_time() - start) / (f.shape[0] * f.shape[1])


def compare(name: str, section: Section, f: Tensor) -> None:
    """Backward passes are timed for ROWS of the output features, and their time is scaled to all of them."""
    transform = rotation(section.target.width)
    figures: dict[str, object] = machine() | {"dtype": str(f.dtype), "tokens": f.shape[0] * f.shape[1]}
    with torch.no_grad():
        basis(section, transform, f[:1])  # warm
        # the linear algebra at the end is done once for all data; more tokens where they cost little
        many = f if section.core.mixes_positions else f.repeat(4, 1, 1)
        mine = per_thousand(lambda some: basis(section, transform, some), many)
    figures["s basis, ours"] = mine
    if section.core.samples_queries:
        with torch.no_grad():
            exact = torch.linalg.eigvalsh(basis(section, transform, f))
            sampled = torch.linalg.eigvalsh(basis(section, transform, f, QUERIES))
            figures[f"s basis, {QUERIES} queries sampled"] = per_thousand(
                lambda some: basis(section, transform, some, QUERIES), f
            )
        figures["error of the 10 leading Λ, sampled"] = ((sampled - exact) / exact)[-10:].abs().max().item()
    some, single, scale = f[:1], transform[:ROWS].to(f.dtype), section.target.width / ROWS
    theirs = {"s basis, looped": scale * per_thousand(lambda some: looped(section, single, some), some)}
    for at_once in (2, 4):
        theirs[f"s basis, batched by {at_once}"] = scale * per_thousand(
            lambda some, at_once=at_once: batched(section, single, some, at_once), some
        )
    figures |= theirs | {"ratio, basis": min(theirs.values()) / mine}
    figures |= compare_edges(section, f)
    report(name, figures | {"GB peak": peak_gigabytes()})


def compare_edges(section: Section, f: Tensor) -> dict[str, object]:
    """Time of signed sums for all edges; their error for the edges into ROWS features, by exact ones."""
    source, target = rotation(section.source.width).to(f.dtype), rotation(section.target.width).to(f.dtype)
    features = f @ source.T
    whole, few = section.in_basis(source.T, target), section.in_basis(source.T, target[:ROWS])
    with torch.no_grad():
        mine = per_thousand(lambda some: edges(whole, some, GROUP), features)
        wide = per_thousand(lambda some: edges(whole, some, WIDE_GROUP), features)
        exact, estimate = edges(few, features, None), edges(few, features, GROUP)
    error = ((estimate - exact) / exact)[1:, 1:].abs().median().item()
    groups = f.shape[0] * f.shape[1] // GROUP
    paper = PAPER_SAMPLES * POSITIONS // WIDE_GROUP
    usual = per_thousand(lambda some: looped_edges(few, some), features[:1]) * section.target.width / ROWS
    return {
        f"s edges, groups of {GROUP}": mine,
        f"median error of Ê, {groups} groups": error,
        f"s edges, groups of {WIDE_GROUP}": wide,
        f"median error of Ê, {paper} groups (scaled)": error * (groups / paper) ** 0.5,
        "s edges, looped": usual,
        "ratio, edges": usual / mine,
    }


def whole_build(network: Network, tokens: Tensor) -> None:
    """LIB and edges of one block, every node layer; from it all blocks on as many tokens as in the paper.

    What goes with the tokens is told from what is done once by two builds, on half of the samples and on all.
    In a model of several blocks attention's pass of block k runs through the k blocks before it, too.
    """
    half = tokens[: len(tokens) // 2]
    forward = seconds(lambda: network(half), 2) / len(half)
    for queries in (None, QUERIES):
        settings = {"jacobian_queries": queries, "edge_group": "positions", "edge_positions": QUERIES}
        took = [
            interbasis.build(network, some, dtype="float32", edge_sources=1, **settings).provenance.timings
            for some in (half, tokens)
        ]
        by_sample = {name: (took[1][name] - took[0][name]) / len(half) for name in took[1]}
        once = {name: took[0][name] - by_sample[name] * len(half) for name in took[1]}
        before = forward * (PAPER_BLOCKS - 1) / 2
        total = PAPER_BLOCKS * (sum(once.values()) + PAPER_SAMPLES * (sum(by_sample.values()) + before))
        figures = machine() | {
            f"s {name} per 1,000 tokens": 1000 / POSITIONS * value for name, value in by_sample.items()
        }
        figures |= {
            "s forward pass per 1,000 tokens": 1000 / POSITIONS * forward,
            "s once": sum(once.values()),
            "hours, 12 blocks on 500 × 1,024 tokens": total / 3600,
            "GB peak": peak_gigabytes(),
        }
        how = "exact" if queries is None else f"{queries} queries sampled"
        report(f"LIB with edges at {QUERIES} positions, one block, basis {how}", figures)


def main() -> None:
    which = sys.argv[1] if len(sys.argv) > 1 else "all"
    network = gpt2_block()
    tokens = torch.randint(0, 1000, (SAMPLES, POSITIONS), generator=torch.Generator().manual_seed(1))
    if which in ("statistics", "all"):
        took = per_thousand(lambda some: collect(network, Batches(some)), tokens)
        figures = machine() | {"s statistics": took, "GB peak": peak_gigabytes()}
        report("statistics of one block (PCA, and the cores' sums)", figures)
    with torch.no_grad():
        activations = dict(zip(network.layers, network.activations(tokens), strict=True))
    sections = {section.source.name: section for section in network.sections}
    for name, layer in (("mlp", "mlp_in.0"), ("attention", "attn_in.0")):
        if which in (name, "all"):
            compare(f"{name}, GPT2-small, T = 1,024", sections[layer], activations[layer])
    if which in ("whole", "all"):
        whole_build(network, tokens)


if __name__ == "__main__":
    main()

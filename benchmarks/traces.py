"""Prompts with known behaviour, traced: scores, and predictions beside measurements, as a Markdown table.

    python benchmarks/traces.py RUN stories|general|DATA [--out RESULTS.json]

RUN is a run of a language model with a tokenizer. Of the named sets the last prompt is a random sequence of
tokens, twice. DATA is data by name, as `interbasis build --data` takes it: each sample is a prompt, and the
target is the model's first output after it. With --out every check is stored, to be read by layer.
"""

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

import interbasis
from interbasis.analysis.prompts import Prompt, named_output, open_prompt
from interbasis.analysis.traces.checks import Interventions, check_agreement
from interbasis.analysis.traces.records import Trace, TraceSettings
from interbasis.analysis.traces.targets import TargetRequest
from interbasis.analysis.traces.trace import Tracing
from interbasis.data.batches import Batches

PROMPTS: dict[str, tuple[tuple[str, str, str | None, str | None], ...]] = {
    "stories": (
        ("a name again", "Once upon a time, there was a girl named Lily. One day,", " Lily", " Tim"),
        ("pronoun", "Tom was a boy. Tom had a big red ball. One day,", " he", " she"),
        ("closing a quote", 'Mom said, "I love you.', '"', None),
        ("fixed phrase", "Once upon a", " time", None),
    ),
    "general": (
        ("induction", "Lily Potter went to the park. After that, Lily", " Potter", None),
        ("pronoun", "Mary is a doctor. When the work was done,", " she", " he"),
        ("closing a quote", 'He looked at me and said, "I am very happy.', '"', None),
        ("capital city", "The capital of France is", " Paris", " Rome"),
    ),
}
REPEATED = 8
"""Tokens of the random sequence."""
COLUMNS = (
    "prompt", "target", "value", "model's first", "nodes, edges", "replacement", "completeness", "coverage",
    "signs", "signs by gradient", "signs, most influence", "ranks, all sizes", "small change: signs",
    "edges: signs", "edges: ranks", "processor s: trace, checks",
)  # fmt: skip

Chosen = tuple[str, Prompt, TargetRequest]


def repeated(opened: interbasis.Run) -> Chosen:
    """A random sequence twice without its last token, which is the answer."""
    known = open_prompt(opened, "a", None)
    assert known.names is not None
    generator = torch.Generator().manual_seed(0)
    some = torch.randint(len(known.names) // 2 + 10, len(known.names), (REPEATED,), generator=generator)
    tokens = torch.cat([known.inputs[:1], some, some[:-1]])
    prompt = Prompt("random tokens, twice", tokens, known.names, known.encode)
    return "repeated random sequence", prompt, TargetRequest(output=int(some[-1]))


def chosen(opened: interbasis.Run, which: str) -> Iterator[Chosen]:
    """The prompts with their targets."""
    if which in PROMPTS:
        for kind, text, output, minus in PROMPTS[which]:
            prompt = open_prompt(opened, text, None)
            target = TargetRequest(output=named_output(prompt, output), minus=named_output(prompt, minus))
            yield kind, prompt, target
        yield repeated(opened)
        return
    known = open_prompt(opened, "a", None)
    assert known.names is not None
    for k, (_, inputs) in enumerate(Batches(opened.data(which, "test")).chunks(1)):
        text = "".join(known.names[token] for token in inputs[0].tolist())
        yield f"sample {k}", Prompt(text, inputs[0], known.names, known.encode), TargetRequest()


def row(tracing: Tracing, kind: str, prompt: Prompt) -> tuple[list[str], Trace, list[dict[str, float | str]]]:
    """One line of the table, the trace, and every check."""
    start = time.process_time()
    checks_wanted = tracing.settings.checks
    tracing.settings = tracing.settings.model_copy(update={"checks": 0})
    tracing.result()
    seconds = [time.process_time() - start]
    tracing.settings = tracing.settings.model_copy(update={"checks": checks_wanted})
    trace = tracing.result()
    seconds.append(time.process_time() - start - 2 * seconds[0])
    scores, checks = trace.scores, trace.checks
    assert checks is not None
    by_influence = sorted(trace.nodes, key=lambda node: -node.influence)[:checks_wanted]
    run = Interventions(tracing.network, tracing.states, tracing.target, tracing.settings.effect_points)
    influential = run.to_the_mean(by_influence)
    small = [check for check, k in zip(checks.other_values, range(10**6), strict=False) if k % 2 == 0]
    cells = [
        f"{kind}: {prompt.text}", trace.target.name, f"{trace.target.value:.2f}",
        f"“{trace.outputs[0].name}” {trace.outputs[0].probability:.0%}",
        f"{len(trace.nodes)}, {len(trace.edges)}", f"{scores.replacement:.3f}",
        f"{scores.completeness:.4f}", f"{scores.coverage:.2f}",
        f"{checks.node_agreement.sign_agreement:.0%}", f"{checks.gradient_agreement.sign_agreement:.0%}",
        f"{check_agreement(influential).sign_agreement:.0%}",
        f"{checks.spread_agreement.rank_correlation:.2f}",
        f"{check_agreement(small).sign_agreement:.0%}",
        f"{checks.edge_agreement.sign_agreement:.0%}", f"{checks.edge_agreement.rank_correlation:.2f}",
        f"{seconds[0]:.1f}, {seconds[1]:.1f}",
    ]  # fmt: skip
    effects = {node.name: -node.effect for node in trace.nodes}
    sets = {"strongest": checks.nodes, "spread": checks.spread, "influence": influential}
    stored = [
        check.model_dump() | {"prompt": kind, "chosen": name, "gradient": effects[check.node]}
        for name, some in sets.items()
        for check in some
    ]
    return cells, trace, stored


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("prompts")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--max-nodes", type=int, default=64)
    options = parser.parse_args()
    opened = interbasis.open_run(options.run)
    settings = TraceSettings(max_nodes=options.max_nodes)
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    signs: dict[str, list[float]] = {name: [] for name in ("averaged slopes", "gradient")}
    ranks, stored = [], []
    for kind, prompt, target in chosen(opened, options.prompts):
        tracing = Tracing(opened.network, opened.graph, prompt.inputs, target, settings, prompt.names)
        cells, trace, checks = row(tracing, kind, prompt)
        print("| " + " | ".join(cells).replace("\n", "↵") + " |", flush=True)
        assert trace.checks is not None
        signs["averaged slopes"].append(trace.checks.node_agreement.sign_agreement)
        signs["gradient"].append(trace.checks.gradient_agreement.sign_agreement)
        ranks.append(trace.checks.spread_agreement.rank_correlation)
        stored += checks
        if options.out:
            options.out.write_text(json.dumps(stored), encoding="utf-8")
    medians = ", ".join(f"{name} {median(values):.0%}" for name, values in signs.items())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\nMedian over {len(ranks)} prompts: sign agreement by {medians}; rank correlation "
        f"{median(ranks):.2f}. Peak memory {peak:,.0f} MB."
    )


if __name__ == "__main__":
    main()

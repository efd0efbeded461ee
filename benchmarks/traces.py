"""Prompts with known behaviour, traced: scores, and predictions beside measurements, as a Markdown table.

    python benchmarks/traces.py RUN stories|general

RUN is a run of a language model with a tokenizer. The last prompt is a random sequence of tokens, twice.
"""

import sys
from statistics import median

import torch

import interbasis
from interbasis.run.prompts import Prompt, named_output, prompt_of
from interbasis.traces.targets import TargetRequest

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


def repeated(opened: interbasis.OpenedRun) -> tuple[Prompt, int]:
    """A random sequence twice without its last token, which is the answer."""
    known = prompt_of(opened, "a", None)
    assert known.names is not None
    generator = torch.Generator().manual_seed(0)
    some = torch.randint(len(known.names) // 2 + 10, len(known.names), (REPEATED,), generator=generator)
    tokens = torch.cat([known.inputs[:1], some, some[:-1]])
    return Prompt("random tokens, twice", tokens, known.names, known.encode), int(some[-1])


def main(run: str, which: str, settings: interbasis.TraceSettings) -> None:
    opened = interbasis.open_run(run)
    rows = []
    for kind, text, output, minus in PROMPTS[which]:
        prompt = prompt_of(opened, text, None)
        target = TargetRequest(output=named_output(prompt, output), minus=named_output(prompt, minus))
        rows.append((kind, prompt, target))
    again, answer = repeated(opened)
    rows.append(("repeated random sequence", again, TargetRequest(output=answer)))
    print(
        "| prompt | target | value | model's first | nodes, edges | replacement | completeness | coverage "
        "| signs | ranks | signs, other values | edges: signs | edges: ranks | strongest node |\n"
        + "|---" * 14 + "|"
    )  # fmt: skip
    signs = []
    for kind, prompt, target in rows:
        trace = interbasis.trace(
            opened.network, opened.graph, prompt.inputs, target, settings=settings, names=prompt.names
        )
        scores, checks = trace.scores, trace.checks
        assert checks is not None
        signs.append(checks.node_agreement.sign_agreement)
        strongest = max(trace.nodes, key=lambda node: node.influence)
        cells = [
            f"{kind}: {prompt.text}", trace.target.name, f"{trace.target.value:.2f}",
            f"“{trace.outputs[0].name}” {trace.outputs[0].probability:.0%}",
            f"{len(trace.nodes)}, {len(trace.edges)}", f"{scores.replacement:.3f}",
            f"{scores.completeness:.4f}", f"{scores.coverage:.2f}",
            f"{checks.node_agreement.sign_agreement:.0%}", f"{checks.node_agreement.rank_correlation:.2f}",
            f"{checks.other_agreement.sign_agreement:.0%}",
            f"{checks.edge_agreement.sign_agreement:.0%}", f"{checks.edge_agreement.rank_correlation:.2f}",
            strongest.name,
        ]  # fmt: skip
        print("| " + " | ".join(cells).replace("\n", "↵") + " |", flush=True)
    print(f"\nMedian sign agreement: {median(signs):.0%}.")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], interbasis.TraceSettings(max_nodes=int((sys.argv[3:] or ["64"])[0])))

"""What several runs allow one to say together."""

from collections.abc import Sequence

from interbasis.report.facts import Facts
from interbasis.report.standards import Statement


def statements_together(runs: Sequence[Facts]) -> list[Statement]:
    """Sentences about runs side by side; none for a single run."""
    if len(runs) < 2:
        return []
    found = []
    models = {run.graph.provenance.model_fingerprint for run in runs}
    data = {tuple(sorted(run.graph.provenance.data_fingerprints.items())) for run in runs}
    bases = {run.summary["basis"] for run in runs}
    if len(models) > 1:
        found.append(
            Statement(
                False,
                "Differences between runs of different models come from their bases or settings.",
                f"The runs are of {len(models)} different sets of weights.",
            )
        )
    if len(data) > 1:
        found.append(
            Statement(
                False,
                "Differences between the runs do not come from the data.",
                "They were built on different data.",
            )
        )
    measured = [run for run in runs if run.ablation and run.ablation.get("edges_required")]
    rules = {
        (r.ablation["metric"], r.ablation["tolerance"], r.ablation["data"].get("fingerprint"))
        for r in measured
        if r.ablation
    }
    if len(bases) > 1 and len(models) == 1 and len(measured) == len(runs) and len(rules) == 1:
        found.append(
            Statement(
                True,
                "The edges required in these runs may be put side by side.",
                "They are of one model, one metric, one tolerance and the same test data.",
            )
        )
    elif len(measured) > 1 and len(rules) > 1:
        found.append(
            Statement(
                False,
                "The edges required in these runs may be put side by side.",
                "They were measured with different metrics, tolerances or data.",
            )
        )
    if len(bases) > 1 and not any(run.controls for run in runs):
        found.append(
            Statement(
                False,
                "One of these bases is sparser than another.",
                "A count of edges required has no uncertainty, and no controls were run; see "
                "'interbasis controls'.",
            )
        )
    if len(models) > 1 and len(bases) > 1:
        found.append(
            Statement(
                False,
                "A basis is better in general.",
                f"{len(models)} models were looked at; say in how many of them.",
            )
        )
    return found

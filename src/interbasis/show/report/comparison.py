"""What several runs allow one to say together."""

from collections.abc import Sequence

from interbasis.show.report.claims import Claim
from interbasis.show.report.record import ReportedRun

COMPARABLE = "The edges required in these runs may be compared."


def claims_about_all(runs: Sequence[ReportedRun]) -> list[Claim]:
    """Sentences about runs side by side; none for a single run."""
    if len(runs) < 2:
        return []
    claims = []
    models = {run.graph.provenance.model_fingerprint for run in runs}
    data = {tuple(sorted(run.graph.provenance.data_fingerprints.items())) for run in runs}
    bases = {run.summary.basis for run in runs}
    if len(models) > 1:
        claims.append(
            Claim(
                False,
                "Differences between runs of different models come from their bases or settings.",
                f"The runs are of {len(models)} different sets of weights.",
            )
        )
    if len(data) > 1:
        claims.append(
            Claim(
                False,
                "Differences between the runs do not come from the data.",
                "They were built on different data.",
            )
        )
    ablations = [run.record.ablation for run in runs if run.record.ablation and run.record.ablation.sections]
    rules = {ablation.conditions for ablation in ablations}
    if len(bases) > 1 and len(models) == 1 and len(ablations) == len(runs) and len(rules) == 1:
        claims.append(
            Claim(True, COMPARABLE, "They are of one model, one metric, one tolerance and the same data.")
        )
    elif len(rules) > 1:
        claims.append(
            Claim(False, COMPARABLE, "They were measured with different metrics, tolerances, tokens or data.")
        )
    if len(bases) > 1 and not any(run.record.controls for run in runs):
        claims.append(
            Claim(
                False,
                "One of these bases is sparser than another.",
                "A count of edges required has no uncertainty, and no controls were run; see "
                "'interbasis controls'.",
            )
        )
    if len(models) > 1 and len(bases) > 1:
        claims.append(
            Claim(
                False,
                "A basis is better in general.",
                f"{len(models)} models were compared; state for how many of them it holds.",
            )
        )
    return claims

"""The evidence standards: which sentences the measurements of a run allow, and which they do not.

Every sentence is made from what was measured. What was not measured forbids what would need it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from interbasis.report.facts import Facts

SURE = 2.0
"""Standard deviations from which modularity counts as more than chance."""
STABLE = 0.9
"""Agreement of partitions over seeds from which the membership of single features may be told."""
CLEAR = 10.0
"""Times the noise floor from which the last kept feature stands clear of it."""


@dataclass(frozen=True)
class Statement:
    """A sentence, whether it may be said, and why."""

    allowed: bool
    text: str
    because: str


def statements(run: Facts) -> list[Statement]:
    """What may and may not be said from one run."""
    parts = _graph(run), _edges(run), _ablation(run), _bases(run), _modules(run), _features(run), _scope()
    return [statement for part in parts for statement in part]


def _yes(text: str, because: str) -> Statement:
    return Statement(True, text, because)


def _no(text: str, because: str) -> Statement:
    return Statement(False, text, because)


def _graph(run: Facts) -> Iterator[Statement]:
    samples = run.summary["samples"]["data"]
    kept = ", ".join(f"{row['name']} {row['features']}" for row in run.summary["layers"])
    yield _yes(
        f"On {samples:,} samples the {run.summary['basis'].upper()} basis of {run.model} keeps these numbers "
        f"of features: {kept}.",
        "They were computed from all of these samples.",
    )
    near = [
        f"{row['name']} {row['last_kept_over_floor']:.2g} times"
        for row in run.summary["layers"]
        if row["last_kept_over_floor"] is not None and row["last_kept_over_floor"] < CLEAR
    ]
    if near:
        yield _no(
            "These numbers of features are properties of the network.",
            f"The last kept feature is near the noise floor ({', '.join(near)} the floor): another floor "
            "keeps another number.",
        )
    config = run.graph.config
    if config.jacobian_sources or config.jacobian_queries:
        yield _no(
            "The basis is exact.",
            "Its Jacobians were sampled; the features' order may change where eigenvalues are close.",
        )
    off = [
        f"{row['name']} {error:.1%}"
        for row in run.summary["layers"]
        if (error := row["eigenvalue_error"]) is not None
    ]
    if off:
        yield _yes(
            f"Λ are estimates with these relative standard errors: {', '.join(off)}.",
            "Query positions were sampled; two halves of them were followed through all layers.",
        )


def _edges(run: Facts) -> Iterator[Statement]:
    if not run.graph.edges:
        yield _no("Anything about interactions.", "The run was built without edges.")
        return
    errors = [row.get("median_relative_error") for row in run.summary["sections"]]
    if any(error is not None for error in errors):
        quoted = ", ".join(
            f"{name} {error:.1%}"
            for name, error in zip(run.sections, errors, strict=True)
            if error is not None
        )
        yield _yes(
            f"The edges are estimates with these median relative standard errors: {quoted}.",
            "They come from stochastic sources, whose spread was measured.",
        )
        yield _no(
            "One edge is stronger than another where they differ by less than their errors.",
            "The order of such edges is chance.",
        )
    else:
        yield _yes(
            "The edges are exact for these samples.",
            "They are sums over all samples and positions; no stochastic sources were used.",
        )
    if run.summary["edge_method"] == "gradient":
        yield _no(
            "The edges into a feature add up to its value.",
            "Gradients at the end of the path were taken (α = 1), which add up for ReLU MLPs only; "
            "edge_method=exact integrates.",
        )
    yield _no(
        "An edge excites or inhibits.",
        "Ê is a root mean square over the data and has no sign.",
    )


def _ablation(run: Facts) -> Iterator[Statement]:
    found = run.ablation
    if not found or not found.get("sections"):
        yield _no(
            "Few edges suffice, or an edge is not needed.", "Nothing was ablated; see 'interbasis ablate'."
        )
    else:
        metric, data = found["metric"].replace("_", "-"), found["data"]
        counts = ", ".join(f"{row['from']} → {row['to']} {row['count']:,}" for row in found["sections"])
        yield _yes(
            f"One section at a time, these numbers of the largest edges keep {metric} within "
            f"{found['tolerance']:g} of {found['baseline']:.5g}: {counts}.",
            f"Measured on {data['samples']:,} samples of {data['spec']}.",
        )
        moving = [row for row in found["sections"] if row.get("stable_count") not in (None, row["count"])]
        yield _no(
            "These are the fewest edges that would do.",
            "Edges are ranked by Ê and the metric is not monotone in their number"
            + (
                "; from these counts on it stays within the tolerance: "
                + ", ".join(f"{row['from']} → {row['to']} {row['stable_count']:,}" for row in moving)
                if moving
                else ""
            )
            + "; other sets were not tried.",
        )
        if data.get("fingerprint") in run.graph.provenance.data_fingerprints.values():
            yield _no(
                "The counts hold for data that the basis has not seen.",
                "The ablation was evaluated on data that the graph was built on.",
            )
    yield from _whole(run)


def _whole(run: Facts) -> Iterator[Statement]:
    if not run.curves:
        yield _no(
            "A part of the edges does the work of all, in all sections at once.",
            "Curves over all sections were not measured; see 'interbasis curves'.",
        )
        return
    whole = run.curves["whole"]
    if not does_something(whole):
        yield _no(
            "A part of the edges does the work of all, in all sections at once.",
            "The model with all edges is not told from one with none, so nothing is there to be carried.",
        )
        return
    yield _yes(
        f"With edges ablated in all sections at once, the area under the faithfulness curve is "
        f"{interval(whole, 'area')} (95 % bootstrap interval).",
        f"Measured at {len(run.curves['fractions'])} fractions of the edges; the interval is over samples.",
    )


def _bases(run: Facts) -> Iterator[Statement]:
    basis = run.summary["basis"].upper()
    if not run.controls:
        yield _no(
            f"{basis} is sparser than another basis, or its sparsity was learnt.",
            "No controls were run (other bases, scrambled weights, random rankings); see "
            "'interbasis controls'.",
        )
        return
    rows = run.controls["rows"]
    own = next((r for r in rows if r["basis"] == run.summary["basis"] and _plain_control(r)), None)
    if own is None:
        yield _no(f"{basis} is sparser than another basis.", f"The controls do not hold {basis} itself.")
        return
    for row in rows:
        if row is not own:
            yield _compared(own, row)
    failed = [s for row in rows for s in row.get("stress", []) if s["failed"]]
    if failed:
        tried = sum(s["tried"] for row in rows for s in row.get("stress", []))
        yield _no(
            "The edges that ablation declared unneeded do nothing.",
            f"{sum(s['failed'] for s in failed)} of {tried} halves of them, ablated alone, miss the "
            "threshold: effects of these edges cancel.",
        )


def _plain_control(row: dict[str, Any]) -> bool:
    return row["network"] == "trained" and row["ranking"] == "Ê"


def _compared(own: dict[str, Any], other: dict[str, Any]) -> Statement:
    """Areas with all sections ablated at once; apart only where the intervals do not touch."""
    a, b = own["curves"]["whole"], other["curves"]["whole"]
    numbers = f"Areas, all sections at once: {interval(a, 'area')} against {interval(b, 'area')}."
    text = f"{own['name']} does more with few edges than [{other['name']}] on this model."
    if not (does_something(a) and does_something(b)):
        return _no(text, f"{numbers} One of the two is not told from a model without edges.")
    own_limits, limits = known_interval(a, "area"), known_interval(b, "area")
    if own_limits is None or limits is None:
        return _no(text, f"{numbers} There are no intervals to compare.")
    if own_limits[0] > limits[1]:
        return _yes(text, f"{numbers} The intervals are apart.")
    if own_limits[1] < limits[0]:
        return _no(text, f"{numbers} It is the other way round.")
    return _no(text, f"{numbers} The intervals overlap.")


def _modules(run: Facts) -> Iterator[Statement]:
    found = run.modules
    null = (found or {}).get("null")
    if not found:
        yield _no("The graph has modules.", "They were not looked for; see 'interbasis modules'.")
        return
    size = f"modularity {found['modularity']:.3f}"
    if not null:
        yield _no("The graph has modules.", f"Its {size} was not compared with rewired graphs.")
        return
    chance = f"{null['mean']:.3f} ± {null['deviation']:.3f}"
    numbers = f"{chance} in {null['graphs']} rewired graphs, z = {null['z']:.1f}"
    if null["z"] < SURE:
        yield _no("The graph has modules.", f"Its {size} is not above chance: {numbers}.")
        return
    yield _yes(f"The graph is more modular than graphs with the same degrees: {size}.", f"Against {numbers}.")
    agreement = (found.get("agreement") or {}).get("seeds")
    if agreement is None or agreement < STABLE:
        told = "was not measured" if agreement is None else f"is {agreement:.2f}"
        yield _no(
            "A single feature belongs to a certain module.",
            f"The agreement of partitions over seeds {told}, where 1 is the same partition and {STABLE} "
            "is asked for here.",
        )
    yield _no(
        "Modules are parts with a function of their own.",
        "Modularity is about edges; no module was intervened on.",
    )


def _features(run: Facts) -> Iterator[Statement]:
    if not run.features:
        yield _no("A feature means something.", "Features were not looked at; see 'interbasis features'.")
        return
    yield _yes(
        "Features correlate with what their labels name, to the part that the labels give.",
        "Labels are computed from activations and direct effects on the data that were looked at.",
    )
    yield _no(
        "The network uses a feature for what its label names.",
        "Labels are correlations; nothing was intervened on.",
    )


def _scope() -> Iterator[Statement]:
    yield _no(
        "It holds for other seeds, models or data.",
        "A run is about one set of weights; sampling of data other than by the intervals given was not "
        "measured.",
    )


def interval(curve: dict[str, Any], name: str) -> str:
    """A number with its interval, as far as they are defined."""
    value, limits = curve[name], known_interval(curve, name)
    if value is None:
        return "not defined"
    return f"{value:.4f}" + (f" ({limits[0]:.4f} to {limits[1]:.4f})" if limits else "")


def does_something(curve: dict[str, Any]) -> bool:
    """Whether the metric with no edges lies outside the 95 % interval of that with all of them."""
    intervals, nothing = curve.get("value_intervals"), curve.get("nothing")
    if curve["area"] is None or nothing is None or not intervals or None in intervals[-1]:
        return False
    low, high = intervals[-1]
    return bool(nothing < low or nothing > high)


def known_interval(curve: dict[str, Any], name: str) -> tuple[float, float] | None:
    """The interval of a number; None where there is none, or one that the bootstrap could not open."""
    limits = curve.get(f"{name}_interval")
    if limits is None or None in limits or limits[0] == limits[1]:
        return None
    return limits[0], limits[1]

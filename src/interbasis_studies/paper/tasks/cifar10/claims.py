"""Claims C1 to C6, the CIFAR-10 MLPs."""

from collections.abc import Sequence
from statistics import median

from interbasis_studies.paper.claims import PaperClaim, Verdict, mean, spread
from interbasis_studies.paper.published import ACCURACY, DIRECTION, FEW_EDGES
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.cifar10.directions import Cifar10Result

ROUNDING_OF_ACCURACY = 0.0005
"""The paper's accuracies have three digits."""
NEAR_ACCURACY = 0.05
MAX_FEW_EDGES = 2 * FEW_EDGES
CLOSE_TO_MODEL = 0.03
"""AUROC that LIB's best direction may be below the model's."""
CLEARLY_LOWER = 0.08
"""AUROC that PCA's best direction has to be below LIB's."""
CLOSE_EXPLAINED, NEAR_EXPLAINED = 0.05, 0.15
MIN_GAIN = 0.05
"""Gains of accuracy by setting the direction."""

C1 = PaperClaim(
    "C1", "test accuracy", f"{100 * ACCURACY[0]:.1f}–{100 * ACCURACY[1]:.1f} %",
    f"all seeds in the paper's range; differs up to {100 * NEAR_ACCURACY:g} points outside", "a model",
)  # fmt: skip
C2 = PaperClaim(
    "C2", "LIB needs fewer edges than PCA in every layer and seed", "all",
    "all pairs of seed and layer; differs where more than half", "LIB and PCA",
)  # fmt: skip
C3 = PaperClaim(
    "C3", "very few edges suffice", f"about {FEW_EDGES} per pair of layers",
    f"median at most {MAX_FEW_EDGES} in every pair of layers; differs where in some", "LIB",
)  # fmt: skip
C4 = PaperClaim(
    "C4", "one LIB direction per layer carries animal against vehicle; PCA spreads it",
    f"last layer {DIRECTION['auroc']} of the model's {DIRECTION['model']} AUROC",
    f"LIB at most {CLOSE_TO_MODEL} below the model in the last hidden layer, PCA's best at least "
    f"{CLEARLY_LOWER} below LIB's in every layer before the output; differs where in some", "LIB and PCA",
)  # fmt: skip
C5 = PaperClaim(
    "C5", "the label explains part of that direction's variance", f"{DIRECTION['explained']:.0%}",
    f"mean within {100 * CLOSE_EXPLAINED:g} points; differs within {100 * NEAR_EXPLAINED:g}", "LIB",
)  # fmt: skip
C6 = PaperClaim(
    "C6", "setting that direction to its class mean by the true label raises accuracy",
    f"{DIRECTION['before']:.1%} → {DIRECTION['after']:.1%}",
    f"by at least {100 * MIN_GAIN:g} points in every seed; differs where it rises by less", "LIB",
)  # fmt: skip


def verdicts(r: Reproduction[Cifar10Result]) -> list[Verdict]:
    """All claims, those whose numbers are not there yet as open."""
    both, lib = r.paired("lib", "pca"), r.of_basis("lib")
    last = [job.last_hidden for job in lib]
    areas = [
        [[job.directions[layer].auroc for layer in job.layers[:-1]] for job in jobs] for jobs in both
    ]  # fmt: skip
    return [
        C1.decide(accuracy, [job.test_accuracy for job in r.models]),
        C2.decide(sparser, *([job.counts for job in jobs] for jobs in both)),
        C3.decide(few_edges, [job.counts for job in lib]),
        C4.decide(one_direction, *areas, [job.whole.auroc for job in both[0]]),
        C5.decide(explained, [row.explained for row in last]),
        C6.decide(
            intervention, [row.accuracy_before for row in last], [row.accuracy_after for row in last]
        ),
    ]  # fmt: skip


def accuracy(test: Sequence[float]) -> Verdict:
    """C1 of the test accuracies of all seeds."""
    low, high = ACCURACY
    away = max(max(low - value, value - high, 0.0) for value in test)
    return C1.judge(
        spread(test, "{:.2%}"), away < ROUNDING_OF_ACCURACY, away <= NEAR_ACCURACY,
        f"up to {100 * away:.1f} points outside the paper's range",
    )  # fmt: skip


def sparser(lib: Sequence[Sequence[int]], pca: Sequence[Sequence[int]]) -> Verdict:
    """C2 of edges required, per seed and section."""
    pairs = [
        (a, b) for first, second in zip(lib, pca, strict=True) for a, b in zip(first, second, strict=True)
    ]
    wins = sum(a < b for a, b in pairs)
    ratios = [
        median(b[k] / max(a[k], 1) for a, b in zip(lib, pca, strict=True)) for k in range(len(lib[0]))
    ]  # fmt: skip
    return C2.judge(
        f"{wins} of {len(pairs)}; PCA needs {', '.join(f'{r:.1f}' for r in ratios)} times LIB's (median "
        "per layer)",
        wins == len(pairs), wins / len(pairs) > 0.5, f"{len(pairs) - wins} pairs to the contrary",
    )  # fmt: skip


def few_edges(lib: Sequence[Sequence[int]]) -> Verdict:
    """C3 of LIB's edges required, per seed and section."""
    middle = [median(column) for column in zip(*lib, strict=True)]
    few = sum(value <= MAX_FEW_EDGES for value in middle)
    return C3.judge(
        f"median over seeds {', '.join(f'{value:,.0f}' for value in middle)}", few == len(middle), few > 0,
        f"{', '.join(f'{value / FEW_EDGES:.1f}' for value in middle)} times the paper's",
    )  # fmt: skip


def one_direction(
    lib: Sequence[Sequence[float]], pca: Sequence[Sequence[float]], model: Sequence[float]
) -> Verdict:
    """C4 of the best direction's AUROC, per seed and layer before the output, and of the whole models."""
    last = [seed[-1] for seed in lib]
    isolates = all(m - a <= CLOSE_TO_MODEL for a, m in zip(last, model, strict=True))
    lower = [
        mean([a - b for a, b in zip(*column, strict=True)])
        for column in zip(zip(*lib, strict=True), zip(*pca, strict=True), strict=True)
    ]
    apart = sum(value >= CLEARLY_LOWER for value in lower)
    return C4.judge(
        f"last hidden layer {spread(last)} of {spread(model)}; PCA's best is lower by "
        f"{', '.join(f'{value:.3f}' for value in lower)} (mean per layer)",
        isolates and apart == len(lower), isolates and apart > 0,
        f"PCA's best is {CLEARLY_LOWER} lower in {apart} of {len(lower)} layers",
    )  # fmt: skip


def explained(lib: Sequence[float]) -> Verdict:
    """C5 of the share of the last hidden layer's direction's variance, seed by seed."""
    away = mean(lib) - DIRECTION["explained"]
    return C5.judge(
        f"{spread(lib, '{:.0%}')}, mean {mean(lib):.1%}",
        abs(away) <= CLOSE_EXPLAINED, abs(away) <= NEAR_EXPLAINED, f"{100 * away:+.1f} points",
    )  # fmt: skip


def intervention(before: Sequence[float], after: Sequence[float]) -> Verdict:
    """C6 of test accuracies with the last hidden layer's direction set by the true label, seed by seed."""
    gains = [b - a for a, b in zip(before, after, strict=True)]
    published = DIRECTION["after"] - DIRECTION["before"]
    return C6.judge(
        f"{mean(before):.1%} → {mean(after):.1%} (means); by "
        f"{spread([100 * gain for gain in gains], '{:.1f}')} points",
        min(gains) >= MIN_GAIN, min(gains) > 0,
        f"{100 * mean(gains):+.1f} points on average, {100 * (mean(gains) - published):+.1f} against the "
        f"paper's {100 * published:+.1f}",
    )  # fmt: skip

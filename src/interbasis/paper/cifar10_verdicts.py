"""Claims C1 to C6, the CIFAR-10 MLPs."""

from collections.abc import Sequence
from statistics import median

from interbasis.paper import paper
from interbasis.paper.verdicts import Ruling, Verdict, mean, spread

OTHER_ACCURACY = 0.05
FEW = 2 * paper.FEW_EDGES
CLOSE_TO_MODEL = 0.03
SPREAD = 0.08
CLOSE_EXPLAINED, NEAR_EXPLAINED = 0.05, 0.15
RAISED = 0.05


def accuracy(test: Sequence[float]) -> Verdict:
    """C1 of the test accuracies of all seeds."""
    low, high = paper.ACCURACY
    away = [max(low - value, value - high, 0.0) for value in test]
    ruling: Ruling = (
        "reproduced" if max(away) < 0.0005 else "differs" if max(away) <= OTHER_ACCURACY else "not reproduced"
    )
    return Verdict(
        "C1", "test accuracy", f"{100 * low:.1f}–{100 * high:.1f} %", f"{spread(test, '{:.2%}')}", ruling,
        "" if ruling == "reproduced" else f"up to {100 * max(away):.1f} points outside the paper's range",
        f"all seeds in the paper's range; differs up to {100 * OTHER_ACCURACY:g} points outside",
    )  # fmt: skip


def sparser(lib: Sequence[Sequence[int]], pca: Sequence[Sequence[int]]) -> Verdict:
    """C2 of edges required, per seed and section."""
    pairs = [
        (a, b) for one, other in zip(lib, pca, strict=True) for a, b in zip(one, other, strict=True)
    ]  # fmt: skip
    wins = sum(a < b for a, b in pairs)
    share = wins / len(pairs)
    ruling: Ruling = "reproduced" if share == 1 else "differs" if share > 0.5 else "not reproduced"
    ratios = [
        median(b[k] / max(a[k], 1) for a, b in zip(lib, pca, strict=True)) for k in range(len(lib[0]))
    ]  # fmt: skip
    return Verdict(
        "C2", "LIB needs fewer edges than PCA in every layer and seed", "all",
        f"{wins} of {len(pairs)}; PCA needs {', '.join(f'{r:.1f}' for r in ratios)} times LIB's (median "
        "per layer)",
        ruling, "" if share == 1 else f"{len(pairs) - wins} pairs to the contrary",
        "all pairs of seed and layer; differs where more than half",
    )  # fmt: skip


def few_edges(lib: Sequence[Sequence[int]]) -> Verdict:
    """C3 of LIB's edges required, per seed and section."""
    middle = [median(column) for column in zip(*lib, strict=True)]
    few = sum(value <= FEW for value in middle)
    ruling: Ruling = "reproduced" if few == len(middle) else "differs" if few else "not reproduced"
    return Verdict(
        "C3", "very few edges suffice", f"about {paper.FEW_EDGES} per pair of layers",
        f"median over seeds {', '.join(f'{value:,.0f}' for value in middle)}", ruling,
        "" if ruling == "reproduced"
        else f"{', '.join(f'{value / paper.FEW_EDGES:.1f}' for value in middle)} times the paper's",
        f"median at most {FEW} in every pair of layers; differs where in some",
    )  # fmt: skip


def one_direction(
    lib: Sequence[Sequence[float]], pca: Sequence[Sequence[float]], model: Sequence[float]
) -> Verdict:
    """C4 of the best direction's AUROC, per seed and layer before the output, and of the whole models."""
    last = [seed[-1] for seed in lib]
    isolates = all(m - a <= CLOSE_TO_MODEL for a, m in zip(last, model, strict=True))
    lower = [
        mean([a - b for a, b in zip(*column, strict=True)])
        for column in zip(by_layer(lib), by_layer(pca), strict=True)
    ]
    apart = sum(value >= SPREAD for value in lower)
    if not isolates or not apart:
        ruling: Ruling = "not reproduced"
    else:
        ruling = "reproduced" if apart == len(lower) else "differs"
    figures = paper.DIRECTION
    return Verdict(
        "C4", "one LIB direction per layer carries animal against vehicle; PCA spreads it",
        f"last layer {figures['auroc']} of the model's {figures['model']} AUROC",
        f"last hidden layer {spread(last)} of {spread(model)}; PCA's best is lower by "
        f"{', '.join(f'{value:.3f}' for value in lower)} (mean per layer)", ruling,
        "" if ruling == "reproduced"
        else f"PCA's best is {SPREAD} lower in {apart} of {len(lower)} layers",
        f"LIB at most {CLOSE_TO_MODEL} below the model in the last hidden layer, PCA's best at least "
        f"{SPREAD} "
        "below LIB's in every layer before the output; differs where in some",
    )  # fmt: skip


def by_layer(areas: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """[seeds][layers] the other way round."""
    return list(zip(*areas, strict=True))


def explained(lib: Sequence[float]) -> Verdict:
    """C5 of the share of the last hidden layer's direction's variance, seed by seed."""
    away = mean(lib) - paper.DIRECTION["explained"]
    ruling: Ruling = (
        "reproduced"
        if abs(away) <= CLOSE_EXPLAINED
        else "differs"
        if abs(away) <= NEAR_EXPLAINED
        else "not reproduced"
    )
    return Verdict(
        "C5", "the label explains part of that direction's variance", f"{paper.DIRECTION['explained']:.0%}",
        f"{spread(lib, '{:.0%}')}, mean {mean(lib):.1%}", ruling,
        "" if ruling == "reproduced" else f"{100 * away:+.1f} points",
        f"mean within {100 * CLOSE_EXPLAINED:g} points; differs within {100 * NEAR_EXPLAINED:g}",
    )  # fmt: skip


def intervention(before: Sequence[float], after: Sequence[float]) -> Verdict:
    """C6 of test accuracies with the last hidden layer's direction set by the true label, seed by seed."""
    gains = [b - a for a, b in zip(before, after, strict=True)]
    figures = paper.DIRECTION
    theirs = figures["after"] - figures["before"]
    ruling: Ruling = (
        "reproduced" if min(gains) >= RAISED else "differs" if min(gains) > 0 else "not reproduced"
    )
    return Verdict(
        "C6", "setting that direction to its class mean by the true label raises accuracy",
        f"{figures['before']:.1%} → {figures['after']:.1%}",
        f"{mean(before):.1%} → {mean(after):.1%} (means); by "
        f"{spread([100 * g for g in gains], '{:.1f}')} points",
        ruling,
        "" if ruling == "reproduced"
        else f"{100 * mean(gains):+.1f} points on average, {100 * (mean(gains) - theirs):+.1f} against the "
        f"paper's {100 * theirs:+.1f}",
        f"by at least {100 * RAISED:g} points in every seed; differs where it rises by less",
    )  # fmt: skip

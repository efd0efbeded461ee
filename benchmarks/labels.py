"""Which basis reads best: the share of features whose label explains at least half of their variance.

    python benchmarks/labels.py RUN…

Runs are of one model on the same data in different bases, after `interbasis features`. Features with several
layers of a block are counted in each; the variance of a norm, which is a feature by construction, is left
out. Intervals are Wilson's at 95 %, over features.
"""

import sys
from collections import defaultdict
from math import sqrt
from pathlib import Path

from interbasis.analysis.features.labels import MIN_SHARE
from interbasis.analysis.features.records import Evidence
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.stored_results import load_result
from interbasis.graph.store import load


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float, float]:
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return share, middle - half, middle + half


def best_of(evidence: tuple[Evidence, ...]) -> Evidence | None:
    return evidence[0] if evidence and evidence[0].kind != "variance" else None


def main(runs: list[Path]) -> None:
    counts: dict[str, dict[str, list[Evidence]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        basis = load(run).config.basis
        result = load_result(run, FeaturesResult)
        assert result is not None
        for layer, described in result.layers.items():
            for feature in described.features:
                if (best := best_of(feature.evidence)) is not None:
                    counts[layer][basis].append(best)
    bases = sorted({basis for by_basis in counts.values() for basis in by_basis})
    print("| layer | " + " | ".join(bases) + " |\n|---|" + "---|" * len(bases))
    for layer in [*counts, None]:
        cells = []
        for basis in bases:
            layers = counts if layer is None else [layer]
            found = [one for name in layers for one in counts[name][basis]]
            share, low, high = wilson(sum(one.share >= MIN_SHARE for one in found), len(found))
            cells.append(f"{share:.0%} ({low:.0%} to {high:.0%})")
        print(f"| {layer or 'all'} | " + " | ".join(cells) + " |")
    for basis in bases:
        kinds: dict[str, int] = defaultdict(int)
        for by_basis in counts.values():
            for one in by_basis[basis]:
                kinds[one.kind if one.share >= MIN_SHARE else "none"] += 1
        print(basis, dict(sorted(kinds.items(), key=lambda item: -item[1])))


if __name__ == "__main__":
    main([Path(run) for run in sys.argv[1:]])

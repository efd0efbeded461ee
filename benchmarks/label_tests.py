"""Labels tested by steering: the share whose prediction holds beyond random directions, run by run.

    python label_tests.py RUN … --out FILE [--layers NAME …] [--top N] [--samples N] [--by X] [--data SPEC]

Of each layer the first ``top`` features are described and steered by ``by`` standard deviations on the first
samples of the data, with `Run.steer`. A label holds if each of its claims does. Shares have Wilson's 95 %
intervals. Finished features are kept in FILE, a line of JSON each; the same command resumes.
"""

import argparse
import json
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from interbasis import open_run
from interbasis.analysis.stages.features import FeaturesResult


def main(options: argparse.Namespace) -> None:
    done = {}
    if options.out.exists():
        lines = map(json.loads, options.out.read_text(encoding="utf-8").splitlines())
        done = {(line["run"], line["feature"]): line for line in lines}
    opened = {Path(run).name: open_run(run, progress=False) for run in options.runs}
    described = {
        name: run.stored(FeaturesResult) or run.features(top=options.top) for name, run in opened.items()
    }
    layers = options.layers or next(iter(opened.values())).graph.layer_names[:-1]
    # features of all layers and runs in turn, so that unfinished work is a fair sample
    for k, layer, (name, run) in product(range(options.top), layers, opened.items()):
        if k >= len(described[name].layers[layer].features):
            continue
        place = name, f"{layer}:{described[name].layers[layer].features[k].index}"
        if place not in done:
            steered = run.steer(place[1], options.by, samples=options.samples, data=options.data)
            tests = [test.model_dump(mode="json") for test in steered.tests]
            done[place] = {"run": name, "feature": place[1], "label": steered.label, "tests": tests}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[place], ensure_ascii=False) + "\n")
    table(done.values())


def table(lines: Any) -> None:
    """Print the shares by run and by kind of claim."""
    counts = defaultdict(list)
    for line in lines:
        tests = line["tests"]
        counts[line["run"], "described features"].append(bool(tests))
        if tests:
            counts[line["run"], "labels"].append(all(test["holds"] for test in tests))
        for test in tests:
            kind = "what follows" if test["claim"].startswith("what follows") else "promotes"
            counts[line["run"], kind].append(test["holds"])
            counts[line["run"], f"{kind}, direction only"].append(test["change"] > 0)
    print("| run | | number | share | 95 % interval |\n|---|---|---|---|---|")
    for (run, kind), held in sorted(counts.items()):
        low, high = binomtest(sum(held), len(held)).proportion_ci(method="wilson")
        share = sum(held) / len(held)
        print(f"| {run} | {kind} | {sum(held)} of {len(held)} | {share:.0%} | {low:.0%} to {high:.0%} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", nargs="*")
    parser.add_argument("--top", type=int, default=16)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--by", type=float, default=2.0)
    parser.add_argument("--data")
    main(parser.parse_args())

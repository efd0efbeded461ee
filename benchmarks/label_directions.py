"""Labels beside random directions of two kinds: all around, and with the covariance of the data.

    python label_directions.py RUN … --data SPEC --layers NAME … [--top N] [--samples N] [--by X]

As label_tests.py, with both kinds of directions in one run and two measures: the change of the logits that a
label claims, and that change divided by the spread of the changes of all outputs.
"""

import argparse
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from interbasis import LayerBasis, open_run
from interbasis.analysis.features.claims import label_claims
from interbasis.analysis.prompts import open_prompt
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.traces.steering import Steering, random_shifts
from interbasis.data.batches import Batches

DIRECTIONS = 20
COUNTED_SAMPLES = 2048


def natural_shifts(basis: LayerBasis, change: Tensor, count: int) -> Tensor:  # [count, width]
    """Random directions that mix the features as they vary, as long as a change."""
    kept = range(basis.first_feature + basis.isolated, basis.features)
    deviations = torch.tensor([basis.deviation(j) for j in kept]).double()
    draws = torch.randn(count, len(kept), generator=torch.Generator().manual_seed(0)).double() * deviations
    shifts = draws @ basis.directions(kept).double().T
    return shifts * (change.double().norm() / shifts.norm(dim=1, keepdim=True))


def main(options: argparse.Namespace) -> None:
    for folder in options.runs:
        run, held, sizes = open_run(folder, progress=False), Counter[str](), []
        described, prompt = run.stored(FeaturesResult), open_prompt(run, None, 0, options.data)
        assert described is not None, f"run interbasis features {folder} first"
        batches = Batches(run.data(options.data, "train"))
        (inputs,) = (chunk for _, chunk in batches.head(options.samples).chunks(options.samples))
        counted = batches.between(0, min(len(batches), COUNTED_SAMPLES))
        network = run.network.to(run.graph.config.torch_dtype)
        outputs = {prompt.output_name(k): k for k in range(network.output_count)}
        for basis in (layer for layer in run.layers if layer.name in options.layers):
            for feature in described.layers[basis.name].features[: options.top]:
                claims = label_claims(feature, outputs, counted)
                by = options.by * basis.deviation(feature.index)
                steering = Steering.from_basis(network, basis, feature.index, by)
                kinds = [
                    steering.change[None].double(),
                    random_shifts(basis, feature.index, steering.change, DIRECTIONS),
                    natural_shifts(basis, steering.change, DIRECTIONS),
                ]
                before, *runs = steering.shifted_outputs(inputs, torch.cat(kinds))
                changes = [(after - before).double() for after in runs]
                spreads = torch.tensor([change.var(-1).mean().sqrt().item() for change in changes])
                for claim in claims:
                    kind = "what follows" if claim.text.startswith("what follows") else "promotes"
                    moved = torch.tensor([claim.value(change).mean().item() for change in changes])
                    held[kind] += 1
                    for measure, values in (("logits", moved), ("over spread", moved / spreads)):
                        around, natural = values[1 : DIRECTIONS + 1].max(), values[DIRECTIONS + 1 :].max()
                        held[f"{kind}, {measure}, all around"] += int(values[0] > around)
                        held[f"{kind}, {measure}, covariance"] += int(values[0] > natural)
                    if kind == "what follows":
                        sizes.append((spreads[1 : DIRECTIONS + 1].mean() / spreads[0]).item())
        print(Path(folder).name, dict(sorted(held.items())))
        print(f"  spread with directions all around over that of the feature: {sum(sizes) / len(sizes):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--layers", nargs="+", required=True)
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--by", type=float, default=2.0)
    main(parser.parse_args())

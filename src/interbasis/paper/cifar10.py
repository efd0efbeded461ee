"""Claims C4 to C6: does one direction per layer of a CIFAR-10 MLP carry animal against vehicle?

For each model (3072-60-60-10, ReLU) and basis: AUROC of every feature for animal (six classes) against
vehicle (four), variance of the best feature that the attribute explains, and test accuracy after that
feature is set to its mean given the true attribute. The basis, the choice of the feature and its means
come from the training images; AUROC, explained variance and accuracy are measured on the test images.

    python -m interbasis.paper.cifar10 DATA.npz CHECKPOINT.safetensors … [--json]
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interbasis.data import cifar10
from interbasis.data.batches import Batches
from interbasis.data.samples import Split
from interbasis.features.activations import collect, of
from interbasis.features.interventions import intervene
from interbasis.features.probes import auroc, best, explained_variance, separation
from interbasis.fit.basis import Principal, interacting
from interbasis.fit.jacobian import Jacobians
from interbasis.fit.statistics import Covariance, Wanted
from interbasis.fit.statistics import collect as collect_statistics
from interbasis.graph.layer_basis import LayerBasis
from interbasis.models import mlp
from interbasis.network.network import Network, NodeLayer
from interbasis.numerics.linalg import Floor
from interbasis.runtime.progress import Progress, progress_bar, silent

ANIMALS = (2, 3, 4, 5, 6, 7)
"""bird, cat, deer, dog, frog, horse; the others are airplane, automobile, ship, truck."""
CHOOSING = 10_000
"""Training images that the features are chosen on; ranks need all values of all features at once."""
RANKED = 4
"""Features of a layer that the paper shows, from the best on."""
PROBED = 512
"""The first features of a layer that are looked at; only PCA at the input has more."""
SPLITS: tuple[Split, Split] = ("train", "test")
GROUPS = tuple(int(label in ANIMALS) for label in range(10))


@dataclass(frozen=True, eq=False)
class Images:
    """CIFAR-10 as rows of 3,072 numbers in [−1, 1], channel by channel, with labels."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def load(cls, path: str | Path) -> "Images":
        """All of them in memory, from any file or folder that `interbasis.data.cifar10` reads."""
        train, test = (cifar10.load(path, split).all() for split in SPLITS)
        return cls(train, test)


@dataclass(frozen=True, eq=False)
class Pixels:
    """The principal directions of the images: all models read the same ones, so they are found once."""

    covariance: Covariance
    principal: Principal

    @classmethod
    def of(cls, images: Images, progress: Progress = silent) -> "Pixels":
        total: Covariance | None = None
        for first, rows in Batches(images.train).chunks(2048):
            found = Covariance.of(rows)
            if total is None:
                total = found
            else:
                total.merge(found)
            progress("pixels", first + len(rows), len(images.train[0]))
        assert total is not None
        node = NodeLayer("linear.0", images.train[0].shape[1] + 1)
        return cls(total, Principal.of(node, total, Floor()))


def bases(
    network: Network, images: Images, pixels: Pixels, progress: Progress
) -> dict[str, list[LayerBasis]]:
    """What `interbasis.build` finds with basis="lib" and "pca", for a float64 network."""
    batches = Batches(images.train)
    statistics = collect_statistics(network, batches, Wanted(grams=False), progress)
    later = collect_statistics(network.between(network.layers[1:]), batches, Wanted(cores=False), progress)
    statistics.layers = [pixels.covariance, *later.layers]
    jacobians = Jacobians(network, statistics, batches, None, 0, progress)
    principals = [pixels.principal] + [
        Principal.of(node, covariance, Floor())
        for node, covariance in zip(network.nodes[1:-1], later.layers[:-1], strict=True)
    ]
    last = Principal.of(network.nodes[-1], later.layers[-1], None).rotated()
    lib = [last]
    for k in reversed(range(len(principals))):
        lib.insert(0, interacting(principals[k], jacobians.to_next(k, lib[0].transform), Floor()))
    return {"lib": lib, "pca": [*(principal.rotated() for principal in principals), last]}


def direction(
    network: Network, layer: LayerBasis, images: Images, progress: Progress = silent
) -> dict[str, Any]:
    """The feature of a layer that carries the attribute best, and the second best: C4 to C6 in numbers."""
    layer = replace(layer, transform=layer.transform[:PROBED], inverse=layer.inverse[:, :PROBED])
    source = of(network, layer)
    chosen_on = torch.isin(images.train[1][:CHOOSING], torch.tensor(ANIMALS))
    fitted = separation(auroc(collect(source, images.train[0][:CHOOSING]), chosen_on))
    ranked = [index for index, _ in best(fitted, RANKED)]
    feature, second = ranked[:2]
    values, animal = collect(source, images.test[0]), torch.isin(images.test[1], torch.tensor(ANIMALS))
    area, explained = separation(auroc(values, animal)), explained_variance(values, animal.long())
    changed = intervene(
        network, layer, images.test, feature, groups=GROUPS, mean_data=images.train, progress=progress
    )
    return {
        "layer": layer.name,
        "feature": feature,
        "auroc": area[feature].item(),
        "second_feature": second,
        "second_auroc": area[second].item(),
        "best_features": ranked,
        "best_auroc": area[ranked].tolist(),
        "explained": explained[feature].item(),
        "accuracy_before": changed.accuracy[0],
        "accuracy_after": changed.accuracy[1],
    }


@torch.no_grad()
def whole_model(network: Network, images: Images) -> dict[str, float]:
    """The model's own classifier of the attribute: AUROC of log P(animal), and accuracies."""
    inputs, labels = images.test
    logits = network(inputs)
    animal = torch.tensor(GROUPS, dtype=torch.bool)
    score = logits[:, animal].logsumexp(1) - logits[:, ~animal].logsumexp(1)
    truth = animal[labels]
    return {
        "auroc": auroc(score[:, None], truth).item(),
        "attribute_accuracy": (animal[logits.argmax(1)] == truth).double().mean().item(),
        "accuracy": (logits.argmax(1) == labels).double().mean().item(),
    }


def animal_direction(
    data: Images | str | Path, checkpoints: Sequence[str | Path], progress: Progress = silent
) -> dict[str, Any]:
    """C4–C6 for several models: {"models": [{"checkpoint", "whole", "bases": {basis: [layer, …]}}, …]}."""
    images = data if isinstance(data, Images) else Images.load(data)
    pixels = Pixels.of(images, progress)
    models = []
    for done, path in enumerate(checkpoints):
        progress("models", done, len(checkpoints))
        network = mlp.load(path).double()
        found = {
            basis: [direction(network, layer, images, progress) for layer in layers]
            for basis, layers in bases(network, images, pixels, progress).items()
        }
        whole = whole_model(network, images)
        models.append({"checkpoint": Path(path).name, "whole": whole, "bases": found})
    return {"models": models}


def table(result: dict[str, Any]) -> str:
    """The result as Markdown, one line per model, basis and layer."""
    lines = [
        "| model | basis | layer | AUROC | second | model's AUROC | explained | accuracy before → after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in result["models"]:
        for basis, layers in model["bases"].items():
            for row in layers:
                lines.append(
                    f"| {model['checkpoint'].removesuffix('.safetensors')} | {basis} | {row['layer']} "
                    f"| {row['auroc']:.3f} (f{row['feature']}) "
                    f"| {row['second_auroc']:.3f} (f{row['second_feature']}) "
                    f"| {model['whole']['auroc']:.3f} | {row['explained']:.0%} "
                    f"| {row['accuracy_before']:.2%} → {row['accuracy_after']:.2%} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Claims C4 to C6 on CIFAR-10 MLPs.")
    parser.add_argument("data", help="CIFAR-10 as an npz file")
    parser.add_argument("checkpoints", nargs="+", help="safetensors checkpoints of ReLU MLPs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    with progress_bar() as advance:
        result = animal_direction(given.data, given.checkpoints, progress=advance)
    print(json.dumps(result, indent=2) if given.json else table(result))


if __name__ == "__main__":
    main()

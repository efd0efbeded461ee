"""Claims C4 to C6 of trained CIFAR-10 MLPs, model by model, in LIB and PCA.

    python benchmarks/animal_direction.py DATA.npz CHECKPOINT.safetensors … [--json]

`interbasis reproduce cifar10` has the same tables over its own runs.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from interbasis.base.progress import Progress, progress_bar, silent
from interbasis.base.records import Basis, Record
from interbasis.data import cifar10
from interbasis.data.samples import Split
from interbasis.models import mlp
from interbasis.run.build import build
from interbasis_studies.paper.plan import CENTRAL_BASES
from interbasis_studies.paper.tasks.cifar10.directions import (
    Direction,
    Images,
    WholeModel,
    direction,
    whole_model,
)

SPLITS: tuple[Split, Split] = ("train", "test")


class ModelDirections(Record):
    """The directions of one model in several bases."""

    checkpoint: str
    whole: WholeModel
    bases: dict[Basis, tuple[Direction, ...]]


class AnimalDirections(Record):
    """The directions of several models."""

    models: tuple[ModelDirections, ...]


def load_images(path: str | Path) -> Images:
    """All images in memory, from any file or folder that `interbasis.data.cifar10` reads."""
    train, test = (cifar10.load(path, split).all() for split in SPLITS)
    return Images(train, test)


def animal_direction(
    data: Images | str | Path, checkpoints: Sequence[str | Path], progress: Progress = silent
) -> AnimalDirections:
    """C4–C6 for several models in LIB and PCA."""
    images = data if isinstance(data, Images) else load_images(data)
    models = []
    for done, path in enumerate(checkpoints):
        progress("models", done, len(checkpoints))
        network = mlp.load(path).double()
        directions: dict[Basis, tuple[Direction, ...]] = {}
        for basis in CENTRAL_BASES:
            graph = build(
                network, images.train, basis=basis, edge_method=None, exact=True, progress=progress
            ).graph
            directions[basis] = tuple(direction(network, layer, images, progress) for layer in graph.layers)
        whole = whole_model(network, images)
        models.append(ModelDirections(checkpoint=Path(path).name, whole=whole, bases=directions))
    return AnimalDirections(models=tuple(models))


def table(result: AnimalDirections) -> str:
    """The result as Markdown, one line per model, basis and layer."""
    lines = [
        "| model | basis | layer | AUROC | second | model's AUROC | explained | accuracy before → after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in result.models:
        for basis, layers in model.bases.items():
            for row in layers:
                lines.append(
                    f"| {model.checkpoint.removesuffix('.safetensors')} | {basis} | {row.layer} "
                    f"| {row.auroc:.3f} (f{row.feature}) | {row.second_auroc:.3f} (f{row.second_feature}) "
                    f"| {model.whole.auroc:.3f} | {row.explained:.0%} "
                    f"| {row.accuracy_before:.2%} → {row.accuracy_after:.2%} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Claims C4 to C6 on CIFAR-10 MLPs.")
    parser.add_argument("data", help="CIFAR-10 as an npz file")
    parser.add_argument("checkpoints", nargs="+", help="safetensors checkpoints of ReLU MLPs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    with progress_bar() as advance:
        result = animal_direction(arguments.data, arguments.checkpoints, progress=advance)
    print(result.model_dump_json(indent=2) if arguments.json else table(result))


if __name__ == "__main__":
    main()

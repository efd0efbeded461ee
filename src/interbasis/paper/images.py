"""Section 3.2, CIFAR-10: the direction that carries animal against vehicle, in the layers of a run."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from interbasis.paper.cifar10 import Images, direction, whole_model
from interbasis.run.opened import OpenRun
from interbasis.run.specs import open_data
from interbasis.runtime.progress import Progress, silent


@lru_cache(maxsize=1)
def read_images(spec: str) -> Images:
    """All images in memory, once for all pieces."""
    train, test = (open_data(spec, split).all() for split in ("train", "test"))
    return Images(train, test)


def measuring(spec: str, progress: Progress = silent) -> Callable[[OpenRun, dict[str, Any]], dict[str, Any]]:
    """What is measured of a run on these images: per layer AUROC, variance explained and intervention."""

    def measure(run: OpenRun, result: dict[str, Any]) -> dict[str, Any]:
        images, network = read_images(spec), run.network.double()
        return {
            "whole": whole_model(network, images),
            "directions": [direction(network, layer, images, progress) for layer in run.graph.layers],
        }

    return measure

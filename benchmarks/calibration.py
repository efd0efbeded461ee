"""Reported errors beside true ones, over seeds: builds with --error 5% against exact values on the same data.

python benchmarks/calibration.py STORIES OUT.json [SEEDS]    STORIES: folder of the TinyStories GPT; resumes

Per seed: the error that the build reports, section by section and layer by layer, and the true one. Of edges,
those between the features of that very build are computed exactly over all samples; of Λ, an exact build has
them, rank by rank. The true error of a section (layer) is the median of the relative deviations of the edges
(features) that carry 90 %, divided by 0.674, the median of |x| for a normal x: one draw each.
"""

import json
import sys
import time
from pathlib import Path

import torch

from interbasis.data.batches import Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.named_models import open_model
from interbasis.graph.precision import edge_error, eigenvalue_error
from interbasis.lib.edges import edges
from interbasis.network.network import Network
from interbasis.run.build import build
from interbasis_studies.bench.shapes import Shape

ERROR = 0.05


def stories(folder: str) -> tuple[Network, Data]:
    model = open_model(f"hf:{folder},blocks=2")
    return model.network, model.open_data(f"tokens:{folder}/tokens_train.uint16,context=64,samples=240")


def llama(folder: str) -> tuple[Network, Data]:
    shape = Shape(64, 176, 4, 2, blocks=2, positions=48, samples=240)
    return shape.network(), shape.data()


def convolutional(folder: str) -> tuple[Network, Data]:
    model = open_model("cifar10-conv")
    return model.network, model.open_data("cifar10,samples=400")


MODELS = {
    "TinyStories GPT, block 2": stories,
    "Llama, 2 blocks": llama,
    "CIFAR-10 convolutional": convolutional,
}


def true_errors(graph: InteractionGraph, exact: InteractionGraph, network: Network, data: Data) -> dict:
    degrees = 1  # one draw
    layers, sections = {}, {}
    for layer, other in zip(graph.layers, exact.layers, strict=True):
        if layer.eigenvalue_errors is None or layer.features != other.features:
            continue
        deviations = (layer.eigenvalues - other.eigenvalues).abs()
        drawn = type(layer)(**{**vars(layer), "eigenvalue_errors": deviations})
        layers[layer.name] = eigenvalue_error(drawn, degrees)
    exactly = edges(network, graph.layers, data, dtype=graph.config.torch_dtype)
    for k, (name, found, true) in enumerate(zip(graph.section_names, graph.edges, exactly, strict=True)):
        deviations = (found.double() - true.double()).abs()
        sections[name] = edge_error(found, deviations, *graph.layers[k : k + 2]) / 0.67448975
    return {"layers": layers, "sections": sections}


def main(folder: str, file: Path, seeds: int) -> None:
    done = json.loads(file.read_text()) if file.exists() else {}
    for name, open_case in MODELS.items():
        network, data = open_case(folder)
        exact = None
        for seed in range(seeds):
            if str(seed) in done.setdefault(name, {}):
                continue
            start = time.process_time()
            if exact is None:
                exact = build(network, data, exact=True, edge_method=None, progress=False).graph
            graph = build(network, data, error=ERROR, seed=seed, progress=False).graph
            precision = graph.provenance.precision
            settings = graph.config.model_dump(mode="json")
            done[name][str(seed)] = {
                "reported": {"layers": precision.layers, "sections": precision.sections},
                "true": true_errors(graph, exact, network, data),
                "scheme": {key: settings[key] for key in settings if key.startswith(("jacobian_", "edge_"))},
            }
            file.write_text(json.dumps(done) + "\n")
            print(
                f"{name}, seed {seed}: {precision.reached:.4f}, {time.process_time() - start:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 40)

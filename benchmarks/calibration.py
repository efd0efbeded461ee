"""Reported errors beside true ones, over seeds: builds with --error 5% against exact values on the same data.

    python benchmarks/calibration.py measure OUT STORIES CIFAR [SEEDS [MODEL]]
    python benchmarks/calibration.py table OUT

STORIES is the folder of the TinyStories GPT, CIFAR the file or folder of CIFAR-10; the same command resumes.
Per seed a file of OUT holds the errors that the build reports, section by section and layer by layer, and its
deviations: of edges from exact ones over all samples between the features of that very build, of Λ from those
of an exact build, rank by rank. The standard error of a Λ or an edge is the root mean square of its deviation
over the seeds; the true error of a layer or section is the median of it over those that carry 90 %, as the
reported one is. Deviations of one build go together, so a single seed does not tell.
"""

import json
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, safe_open, save_file
from torch import Tensor

from interbasis.data.batches import Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.named_models import open_model
from interbasis.graph.precision import CARRIED
from interbasis.lib.edges import edges
from interbasis.network.network import Network
from interbasis.run.build import build
from interbasis_studies.bench.shapes import Shape

ERROR = 0.05


def stories(folder: str, cifar: str) -> tuple[Network, Data]:
    model = open_model(f"hf:{folder},blocks=2")
    return model.network, model.open_data(f"tokens:{folder}/tokens_train.uint16,context=64,samples=240")


def many_stories(folder: str, cifar: str) -> tuple[Network, Data]:
    """So many that statistics are drawn, too."""
    model = open_model(f"hf:{folder},blocks=2")
    return model.network, model.open_data(f"tokens:{folder}/tokens_train.uint16,context=64,samples=2400")


def llama(folder: str, cifar: str) -> tuple[Network, Data]:
    shape = Shape(64, 176, 4, 2, blocks=2, positions=48, samples=240)
    return shape.network(), shape.data()


def convolutional(folder: str, cifar: str) -> tuple[Network, Data]:
    model = open_model("cifar10-conv")
    return model.network, model.open_data(f"cifar10:{cifar},samples=400")


MODELS = {
    "TinyStories GPT, block 2": stories,
    "TinyStories GPT, block 2, 2,400 windows": many_stories,
    "Llama, 2 blocks": llama,
    "CIFAR-10 convolutional": convolutional,
}


def values_and_deviations(
    graph: InteractionGraph, exact: InteractionGraph, network: Network, data: Data
) -> dict[str, Tensor]:
    """Λ by layer and Ê by section, without the constant, and how far they are off."""
    result = {}
    for layer, other in zip(graph.layers, exact.layers, strict=True):
        if layer.eigenvalue_errors is None or layer.features != other.features:
            continue
        first = layer.first_feature
        result[f"Λ {layer.name}"] = layer.eigenvalues[first:]
        result[f"Λ {layer.name} deviation"] = (layer.eigenvalues - other.eigenvalues)[first:]
    exactly = edges(network, graph.layers, data, dtype=graph.config.torch_dtype)
    for k, (name, found, true) in enumerate(zip(graph.section_names, graph.edges, exactly, strict=True)):
        source, target = graph.layers[k : k + 2]
        inner = slice(target.first_feature, None), slice(source.first_feature, None)
        result[f"Ê {name}"] = found[inner]
        result[f"Ê {name} deviation"] = (found - true.to(found))[inner]
    return {name: tensor.float().contiguous() for name, tensor in result.items()}


def measure(out: Path, stories: str, cifar: str, seeds: str = "40", model: str = "") -> None:
    for name, open_case in MODELS.items():
        if model not in ("", name):
            continue
        network, data = open_case(stories, cifar)
        exact = None
        for seed in range(int(seeds)):
            file = out / f"{name}, seed {seed}.safetensors"
            if file.exists():
                continue
            start = time.process_time()
            if exact is None:
                exact = build(network, data, exact=True, edge_method=None, progress=False).graph
            graph = build(network, data, error=ERROR, seed=seed, progress=False).graph
            precision, settings = graph.provenance.precision, graph.config.model_dump(mode="json")
            reported = {f"Λ {name}": error for name, error in precision.layers.items()}
            reported |= {f"Ê {name}": error for name, error in precision.sections.items()}
            scheme = {
                key: settings[key]
                for key in settings
                if key.startswith(("statistics_", "jacobian_", "edge_"))
            }
            save_file(
                values_and_deviations(graph, exact, network, data),
                file,
                {"reported": json.dumps(reported), "scheme": json.dumps(scheme)},
            )
            print(
                f"{name}, seed {seed}: {precision.reached:.4f}, {time.process_time() - start:.0f} s",
                flush=True,
            )


def table(out: Path) -> None:
    for name in MODELS:
        files = sorted(out.glob(f"{name}, seed *.safetensors"))
        if not files:
            continue
        tensors, reported, schemes = [load_file(file) for file in files], [], set()
        for file in files:
            with safe_open(file, "pt") as opened:
                metadata = opened.metadata()
            reported.append(json.loads(metadata["reported"]))
            schemes.add(metadata["scheme"])
        ends = sorted(max(errors.values()) for errors in reported)
        print(f"{name}: {len(files)} seeds, reported {ends[0]:.4f} to {ends[-1]:.4f}")
        print(*sorted(schemes), sep="\n")
        worst = torch.zeros(len(files), dtype=torch.float64)
        for quantity in reported[0]:
            if f"{quantity} deviation" not in tensors[0]:
                continue
            shapes = [part[quantity].shape for part in tensors]
            common = max(set(shapes), key=shapes.count)  # features below the floor come and go
            kept = [k for k, shape in enumerate(shapes) if shape == common]
            values = torch.stack([tensors[k][quantity].double().flatten() for k in kept])
            off = torch.stack([tensors[k][f"{quantity} deviation"].double().flatten() for k in kept])
            error = torch.tensor([reported[k][quantity] for k in kept]).square().mean().sqrt()
            if not error:
                continue
            true, by_seed = true_error(values, off, squared=quantity.startswith("Ê"))
            worst[kept] = torch.maximum(worst[kept], by_seed)
            print(f"| {quantity} | {error:.2%} | {true:.2%} | {error / true:.2f} | {len(kept)} |")
        print(f"true error of the worst part: {(worst <= 1.1 * ERROR).double().mean():.0%} of seeds at most")
        print(f"{1.1 * ERROR:.1%}; from {worst.min():.2%} to {worst.max():.2%}")


def true_error(values: Tensor, deviations: Tensor, squared: bool) -> tuple[float, Tensor]:
    """Median standard error of what carries 90 %, and the same scaled by how far each seed was off.

    A seed's own error is that of its scheme, which is the standard error times how its reported sampling
    differs; it is estimated from the squares of its deviations, relative to those of all seeds.
    """
    mean = values.abs().mean(0)
    weights = mean.square() if squared else mean
    order = weights.sort(descending=True)
    leading = order.indices[order.values.cumsum(0) - order.values < CARRIED * order.values.sum()]
    relative = deviations[:, leading] / mean[leading]
    standard = relative.square().mean(0).sqrt()
    true = standard.median()
    by_seed = (relative / standard).square().mean(1).sqrt() * true
    return true.item(), by_seed


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, folder, *others = sys.argv[1:]
    if command == "table":
        table(Path(folder))
    else:
        Path(folder).mkdir(parents=True, exist_ok=True)
        measure(Path(folder), *others)

"""The residual network of CIFAR-10 from end to end: bases of all layers, edges, edges required per section.

    python benchmarks/cifar10_conv.py --data cifar10:PATH --out FOLDER
        [--images 50000] [--edges 5000] [--test 1000] [--rows lib pca]

Rows are LIB, PCA, the channels themselves and the random control on the trained network, and LIB on two
networks that learnt nothing (weights shuffled, weights drawn again), which are measured by their own
answers. FOLDER has a run for every row, which `interbasis view` shows, and `row.json`; the same command
resumes. Times are processor time of one thread, beside that of a plain forward pass over as many images
in the same process; memory is the peak of the process.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import Field

import interbasis
from common import peak_gigabytes
from interbasis.analysis.ablation.controls import reinitialised, shuffled, with_predicted_labels
from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.search import Search
from interbasis.base.files import write_text_atomically
from interbasis.base.progress import silent
from interbasis.base.records import Basis, Record
from interbasis.data.samples import Samples
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.named_models import first_samples, open_data, open_model
from interbasis.graph.store import load
from interbasis.lib.edges import edges as measure_edges
from interbasis.network.network import Network

ROWS: dict[str, tuple[Basis, Callable[[Network], Network] | None]] = {
    "lib": ("lib", None),
    "pca": ("pca", None),
    "neuron": ("neuron", None),
    "random": ("random", None),
    "lib-shuffled": ("lib", shuffled),
    "lib-reinitialised": ("lib", reinitialised),
}
"""A basis each, and what is done to the network first."""
FORWARD_IMAGES = 2048
"""Images that a forward pass is timed on."""


class Count(Record):
    """Edges required of one section, of those possible."""

    count: int
    possible: int


class Row(Record):
    """What is known of a row so far."""

    seconds: dict[str, float] = Field(default_factory=dict)
    """Processor time by stage: basis, edges, ablation."""
    forward: float = 0.0
    """Processor time of a forward pass over all images of the basis, in the process that fitted it."""
    peak_gigabytes: float = 0.0
    baseline: float = 0.0
    """Accuracy on the test images; of a network that learnt nothing, on its own answers."""
    counts: dict[str, Count] = Field(default_factory=dict)
    """By the name of the section's source."""


class Folder:
    """A row on disk."""

    def __init__(self, path: Path):
        self.path, self.file = path, path / "row.json"
        self.row = Row.model_validate_json(self.file.read_text()) if self.file.is_file() else Row()

    def update(self, **changes: object) -> None:
        peak = max(self.row.peak_gigabytes, peak_gigabytes())
        self.row = self.row.model_copy(update=changes | {"peak_gigabytes": peak})
        self.path.mkdir(parents=True, exist_ok=True)
        write_text_atomically(self.file, self.row.model_dump_json(indent=1) + "\n")

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Processor time is added to what earlier processes spent, also where this one is interrupted."""
        start = time.process_time()
        try:
            yield
        finally:
            spent = self.row.seconds.get(stage, 0.0) + time.process_time() - start
            self.update(seconds=self.row.seconds | {stage: spent})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--edges", type=int, default=5_000)
    parser.add_argument("--test", type=int, default=1_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = first_samples(open_data(arguments.data), arguments.images)
    edge_data = first_samples(open_data(arguments.data), arguments.edges)
    test = first_samples(open_data(arguments.data, "test"), arguments.test)
    for name in arguments.rows:
        measure(name, Folder(arguments.out / name), data, edge_data, test)
        print(f"{name} is finished", flush=True)
    print_tables({name: Folder(arguments.out / name).row for name in arguments.rows})


def measure(name: str, folder: Folder, data: Samples, edge_data: Samples, test: Samples) -> None:
    """All stages of a row that are not finished."""
    basis, scramble = ROWS[name]
    network = open_model("cifar10-conv").network
    if scramble is not None:
        network = scramble(network)
    graph = graph_of(network, folder, basis, data, edge_data)
    if scramble is not None:
        test = with_predicted_labels(network.to(graph.config.torch_dtype), test)
    with folder.timed("ablation"):
        search = Search(Evaluation(network, graph, test, "accuracy"))
        folder.update(baseline=search.evaluation.baseline.value)
        for k, source in enumerate(graph.section_names):
            if source not in folder.row.counts:
                found = search.fewest_edges(k, silent, stable=False)
                count = Count(count=found.count, possible=found.possible)
                folder.update(counts=folder.row.counts | {source: count})


def graph_of(
    network: Network, folder: Folder, basis: Basis, data: Samples, edge_data: Samples
) -> InteractionGraph:
    """The graph of a row: the bases first, then the edges."""
    bases, whole = folder.path / "bases", folder.path / "run"
    if (whole / "config.json").is_file():
        return load(whole)
    if (bases / "config.json").is_file():
        graph = load(bases)
    else:
        folder.update(forward=forward_seconds(network, data))
        with folder.timed("basis"):
            graph = interbasis.build(
                network, data, basis=basis, edge_method=None, progress=False, resume=bases
            ).graph
        graph.save(bases)
    with folder.timed("edges"):
        dtype = graph.config.torch_dtype
        graph = replace(graph, edges=measure_edges(network, graph.layers, edge_data, dtype=dtype))
    graph.save(whole)
    return graph


@torch.no_grad()
def forward_seconds(network: Network, data: Samples) -> float:
    """Processor time of a plain pass over all images, from some of them."""
    images, _ = data.read(0, min(FORWARD_IMAGES, len(data)))
    network(images[:256])
    start = time.process_time()
    for some in images.split(256):
        network(some)
    return (time.process_time() - start) * len(data) / len(images)


def print_tables(rows: dict[str, Row]) -> None:
    print("\n| row | basis, s | in forward passes | edges, s | ablation, s | peak memory, GB |")
    print("|---|---|---|---|---|---|")
    for name, row in rows.items():
        times = [row.seconds.get(stage, 0.0) for stage in ("basis", "edges", "ablation")]
        passes = times[0] / row.forward if row.forward else float("nan")
        print(
            f"| {name} | {times[0]:.1f} | {passes:.1f} | {times[1]:.1f} | {times[2]:.1f} | "
            f"{row.peak_gigabytes:.2f} |"
        )
    print("\n| section from | possible | " + " | ".join(rows) + " |")
    print("|---" * (len(rows) + 2) + "|")
    sources = max((row.counts for row in rows.values()), key=len)
    for source, count in sources.items():
        cells = [f"{row.counts[source].count:,}" if source in row.counts else "–" for row in rows.values()]
        print(f"| {source} | {count.possible:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

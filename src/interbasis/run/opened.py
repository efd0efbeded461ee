"""A run's folder with the model and data it was made from."""

from dataclasses import dataclass
from pathlib import Path

from interbasis.data.samples import Samples, Split
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load
from interbasis.network.network import Network
from interbasis.run.specs import Model, first_of, open_model, split_options
from interbasis.runtime.errors import InterbasisError


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A graph, and the network that it was built for."""

    folder: Path
    graph: InteractionGraph
    network: Network
    model: Model

    def data(self, spec: str | None = None, split: Split = "test") -> Samples:
        """The data named, or a split of those that the graph was built on.

        Where it was built on the first N samples, those are the first N of the split, or all if it has fewer.
        """
        request = self.graph.provenance.request
        built_on = request and request.data
        if spec or not built_on:
            return self.model.open_data(spec, split)
        named, options = split_options(built_on)
        samples = int(options.pop("samples", 0))
        whole = self.model.open_data(",".join([named, *(f"{k}={v}" for k, v in options.items())]), split)
        return first_of(whole, min(samples, len(whole))) if samples else whole


def open_run(folder: str | Path) -> OpenRun:
    """A run with its model, which must still be the one that the graph was built for."""
    graph = load(folder)
    if not graph.provenance.model:
        raise InterbasisError(
            f"{folder} does not say which model it was built for; runs that the command line works with are "
            "made by 'interbasis build', others are evaluated from Python"
        )
    model = open_model(graph.provenance.model)
    network = model.network.between([layer.name for layer in graph.layers])
    if network.fingerprint() != graph.provenance.model_fingerprint:
        raise InterbasisError(
            f"{graph.provenance.model} is no longer the model that {folder} was built for: its weights have "
            "changed; build the run again"
        )
    return OpenRun(Path(folder), graph, network, model)

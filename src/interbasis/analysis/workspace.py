"""A graph with the network and the data it was made from: what every stage after the build works on."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from interbasis.analysis.result import Result
from interbasis.analysis.stored_results import check_same_graph, load_result, load_tensors, save_result
from interbasis.base.devices import has_float64, require_dtype, torch_device
from interbasis.base.errors import InterbasisError
from interbasis.base.memory import parse_bytes, return_freed_memory
from interbasis.base.progress import Progress
from interbasis.base.records import Record
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoints, environment
from interbasis.compute.locks import working
from interbasis.compute.team import ALONE, Team, team_of_torchrun
from interbasis.data.batches import Data
from interbasis.data.samples import Split
from interbasis.graph.companions import companion
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.named_models import Model, at_one_commit, first_of, open_model, split_options
from interbasis.graph.same_data import require_same_data
from interbasis.graph.store import graph_digest, load, load_stored
from interbasis.graph.trust import require_trust_of_graph
from interbasis.network.hooks import own_name
from interbasis.network.network import Network

if TYPE_CHECKING:
    from interbasis.analysis.stages.ablate import AblationResult
    from interbasis.analysis.stages.controls import ControlsResult
    from interbasis.analysis.stages.curves import CurvesResult
    from interbasis.analysis.stages.features import FeaturesResult
    from interbasis.analysis.stages.modules import ModulesResult
    from interbasis.analysis.stages.steer import SteerResult
    from interbasis.analysis.stages.trace import TraceResult

R = TypeVar("R", bound=Result)


@dataclass(frozen=True, eq=False, kw_only=True)
class RunGraph:
    """A graph, saved or not. Results are stored in ``folder``; where it is None, they are kept in memory."""

    graph: InteractionGraph
    folder: Path | None = None
    progress: Progress | bool | None = None
    team: Team = ALONE
    """The processes that share the work; the first one stores results."""

    @property
    def digest(self) -> str | None:
        """SHA-256 of the graph's tensors, which results in the run's folder name; None without a folder."""
        if self.folder is None:
            return None
        return companion(self.graph).digest or graph_digest(self.folder)

    @contextmanager
    def working(self, stage: str, *, alone: bool = True) -> Iterator[None]:
        """Hold the run while a stage works on it.

        Raises:
            InterbasisError: Another command works on the run, or has built it again.
        """
        with working(self.folder, stage, self.team, alone=alone):
            if self.folder is not None and self.digest is not None:
                check_same_graph(self.folder, self.digest)
            yield

    def checkpoints(self, stage: str, request: Record, **decisive: Any) -> Checkpoints:
        """Unfinished work of a stage, bound to the request, to this graph and to what else is decisive."""
        if self.folder is None:
            return NO_CHECKPOINTS
        settings = request.model_dump(mode="json") | {"graph": self.digest}
        checkpoints = Checkpoints(self.folder, stage, settings | decisive | environment())
        if self.team.size > 1:
            if self.team.is_first:
                checkpoints.begin()
            self.team.wait_for_all()
        return checkpoints

    def stored(self, kind: type[R]) -> R | None:
        """A result that a stage has stored in the run's folder."""
        if self.folder is not None:
            return load_result(self.folder, kind, self.graph)
        kept = companion(self.graph).results.get(kind.file)
        return kept if isinstance(kept, kind) else None

    def stored_tensors(self, kind: type[Result]) -> dict[str, torch.Tensor]:
        """The tensors that belong to a stored result."""
        if self.folder is not None:
            return load_tensors(self.folder, kind, self.graph)
        return companion(self.graph).tensors.get(kind.file, {})

    def store(self, result: Result, tensors: dict[str, torch.Tensor] | None = None) -> None:
        """Store a result in the run's folder; without one, keep it beside the graph in memory."""
        if self.folder is not None:
            if self.team.is_first:
                save_result(self.folder, result, tensors, self.digest)
            return
        kept = companion(self.graph)
        kept.results[result.stem()] = result
        kept.tensors[result.stem()] = dict(tensors or {})

    def finish(self, checkpoints: Checkpoints, *results: str) -> None:
        """Remove the unfinished work of a stage whose results are stored; all processes end together."""
        if self.team.is_first:
            checkpoints.finish(*results)
        self.team.wait_for_all()

    def modules(self, **settings: Any) -> "ModulesResult":
        """Group features into modules; the fields of `ModulesRequest`."""
        from interbasis.analysis.stages import modules

        return modules.run(self, modules.ModulesRequest.of(**settings))


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenedRun(RunGraph):
    """A graph, saved or not, with its network and data."""

    network: Network
    train_data: Data | None = None
    """Data given in Python; None where they follow from the model and the build."""
    test_data: Data | None = None
    """Data to evaluate on; default: ``train_data``."""
    model: Model | None = None
    """The model that was opened by name; None where the network was given."""
    memory: int | None = None
    """Bytes that the process may hold while a stage runs that can be limited; None is no limit."""

    def __post_init__(self) -> None:
        if self.network.fingerprint() != self.graph.provenance.model_fingerprint:
            name = self.graph.provenance.model or "the network"
            raise InterbasisError(
                f"{name} is not the model that {self.folder or 'this graph'} was built for: the weights "
                "differ; open the checkpoint of the build, or build again"
            )

    def on(self, device: str | None) -> "OpenedRun":
        """The same run with its network on a device: cpu, cuda, cuda:1 or mps; None leaves it where it is.

        Raises:
            InterbasisError: This machine has no such device, or the run was built in float64, which it lacks.
        """
        if device is None:
            return self
        where, dtype = torch_device(device), self.graph.config.torch_dtype
        require_dtype(where, dtype)
        network = self.network.to(where) if has_float64(where) else self.network.to(where, dtype)
        return replace(self, network=network)

    def data(self, spec: str | None = None, split: Split = "test") -> Data:
        """The data named, those given in Python, or a split of those that the graph was built on.

        Where it was built on the first N samples, those are the first N of the split, or all if it has fewer.
        """
        if spec is None and self.train_data is not None:
            return self.train_data if split == "train" or self.test_data is None else self.test_data
        if self.model is None:
            raise InterbasisError(
                "this graph was built in Python and does not name its data; give them when it is opened, "
                "interbasis.open_run(folder, network, data)"
            )
        model, request = self.model, self.graph.provenance.request
        if spec is None:
            require_trust_of_graph(self.graph, self.folder, ["data"])
        if spec is not None or not request or not request.data:
            whole, samples = model.open_data(spec, split), 0
        else:
            name, options = split_options(request.data)
            samples = int(options.pop("samples", 0))
            named = ",".join([name, *(f"{k}={v}" for k, v in options.items())])
            whole = model.open_data(named, split, samples or None)
        whole = at_one_commit(whole, self.team, lambda spec: model.open_data(spec, split, samples or None))
        data = first_of(whole, min(samples, len(whole))) if samples else whole
        if spec is None and split == "train":
            require_same_data(data, self.graph.provenance, self.folder)
        return data

    def section_indices(self, names: Iterable[str] | None) -> list[int]:
        """Sections by the names of their source layers; None is all of them."""
        known = self.graph.section_names
        chosen = {
            own_name(name, self.graph.layer_names): name for name in (known if names is None else names)
        }
        for own, name in chosen.items():
            if own not in known:
                raise InterbasisError(
                    f"there is no section from {name!r}; expected one of {', '.join(known)}"
                )
        return [k for k, name in enumerate(known) if name in chosen]

    def ablate(self, **settings: Any) -> "AblationResult":
        """Find the fewest edges and nodes that keep the metric; the fields of `AblateRequest`."""
        from interbasis.analysis.stages import ablate

        return ablate.run(self, ablate.AblateRequest.of(**settings))

    def curves(self, **settings: Any) -> "CurvesResult":
        """Measure the metric at fractions of the edges kept; the fields of `CurvesRequest`."""
        from interbasis.analysis.stages import curves

        return curves.run(self, curves.CurvesRequest.of(**settings))

    def controls(self, **settings: Any) -> "ControlsResult":
        """Compare with other bases and scrambled networks; the fields of `ControlsRequest`."""
        from interbasis.analysis.stages import controls

        return controls.run(self, controls.ControlsRequest.of(**settings))

    def features(self, **settings: Any) -> "FeaturesResult":
        """Find out what features respond to and do; the fields of `FeaturesRequest`."""
        from interbasis.analysis.stages import features

        return features.run(self, features.FeaturesRequest.of(**settings))

    def trace(self, prompt: str | None = None, **settings: Any) -> "TraceResult":
        """Trace one computation; the fields of `TraceRequest`."""
        from interbasis.analysis.stages import trace

        return trace.run(self, trace.TraceRequest.of(prompt=prompt, **settings))

    def steer(self, feature: str, by: float, prompt: str | None = None, **settings: Any) -> "SteerResult":
        """Change a feature and see what the model says; the fields of `SteerRequest`."""
        from interbasis.analysis.stages import steer

        return steer.run(self, steer.SteerRequest.of(feature=feature, by=by, prompt=prompt, **settings))


def open_run(
    run: str | Path | InteractionGraph,
    network: Network | None = None,
    data: Data | None = None,
    *,
    test_data: Data | None = None,
    model: str | None = None,
    progress: Progress | bool | None = None,
) -> OpenedRun:
    """Open a graph for the stages that follow the build: ablate, curves, controls, modules, features.

    Args:
        run: Folder of a run, or a graph that was not saved.
        network: The network that it was built for; default: the model that the run names.
        data: Inputs, or pairs of inputs and labels; default: the data that the run names.
        test_data: Data to evaluate on; default: ``data``, or the test split of what the run names.
        model: The model by name, where neither a network is given nor the run names one.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.

    Returns:
        The opened run; results of its stages are stored in the folder, if there is one.

    Raises:
        InterbasisError: The model cannot be found, its weights are not those of the build, or a run of
            somebody else names it (`interbasis.trust`).
    """
    folder = None if isinstance(run, InteractionGraph) else Path(run)
    graph = run if isinstance(run, InteractionGraph) else load(run)
    opened: Model | None = None
    if network is None:
        name = model or graph.provenance.model
        if not name:
            raise InterbasisError(
                f"{folder or 'this graph'} was built in Python and does not name its model; add --model, or "
                "open it with interbasis.open_run(folder, network, data)"
            )
        if not model:
            require_trust_of_graph(graph, folder, ["model"])
        opened = open_model(name)
        network = opened.network
    if [node.name for node in network.nodes] != graph.layer_names:
        network = network.between(graph.layer_names)
    team = team_of_torchrun()
    return OpenedRun(
        graph=graph,
        folder=folder,
        progress=progress if team.is_first else False,
        team=team,
        network=network,
        train_data=data,
        test_data=test_data,
        model=opened,
    )


def open_run_within(memory: str, folder: Path, model: str | None = None) -> OpenedRun:
    """Open a run whose process may hold so much memory, as 8GB: graph and large models stay in their files.

    Raises:
        InterbasisError: It is no amount of memory, or the run or its model cannot be opened.
    """
    limit = parse_bytes(memory)
    return_freed_memory()
    graph = load_stored(folder)
    name = model or graph.provenance.model
    if not name:
        raise InterbasisError(f"{folder} was built in Python and does not name its model; add --model")
    if not model:
        require_trust_of_graph(graph, folder, ["model"])
    opened = open_model(name, limit)
    run = open_run(graph, opened.network)
    return replace(run, folder=folder, model=opened, memory=limit)


def open_graph(graph: InteractionGraph) -> OpenedRun:
    """Open a graph with what it is kept with: the network and data of its build, the folder of its run.

    Raises:
        InterbasisError: The graph was loaded from a run that does not name its model.
    """
    kept = companion(graph)
    if graph.provenance.request is not None:  # a model by name, with its tokenizer and its own data
        return replace(open_run(kept.folder or graph), graph=graph)
    return replace(open_run(kept.folder or graph, kept.network, kept.data), graph=graph)

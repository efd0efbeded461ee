"""A graph with its network, its data and its results: every analysis works on one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from torch import Tensor

from interbasis.analysis import stored_results
from interbasis.analysis.ablation.records import ToleranceError
from interbasis.base.devices import has_float64, require_dtype, torch_device
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress
from interbasis.base.records import Record
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoints, environment
from interbasis.compute.locks import working
from interbasis.compute.team import ALONE, Team
from interbasis.data.batches import Data
from interbasis.data.samples import Split
from interbasis.dictionaries.graph import DictionaryGraph
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.named_sources import NamedSources, located
from interbasis.graph.store import graph_digest
from interbasis.graph.trust import require_same_data, require_trust
from interbasis.network.hooks import layer_name
from interbasis.network.network import Network

if TYPE_CHECKING:
    from interbasis.graph.named_models import Model

R = TypeVar("R", bound=stored_results.Result)
Rec = TypeVar("Rec", bound=Record)


@dataclass(eq=False, kw_only=True, repr=False)
class OpenedRun:
    """A graph of either kind, saved or not, with its model, its data and its results.

    The model and the data that a run names are opened when they are first used.
    """

    graph: InteractionGraph | DictionaryGraph
    folder: Path | None = None
    """Folder of the run, where results are stored; None keeps them in memory."""
    digest: str | None = None
    """SHA-256 of the graph's tensors as they lie in the folder, which results name."""
    given_network: Network | None = None
    """The network, where it was given; default: that of the model."""
    given_model: "Model | None" = None
    """The model, where it was opened by name already."""
    model_spec: str = ""
    """A model by name, in place of the one that the run names."""
    train_data: Data | None = None
    """Data given in Python; None where they follow from the model and the build."""
    test_data: Data | None = None
    """Data to evaluate on; default: ``train_data``."""
    memory: int | None = None
    """Bytes that the process may hold during analyses that can be limited; None is no limit."""
    progress: Progress | bool | None = None
    """Show progress: True, False, a function, or None: bars on a terminal, else lines."""
    team: Team = ALONE
    """The processes that share the work; the first one stores results."""
    built_here: bool = False
    """Whether this process built the graph, so that what it names is trusted."""
    results: dict[str, stored_results.Result] = field(default_factory=dict)
    """Results of a graph without a folder, by the file they would be stored as."""
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Tensors that go with these results."""

    def __repr__(self) -> str:
        place = "in memory" if self.folder is None else f"in {self.folder}"
        return f"{type(self).__name__}({self.graph!r}, {place})"

    def __post_init__(self) -> None:
        if self.given_network is not None or self.model_spec:
            _ = self.network  # a network that does not fit is refused at once

    @cached_property
    def model(self) -> "Model | None":
        """The model by name; None where the network was given.

        Raises:
            InterbasisError: The run names no model, or one that is not trusted.
        """
        from interbasis.graph.named_models import open_model

        if self.given_model is not None or self.given_network is not None:
            return self.given_model
        name = self.model_spec or self.graph.provenance.model
        if not name:
            raise InterbasisError(
                f"{self.folder or 'this graph'} was built in Python and does not name its model; add "
                "--model, or open it with interbasis.open_run(folder, network, data)"
            )
        if self.model_spec:
            return open_model(name, self.memory)
        folder = self.graph.provenance.naming_folder(self.folder)
        found = located(name, folder)
        self._require_trust("model")
        return open_model(found, self.memory, folder)

    @cached_property
    def network(self) -> Network:
        """The network that the graph was built for.

        Raises:
            InterbasisError: Its weights are not those of the build, or it cannot be opened.
        """
        network = self.given_network
        if network is None:
            assert self.model is not None
            network = self.model.network
        network = self.part(network)
        if network.fingerprint() != self.graph.provenance.model_fingerprint:
            name = self.model_spec or self.graph.provenance.model or "the network"
            raise InterbasisError(
                f"{name} is not the model that {self.folder or 'this graph'} was built for: the weights "
                "differ; open the checkpoint of the build, or build again"
            )
        provenance = self.graph.provenance
        return network.named(provenance.model_name, provenance.class_names, provenance.feature_names)

    def part(self, network: Network) -> Network:
        """Return the part of a model's network that the graph is of."""
        return network

    @property
    def tokenizer(self) -> str:
        """Folder of the tokenizer of the model, the data or the network given; empty without one."""
        folder = self.model.tokenizer if self.model is not None else ""
        folder = folder or str(getattr(self.train_data, "tokenizer", None) or "")
        return folder or (self.given_network.tokenizer if self.given_network is not None else "")

    def data(self, spec: str | None = None, split: Split = "test") -> Data:
        """Return the data named, those given in Python, or a split of those that the graph was built on.

        Where it was built on the first N samples, those are the first N of the split, or all if it has fewer.
        """
        from interbasis.graph.named_models import at_one_commit, first_samples
        from interbasis.graph.named_sources import join_options, split_options

        if spec is None and self.train_data is not None:
            return self.train_data if split == "train" or self.test_data is None else self.test_data
        model, request = self.model, self.graph.provenance.request
        if model is None:
            raise InterbasisError(
                "this graph was built in Python and does not name its data; give them when it is opened, "
                "interbasis.open_run(folder, network, data)"
            )
        stored = request.data if spec is None and request else None
        found = located(stored, self.graph.provenance.naming_folder(self.folder)) if stored else None
        if spec is None:
            self._require_trust("data")
        if stored is None or found is None:
            whole, samples = model.open_data(spec, split), 0
        else:
            name, options = split_options(found)
            samples = int(options.pop("samples", 0))
            whole = model.open_data(join_options(name, options), split, samples or None)
            if found != stored:  # results name the data as the run does
                given, named = split_options(stored)
                whole = replace(whole, spec=join_options(given, {k: named[k] for k in options}))
        whole = at_one_commit(whole, self.team, lambda spec: model.open_data(spec, split, samples or None))
        data = first_samples(whole, min(samples, len(whole))) if samples else whole
        if spec is None and split == "train":
            require_same_data(data, self.graph.provenance, self.folder)
        return data

    @contextmanager
    def working(self, stage: str, *, alone: bool = True) -> Iterator[None]:
        """Lock the run while a stage works on it.

        Raises:
            InterbasisError: Another command works on the run, or has built it again.
        """
        with working(self.folder, stage, self.team, alone=alone):
            if self.folder is not None and self.digest is not None:
                stored_results.check_same_graph(self.folder, self.digest)
            yield

    @contextmanager
    def unfinished(
        self, *kinds: type[stored_results.Result], request: Record, **decisive: object
    ) -> Iterator[Checkpoints]:
        """Unfinished work of the stage that makes results, bound to its request, the graph, decisive values.

        It is removed at the end of the block, when the results are stored; all processes end together.
        """
        checkpoints = NO_CHECKPOINTS
        if self.folder is not None:
            settings = request.model_dump(mode="json") | {"graph": self.digest or graph_digest(self.folder)}
            checkpoints = Checkpoints(self.folder, kinds[0].file, settings | decisive | environment())
        if self.team.size > 1:
            if self.team.is_first:
                checkpoints.begin()
            self.team.wait_for_all()
        try:
            yield checkpoints
        except ToleranceError:
            checkpoints.finish()  # nothing can be resumed
            raise
        if self.team.is_first:
            checkpoints.finish(*(kind.file for kind in kinds))
        self.team.wait_for_all()

    def stored(self, kind: type[R]) -> R | None:
        """Return a result of the graph that a stage has stored; None where there is none."""
        if self.folder is not None:
            graph = self.graph if isinstance(self.graph, InteractionGraph) else None
            return stored_results.load_result(self.folder, kind, graph, self.digest)
        result = self.results.get(kind.file)
        return result if isinstance(result, kind) else None

    def stored_tensors(self, kind: type[stored_results.Result]) -> dict[str, Tensor]:
        """Return the tensors that belong to a stored result."""
        if self.folder is not None:
            return stored_results.load_tensors(self.folder, kind, self.digest)
        return self.tensors.get(kind.file, {})

    def store(self, result: R, tensors: dict[str, Tensor] | None = None) -> R:
        """Store a result in the run's folder, or in memory where there is no folder, and return it."""
        if self.folder is None:
            self.results[result.stem()] = result
            self.tensors[result.stem()] = dict(tensors or {})
        elif self.team.is_first:
            stored_results.save_result(self.folder, result, tensors, self.digest)
        return result

    def store_in(self, folder: Path) -> Path:
        """Store the results in memory, and all later ones, in a folder that holds the graph now."""
        self.folder = folder
        for stem, result in self.results.items():
            self.store(result, self.tensors.get(stem))
        self.results, self.tensors = {}, {}
        return folder

    def saved_folder(self) -> Path:
        """Return the folder of the run.

        Raises:
            InterbasisError: It is in memory only.
        """
        if self.folder is None:
            raise InterbasisError("this requires a run on disk; call run.save(folder) first")
        return self.folder

    def _require_trust(self, kind: str) -> None:
        """Refuse to open a model or data that a run of somebody else names."""
        provenance = self.graph.provenance
        if self.built_here or not NamedSources.from_provenance(provenance, "").unsafe([kind]):
            return
        digest = self.digest or ("" if self.folder is None else graph_digest(self.folder))
        require_trust(self.folder, NamedSources.from_provenance(provenance, digest, self.folder), [kind])


@dataclass(eq=False, kw_only=True, repr=False)
class Workspace(OpenedRun):
    """An interaction graph, saved or not, with its network, its data and its results."""

    graph: InteractionGraph

    def part(self, network: Network) -> Network:
        """Return the part of a model's network between the layers of the graph."""
        names = self.graph.layer_names
        return network if network.layers == names else network.between(names)

    def on(self, device: str | None) -> Self:
        """Return the same run with its network on a device: cpu, cuda, cuda:1 or mps; None changes nothing.

        Raises:
            InterbasisError: This machine has no such device, or the run was built in float64, which it lacks.
        """
        if device is None:
            return self
        target, dtype = torch_device(device), self.graph.config.torch_dtype
        require_dtype(target, dtype)
        network = self.network.to(target) if has_float64(target) else self.network.to(target, dtype)
        return replace(self, given_network=network, given_model=self.model)

    def section_indices(self, names: Iterable[str] | None) -> list[int]:
        """Return the indices of sections by the names of their source layers; None is all of them."""
        known = self.graph.section_names
        chosen = {
            layer_name(name, self.graph.layer_names): name for name in (known if names is None else names)
        }
        for layer, name in chosen.items():
            if layer not in known:
                raise InterbasisError(
                    f"there is no section from {name!r}; expected one of {', '.join(known)}"
                )
        return [k for k, name in enumerate(known) if name in chosen]


def collect_records(
    team: Team, tasks: Sequence[str], compute: Callable[[str], Rec], kind: type[Rec]
) -> dict[str, Rec]:
    """Return compute(task) of every task, each done by whichever process of a team is free."""
    states = team.collect(tasks, lambda task: ({}, compute(task).model_dump(mode="json")))
    return {task: kind.model_validate(values) for task, (_, values) in states.items()}

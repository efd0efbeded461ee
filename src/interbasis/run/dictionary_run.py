"""Graphs between dictionaries: `build` and `open_run` return a `DictionaryRun` for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from interbasis.analysis.dictionaries.ablation import (
    DictionaryAblateRequest,
    DictionaryAblation,
    ablate_edges,
)
from interbasis.analysis.dictionaries.checks import EdgeChecksResult, check_all_edges
from interbasis.analysis.dictionaries.compare import DictionaryComparison, compare_graphs
from interbasis.analysis.dictionaries.descriptions import DescriptionsResult, describe_features
from interbasis.analysis.dictionaries.modules import dictionary_modules
from interbasis.analysis.dictionaries.paths import EdgePaths, PathsRequest, edge_paths
from interbasis.analysis.dictionaries.steer import steer_feature
from interbasis.analysis.dictionaries.trace import DictionaryTrace, trace_prompt
from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stages.steer import SteerRequest, SteerResult
from interbasis.analysis.stored_results import load_named
from interbasis.base.errors import InterbasisError
from interbasis.base.files import check_writable, make_folder
from interbasis.base.memory import release_memory, return_freed_memory
from interbasis.base.progress import Progress, progress_bar
from interbasis.base.records import Metric
from interbasis.compute.checkpoints import NO_CHECKPOINTS, environment
from interbasis.compute.executor import Executor, most_blocks
from interbasis.compute.locks import building
from interbasis.compute.shards import RoundFinishedError, Shards
from interbasis.compute.team import ALONE, Resources, team_checkpoints, torchrun_team
from interbasis.data.batches import Batches, Data
from interbasis.dictionaries.build import GraphDictionaries, build_graph
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.graph import (
    DictionaryBuildConfig,
    DictionaryGraph,
    DictionaryPlan,
    is_dictionary_graph,
    load_graph,
    load_identified_graph,
)
from interbasis.dictionaries.plan import plan_graph
from interbasis.graph.costs import PlanRequest
from interbasis.graph.settings import DEFAULT_NORM_LIMIT, BuildConfig, BuildRequest
from interbasis.graph.store import check_is_free
from interbasis.lib.build_data import BuildData
from interbasis.network.network import Network
from interbasis.run.execution import Execution, computing_network, shared_settings
from interbasis.run.named_build import Prepared, prepare

if TYPE_CHECKING:
    from interbasis.show.html import HtmlPage

UNUSED = (
    "basis", "rotate_last", "threshold", "relative_threshold", "jacobian_sources", "jacobian_queries",
    "statistics_samples", "jacobian_samples", "edge_samples", "isolate", "isolate_largest", "edge_group",
    "edge_sources",
)  # fmt: skip
"""Settings of a build that a graph between dictionaries has no use for."""


def parse_dictionaries(named: Iterable[str]) -> dict[str, str]:
    """Read LAYER=PATH.

    Raises:
        InterbasisError: An entry has no =, or a layer is named twice.
    """
    result: dict[str, str] = {}
    for entry in named:
        place, separator, path = entry.partition("=")
        if not separator or not place or not path:
            raise InterbasisError(f"expected a dictionary as LAYER=PATH, received {entry!r}")
        if place in result:
            raise InterbasisError(f"the layer {place!r} was given two dictionaries; expected one")
        result[place] = path
    return result


def dictionary_settings(
    network: Network, config: BuildConfig, *, only_dictionaries: bool = True
) -> DictionaryBuildConfig:
    """Settings of a graph between dictionaries, from those of any build.

    Raises:
        InterbasisError: A setting has no use here.
    """
    unused = [name for name in UNUSED if getattr(config, name) != BuildConfig.model_fields[name].default]
    if unused:
        raise InterbasisError(
            f"a graph between dictionaries has no use for {', '.join(unused)}; leave out "
            f"{'these settings' if len(unused) > 1 else 'this setting'}"
        )
    if config.edge_method is None:
        raise InterbasisError("a graph between dictionaries consists of edges; choose an edge_method")
    limit = DEFAULT_NORM_LIMIT if network.predicts_next else 0.0
    return DictionaryBuildConfig.validated(
        edge_method=config.edge_method, edge_points=config.edge_points,
        edge_positions=config.edge_positions, skip_positions=config.skip_positions,
        norm_limit=limit if config.norm_limit is None else config.norm_limit, seed=config.seed,
        dtype=config.dtype or network.build_dtype, only_dictionaries=only_dictionaries,
    )  # fmt: skip


def execute_between(
    network: Network,
    batches: Batches,
    dictionaries: Mapping[str, Dictionary | str | Path],
    config: BuildConfig,
    execution: Execution,
    *,
    only_dictionaries: bool = True,
) -> DictionaryGraph:
    """Build the graph between dictionaries; a build that was interrupted resumes.

    Raises:
        InterbasisError: A setting has no use here, or a dictionary does not fit the network.
        RoundFinishedError: One shard of the build is computed.
    """
    resources, team, folder = execution.resources, execution.team, execution.folder
    settings = dictionary_settings(network, config, only_dictionaries=only_dictionaries)
    if resources.memory is not None:
        return_freed_memory()
        release_memory()
    computing, chosen = _opened(network, dictionaries, settings, resources.device)
    checkpoints, decisive = NO_CHECKPOINTS, None
    executor = Executor(computing, team, blocks=most_blocks(network))
    if folder is not None or isinstance(team, Shards):
        decisive = settings.model_dump() | BuildData(batches, batches, batches).fingerprints(executor)
        decisive |= {"model": network.fingerprint(), "dictionaries": chosen.digests, **environment()}
        decisive |= {"memory": resources.memory}
    if isinstance(team, Shards):
        assert decisive is not None
        team.begin(
            shared_settings(decisive), "" if execution.request is None else execution.request.to_json()
        )
    with building(folder, team=team, group=team.group):
        if decisive is not None:
            checkpoints = team_checkpoints(folder, "build", decisive, team, restart=execution.restart)
        with progress_bar(execution.progress) as advance:
            executor = replace(executor, checkpoints=checkpoints, progress=advance)
            try:
                graph = build_graph(network, batches, chosen, settings, executor, resources.bytes)
            except RoundFinishedError:
                checkpoints.finish()
                raise
    provenance = graph.provenance.model_copy(update=execution.names)
    return replace(graph, header=graph.header.model_copy(update={"provenance": provenance}))


def _opened(
    network: Network,
    dictionaries: Mapping[str, Dictionary | str | Path],
    settings: DictionaryBuildConfig,
    device: str | None,
) -> tuple[Network, GraphDictionaries]:
    """The network as it computes, and the dictionaries at their places in it."""
    network = computing_network(network, BuildConfig(dtype=settings.dtype), device)
    only = settings.only_dictionaries
    return network, GraphDictionaries.from_named(network, dictionaries, only_dictionaries=only)


def plan_by_name(
    prepared: Prepared, request: PlanRequest | None = None, device: str | None = None
) -> DictionaryPlan:
    """Plan the graph between dictionaries that a request names, from a short trial."""
    asked = prepared.request
    settings = dictionary_settings(
        prepared.network, asked.settings, only_dictionaries=asked.only_dictionaries
    )
    network, chosen = _opened(prepared.network, parse_dictionaries(asked.dictionary), settings, device)
    return plan_graph(asked.model, network, prepared.data.data, chosen, settings, request)


def build_dictionaries_by_name(
    request: BuildRequest,
    folder: Path,
    *,
    overwrite: bool = False,
    resources: Resources | None = None,
    progress: Progress | bool | None = None,
) -> "DictionaryRun":
    """Build the graph between dictionaries in a folder; an interrupted build resumes.

    Args:
        request: Model, data, dictionaries and settings by name.
        folder: Where the run is saved; unfinished work in it is resumed.
        overwrite: Replace a graph that is there.
        resources: Limit on memory, and the device.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.

    Returns:
        The run, opened for the analyses that follow.

    Raises:
        InterbasisError: A setting has no use here, the folder holds something else, or a dictionary does not
            fit the model.
    """
    check_request(request)
    team = torchrun_team()
    if is_dictionary_graph(folder):
        if not overwrite:
            raise InterbasisError(f"{folder} holds a graph already; name a new folder or add --overwrite")
    else:
        check_is_free(folder)
    check_writable(folder)
    prepared = prepare(request, team=team)
    execution = Execution(
        resources or Resources(), folder, overwrite, progress if team.is_first else False, team,
        prepared.request.model, prepared.request,
    )  # fmt: skip
    with building(folder, team=team):
        run = execute_by_name(prepared, execution)
        run.save(folder)
    return run


def check_request(request: BuildRequest) -> None:
    """Check what a request by name says of dictionaries.

    Raises:
        InterbasisError: A setting has no use for a graph between dictionaries, or is of no use without them.
    """
    if not request.dictionary:
        if not request.only_dictionaries:
            raise InterbasisError("--no-only-dictionaries is of no use without --dictionary; leave it out")
        return
    unused = [name for name in ("jacobian_data", "edge_data", "layers") if getattr(request, name) is not None]
    if unused:
        raise InterbasisError(f"a graph between dictionaries has no use for {unused[0]}; leave it out")
    if request.error is not None or request.time is not None:
        raise InterbasisError(
            "--dictionary cannot be combined with --error or --time; leave these out, or name settings for "
            "sampling (--edge-positions)"
        )
    parse_dictionaries(request.dictionary)


def execute_by_name(prepared: Prepared, execution: Execution) -> "DictionaryRun":
    """Build the graph between dictionaries that a request names; the run is not saved.

    Raises:
        RoundFinishedError: One shard of the build is computed.
    """
    request = prepared.request
    graph = execute_between(
        prepared.network, prepared.data.data, parse_dictionaries(request.dictionary), request.settings,
        execution, only_dictionaries=request.only_dictionaries,
    )  # fmt: skip
    team = ALONE if isinstance(execution.team, Shards) else execution.team
    return DictionaryRun(
        graph=graph, given_network=prepared.network, given_model=prepared.model, team=team,
        progress=execution.progress, built_here=True,
    )  # fmt: skip


@dataclass(eq=False, kw_only=True, repr=False)
class DictionaryRun(DictionaryWorkspace):
    """A graph between dictionaries with its network, its data and its results.

    `interbasis.build` with dictionaries, and `interbasis.open_run` on a folder of such a graph, return one.
    Analyses have the names that they have in `Run`; `curves`, `controls` and `figures` are for bases.
    """

    def __getattr__(self, name: str) -> Any:
        if name in ("curves", "controls", "figures", "masked_output"):
            raise AttributeError(
                f"{name} of a graph between dictionaries is not defined, since its features are no basis; "
                "use ablate, which keeps some edges only, or trace"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def save(self, folder: str | Path) -> Path:
        """Write the graph and the results in memory to a folder, in place of an older graph.

        Args:
            folder: Where it goes; made if it does not exist. Later results are stored there, too.

        Returns:
            The folder.

        Raises:
            InterbasisError: The folder holds something else, or cannot be written.
        """
        folder = Path(folder)
        if self.team.is_first:
            if not is_dictionary_graph(folder):
                check_is_free(folder)
            make_folder(folder)
            with building(folder, "save"):
                self.digest = self.graph.save(folder, signed=self.built_here)
        self.team.wait_for_all()
        return self.store_in(folder)

    def features(self, *, data: str | None = None) -> DescriptionsResult:
        """Find examples and tested descriptions of all features that are active.

        Args:
            data: Data to use, by name; default: those of the build.

        Returns:
            Descriptions by layer, with precision and recall on samples that they were not chosen on.

        Raises:
            InterbasisError: The model takes no tokens.
        """
        with self.working("features"):
            return describe_features(self, data)

    def trace(
        self,
        prompt: str | None = None,
        *,
        sample: int | None = None,
        data: str | None = None,
        output: str | int | None = None,
        name: str | None = None,
    ) -> DictionaryTrace:
        """Trace the next token of a prompt in the features of dictionaries.

        Args:
            prompt: Text, for a model with a tokenizer.
            sample: A sample of the data, instead of a prompt.
            data: Data to take the sample from, by name; default: those of the build.
            output: The token to explain; default: the most likely one.
            name: Name of the trace in the run; default: made from the prompt.

        Returns:
            The trace.

        Raises:
            InterbasisError: There is no tokenizer, token or sample of that name.
        """
        with self.working("trace", alone=False):
            chosen = None if output is None else str(output)
            return trace_prompt(self, prompt, sample, data, chosen, name)

    def ablate(
        self,
        *,
        data: str | None = None,
        metric: Metric | None = None,
        tolerance: float | None = None,
        sections: Sequence[str] | None = None,
        robust: bool = False,
        seed: int = 0,
    ) -> DictionaryAblation:
        """Find the fewest edges into active features that keep the metric, pair by pair.

        Args:
            data: Data to evaluate on, by name; default: the test data of the run.
            metric: "accuracy" or "cross_entropy"; default: cross_entropy for language models, else accuracy.
            tolerance: Largest loss of accuracy, or increase of cross-entropy; default: 0.001 or 0.1.
            sections: Places of source dictionaries; default: all pairs.
            robust: Add counts that survive an opponent who restores dropped edges.
            seed: Seed of the random order beside Ê's.

        Returns:
            Edges required by Ê and in random order, with all trials, by the place of the source.

        Raises:
            InterbasisError: A pair is unknown, or the data have no labels.
        """
        request = {name: value for name, value in locals().items() if name != "self"}
        with self.working("ablate"):
            return ablate_edges(self, DictionaryAblateRequest.validated(**request))

    def modules(
        self, *, resolution: float = 1.0, seed: int = 0, null_graphs: int = 50, cross_check: bool = False
    ) -> ModulesResult:
        """Group the features of all dictionaries into modules; neither network nor data are used.

        Args:
            resolution: γ; larger values give more and smaller modules.
            seed: Seed of the partition.
            null_graphs: Rewired graphs of the null model; 0 for none.
            cross_check: Compare with the partition of leidenalg, which must be installed.

        Returns:
            The partition, and how far it can be trusted.
        """
        with self.working("modules"):
            return dictionary_modules(self, resolution, seed, null_graphs, cross_check)

    def steer(
        self,
        feature: str,
        by: float,
        prompt: str | None = None,
        *,
        sample: int | None = None,
        data: str | None = None,
        start: int = 0,
        top: int = 10,
        tokens: int = 20,
    ) -> SteerResult:
        """Change a feature on one prompt and compare the outputs before and after.

        Args:
            feature: The feature, as LAYER:NUMBER.
            by: How much is added at every position, in RMS activations of the feature where it is active.
            prompt: Text, for a model with a tokenizer.
            sample: A sample of the data, instead of a prompt.
            data: Data to take the sample from, by name; default: those of the build.
            start: The first position that is changed.
            top: Outputs shown: those that change most.
            tokens: Length of the continuations of a language model, in tokens.

        Returns:
            The outputs that change most, and continuations with and without the change.
        """
        request = {name: value for name, value in locals().items() if name != "self"}
        return steer_feature(self, SteerRequest.validated(**request))

    def compare(self, other: "DictionaryRun | str | Path") -> DictionaryComparison:
        """Compare with another graph between dictionaries of the same model: dictionaries and edges."""
        return compare_graphs(
            self.graph, other.graph if isinstance(other, DictionaryRun) else load_graph(other)
        )

    def paths(self, source: str, target: str, *, data: str | None = None, samples: int = 100) -> EdgePaths:
        """Split an edge across one attention by head and path: value, key and query.

        Args:
            source: Feature of a dictionary, as LAYER:NUMBER.
            target: Feature of the next dictionary, as LAYER:NUMBER.
            data: Data by name; default: those of the build.
            samples: First samples of the data that are looked through.

        Returns:
            Strengths over the tokens where both are active. Nothing is stored.

        Raises:
            InterbasisError: There is no attention between them, or several, or they are not active together.
        """
        request = {name: value for name, value in locals().items() if name != "self"}
        return edge_paths(self, PathsRequest.validated(**request))

    def check(self, data: str, count: int = 200) -> EdgeChecksResult:
        """Check the strongest edges of every pair on data that they were not measured on.

        Args:
            data: Data by name.
            count: Edges of every pair.

        Returns:
            How well edges predict interventions at single tokens, by pair.
        """
        with self.working("check"):
            return check_all_edges(self, data, count)

    @overload
    def to_html(self, file: None = None) -> "HtmlPage": ...

    @overload
    def to_html(self, file: str | Path) -> Path: ...

    def to_html(self, file: str | Path | None = None) -> "HtmlPage | Path":
        """Show the graph as a page, or write it as one HTML file that works from disk, with all its results.

        Args:
            file: The file; an older one is replaced. Default: no file is written.

        Returns:
            The file, or a page that a notebook shows.
        """
        from interbasis.show.dictionaries.page import graph_html
        from interbasis.show.html import HtmlPage
        from interbasis.show.viewer.page import write_html

        traces = [result for result in self.results.values() if isinstance(result, DictionaryTrace)]
        if self.folder is not None:
            traces = list(load_named(self.folder, DictionaryTrace, digest=self.digest).values())
        page = graph_html(self.graph, self.stored(DescriptionsResult), traces)
        return HtmlPage(repr(self.graph), page) if file is None else write_html(page, Path(file))

    def _repr_html_(self) -> str:
        """The graph as a page inside a notebook."""
        return self.to_html()._repr_html_()

    def report(self, out: str | Path) -> Path:
        """Write a report on a saved run: its numbers, and what may be claimed from them."""
        from interbasis.show.report import write_report

        return write_report([self.saved_folder()], out)


def open_dictionary_run(
    folder: Path,
    network: Network | None = None,
    data: Data | None = None,
    *,
    test_data: Data | None = None,
    dictionaries: Mapping[str, Dictionary] | None = None,
    model: str | None = None,
    progress: Progress | bool | None = None,
) -> DictionaryRun:
    """Open the folder of a graph between dictionaries.

    Raises:
        InterbasisError: The graph is damaged, or the network's weights are not those of the build.
    """
    team = torchrun_team()
    graph, digest = load_identified_graph(folder)
    return DictionaryRun(
        graph=graph, folder=folder, digest=digest, given_network=network, model_spec=model or "",
        train_data=data, test_data=test_data, given_dictionaries=dictionaries or {},
        progress=progress if team.is_first else False, team=team,
    )  # fmt: skip

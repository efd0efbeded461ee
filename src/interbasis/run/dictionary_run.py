"""A graph between dictionaries by name: build it, describe its features, trace prompts, check edges."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from interbasis.analysis.features.contexts import vocabulary
from interbasis.base.errors import InterbasisError
from interbasis.base.files import write_text_atomically
from interbasis.base.json_text import parse_json
from interbasis.base.progress import Progress, progress_bar
from interbasis.compute.executor import BLOCKS, Executor
from interbasis.compute.team import team_checkpoints, torchrun_team
from interbasis.data.batches import Batches
from interbasis.data.text import open_tokenizer
from interbasis.dictionaries.build import build_graph
from interbasis.dictionaries.checks import AllEdgeChecks, check_edges
from interbasis.dictionaries.formats import load
from interbasis.dictionaries.graph import DictionaryGraph, load_graph
from interbasis.dictionaries.labels import FeatureDescriptions, FeatureTokensPass, LayerDescriptions, describe
from interbasis.dictionaries.layers import DictionaryLayer, place_dictionaries
from interbasis.dictionaries.trace import DictionaryTrace, trace_dictionaries
from interbasis.graph.named_models import open_model
from interbasis.network.network import Network

if TYPE_CHECKING:
    from interbasis.graph.named_models import Model
    from interbasis.graph.settings import BuildRequest

DESCRIPTIONS, CHECKS, TRACES = "descriptions.json", "edge_checks.json", "traces"
USUALLY_ACTIVE = 0.5
"""Share of the tokens; features that are active at more of them are traced from their mean."""
UNUSED = (
    "basis", "rotate_last", "threshold", "relative_threshold", "jacobian_sources", "jacobian_queries",
    "isolate", "isolate_largest", "edge_group", "edge_sources", "jacobian_data", "edge_data", "layers",
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


def build_dictionaries_by_name(
    request: "BuildRequest",
    dictionaries: Iterable[str],
    folder: Path,
    *,
    overwrite: bool = False,
    progress: Progress | bool | None = None,
) -> DictionaryGraph:
    """Build the graph between dictionaries in a folder; an interrupted build resumes.

    Raises:
        InterbasisError: A setting has no use here, the folder holds something else, or a dictionary does not
            fit the model.
    """
    unused = [name for name in UNUSED if name in request.model_fields_set]
    if unused:
        raise InterbasisError(
            f"a graph between dictionaries has no use for {', '.join(unused)}; leave out "
            f"{'these settings' if len(unused) > 1 else 'this setting'}"
        )
    if request.edge_method is None:
        raise InterbasisError("a graph between dictionaries consists of edges; leave out --edge-method none")
    team, named = torchrun_team(), parse_dictionaries(dictionaries)
    check_free(folder, overwrite)
    if request.threads:
        torch.set_num_threads(request.threads)
    model = open_model(request.model)
    data = model.open_data(request.data)
    graph = build_graph(
        model.network, data, named, edge_method=request.edge_method,
        edge_points=request.edge_points, edge_positions=request.edge_positions,
        skip_positions=request.skip_positions, norm_limit=request.norm_limit, seed=request.seed,
        dtype=request.dtype, model=request.model, data_name=data.spec, resume=folder, restart=overwrite,
        progress=progress if team.is_first else False, team=team,
    )  # fmt: skip
    if team.is_first:
        graph.save(folder)
    team.wait_for_all()
    return graph


def check_free(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds a run, or anything else that is not a graph between dictionaries."""
    from interbasis.dictionaries.graph import FILE
    from interbasis.graph.store import CONFIG

    if (folder / CONFIG).is_file():
        raise InterbasisError(f"{folder} holds a run; name a new folder")
    if (folder / FILE).is_file() and not overwrite:
        raise InterbasisError(f"{folder} holds a graph already; name a new folder or add --overwrite")


@dataclass(frozen=True, eq=False)
class DictionaryRun:
    """A stored graph between dictionaries with the model that it is of."""

    folder: Path
    graph: DictionaryGraph
    model: "Model"
    progress: Progress | bool | None = None

    @classmethod
    def open(cls, folder: Path, model: str, progress: Progress | bool | None = None) -> "DictionaryRun":
        """Open a graph with its model, by name.

        Raises:
            InterbasisError: The model's weights are not those that the graph was built with.
        """
        graph, opened = load_graph(folder), open_model(model)
        if opened.network.fingerprint() != graph.header.model_fingerprint:
            raise InterbasisError(
                f"{model} is not the model that {folder} was built for: the weights differ; name that one"
            )
        return cls(folder, graph, opened, progress)

    @cached_property
    def network(self) -> Network:
        """The network in the dtype of the build."""
        return self.model.network.to(getattr(torch, self.graph.header.config.dtype))

    @cached_property
    def layers(self) -> list[DictionaryLayer]:
        """The dictionaries at their places.

        Raises:
            InterbasisError: A file is not there, or has changed since the build.
        """
        opened = {}
        for reference in self.graph.header.layers:
            if not reference.path:
                raise InterbasisError(
                    f"the dictionary of {reference.place!r} was given in Python and has no file; build the "
                    "graph from files"
                )
            dictionary = load(reference.path)
            if dictionary.digest != reference.digest:
                raise InterbasisError(
                    f"{reference.path} is not the dictionary that {self.folder} was built with: its SHA-256 "
                    "differs; build the graph again"
                )
            opened[reference.place] = dictionary
        return place_dictionaries(self.network, opened)

    @cached_property
    def names(self) -> list[str] | None:
        """Texts of the model's tokens, if it has a tokenizer."""
        network = self.model.network
        names = network.token_names or (
            vocabulary(Path(self.model.tokenizer)) if self.model.tokenizer else ()
        )
        return list(names) or None

    def describe(self, data: str | None = None) -> FeatureDescriptions:
        """Find examples and tested descriptions of all features, and store them.

        Raises:
            InterbasisError: The model takes no tokens.
        """
        network = self.network
        if not network.predicts_next:
            raise InterbasisError("descriptions are of tokens; expected a language model")
        samples = self.model.open_data(data or self.graph.header.data or None)
        batches, team = Batches(samples), torchrun_team()
        decisive: dict[str, object] = {"data": batches.fingerprint(), "graph": self.graph.header.to_json()}
        checkpoints = team_checkpoints(self.folder, "descriptions", decisive, team)
        with progress_bar(self.progress if team.is_first else False) as advance:
            executor = Executor(network, team, checkpoints, advance, blocks=BLOCKS)
            pass_ = FeatureTokensPass(network, self.layers)
            state, _ = pass_.dump(executor.run(pass_, batches))
        layers = []
        for k, layer in enumerate(self.layers):
            active = self.graph.statistics[k].frequency.nonzero()[:, 0].tolist()
            features = describe(k, layer.features, state, active)
            known = sum(feature.description is not None for feature in features)
            layers.append(
                LayerDescriptions(
                    place=layer.name, described=known, active=len(active), features=tuple(features)
                )
            )
        counted = state["tokens.token.0.counts"].sum() + state["tokens.token.1.counts"].sum()
        result = FeatureDescriptions(data=samples.spec, tokens=int(counted), layers=tuple(layers))
        if team.is_first:
            write_text_atomically(self.folder / DESCRIPTIONS, result.to_json() + "\n")
            checkpoints.finish(DESCRIPTIONS)
        team.wait_for_all()
        return result

    def trace(self, prompt: str, target: str | None = None) -> DictionaryTrace:
        """Trace the next token of a prompt, and store the trace.

        Raises:
            InterbasisError: The model has no tokenizer, or the target is not one token.
        """
        if not self.model.tokenizer:
            raise InterbasisError("a prompt requires a tokenizer, and this model has none")
        tokenizer = open_tokenizer(self.model.tokenizer)
        tokens = tokenizer.encode([prompt])[0]
        if tokenizer.bos is not None and tokens[:1] != [tokenizer.bos]:
            tokens = [tokenizer.bos, *tokens]
        chosen = None if target is None else tokenizer.encode([target])[0]
        if chosen is not None and len(chosen) != 1:
            raise InterbasisError(f"expected a target of one token, received {len(chosen)}: {target!r}")
        baselines = [
            torch.where(statistics.frequency > USUALLY_ACTIVE, statistics.mean, 0.0)
            for statistics in self.graph.statistics
        ]
        trace = trace_dictionaries(
            self.network, self.layers, torch.tensor(tokens), chosen[0] if chosen else None, baselines
        )
        folder = self.folder / TRACES
        folder.mkdir(exist_ok=True)
        write_text_atomically(folder / f"{_file_name(prompt)}.json", trace.to_json() + "\n")
        return trace

    def check(self, data: str, count: int = 200) -> AllEdgeChecks:
        """Check the strongest edges of every pair on data that they were not measured on, and store it."""
        samples = self.model.open_data(data)
        pairs = [
            check_edges(self.network, layers, edges, samples, count=count)
            for layers, edges in zip(pairwise(self.layers), self.graph.edges, strict=True)
        ]
        result = AllEdgeChecks(data=samples.spec, pairs=tuple(pairs))
        write_text_atomically(self.folder / CHECKS, result.to_json() + "\n")
        return result


def stored_descriptions(folder: Path) -> FeatureDescriptions | None:
    """Descriptions in the folder of a graph; None where there are none."""
    path = folder / DESCRIPTIONS
    if not path.is_file():
        return None
    return FeatureDescriptions.model_validate(parse_json(path.read_text(encoding="utf-8")))


def stored_traces(folder: Path) -> dict[str, DictionaryTrace]:
    """Traces in the folder of a graph, by name."""
    return {
        path.stem: DictionaryTrace.model_validate(parse_json(path.read_text(encoding="utf-8")))
        for path in sorted((folder / TRACES).glob("*.json"))
    }


def _file_name(prompt: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:60] or "prompt"

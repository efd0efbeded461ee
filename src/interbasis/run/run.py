"""`Run`: a graph with its network, its data and its results, and a method for every analysis and output."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from torch import Tensor

from interbasis.analysis.workspace import Workspace
from interbasis.base.errors import InterbasisError
from interbasis.base.memory import parse_bytes, return_freed_memory
from interbasis.base.progress import Progress
from interbasis.base.records import Basis, Method, Metric, Record
from interbasis.base.signatures import standing
from interbasis.compute.team import torchrun_team
from interbasis.data.batches import Data
from interbasis.dictionaries.graph import is_dictionary_graph
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.named_sources import NamedSources
from interbasis.graph.store import load_identified, save
from interbasis.network.network import Network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interbasis.analysis.ablation.masked_pass import KeptFeatures, Masks
    from interbasis.analysis.compare import Comparison
    from interbasis.analysis.edge_experts import EdgeExperts
    from interbasis.analysis.features.records import FeatureExamples
    from interbasis.analysis.stages.ablate import AblationResult
    from interbasis.analysis.stages.controls import ControlsResult
    from interbasis.analysis.stages.curves import CurvesResult
    from interbasis.analysis.stages.features import FeaturesResult
    from interbasis.analysis.stages.intervene import InterventionResult
    from interbasis.analysis.stages.modules import ModulesResult
    from interbasis.analysis.stages.steer import SteerResult
    from interbasis.analysis.stages.trace import TraceResult
    from interbasis.analysis.summary import RunSummary
    from interbasis.dictionaries.dictionary import Dictionary
    from interbasis.show.figures.saving import Format
    from interbasis.show.html import HtmlPage

Request = TypeVar("Request", bound=Record)
RUN_PARTS = ("graph", "network", "data", "folder")
"""Attributes of a workspace that users of a run read."""


def record_from(kind: type[Request], arguments: dict[str, Any]) -> Request:
    """Make a record from the local variables of a function, which have the names of its fields."""
    return kind.validated(**{name: value for name, value in arguments.items() if name in kind.model_fields})


class Run(Workspace):
    """A graph with its network, its data and its results.

    `interbasis.build` and `interbasis.open_run` return one. Each analysis returns a frozen record, which is
    stored in the run's folder if it has one, and else kept in memory; pages and reports show what is there.
    """

    @property
    def layers(self) -> list[LayerBasis]:
        """The bases of the node layers, in the network's order."""
        return self.graph.layers

    @property
    def edges(self) -> Sequence[Tensor]:
        """Ê per section, [features_out, features_in]."""
        return self.graph.edges

    def save(self, folder: str | Path) -> Path:
        """Write the graph and the results in memory to a folder, in place of an older run if there is one.

        Args:
            folder: Where it goes; made if it does not exist. Later results are stored there, too.

        Returns:
            The folder.

        Raises:
            InterbasisError: The graph holds NaN, the folder holds something else than a run, or it cannot be
                written.
        """
        named_in = self.graph.provenance.naming_folder(self.folder)
        signed = self._named_by_this_user()
        if named_in is not None:
            update = {"working_folder": os.path.relpath(named_in, folder)}
            self.graph = replace(self.graph, provenance=self.graph.provenance.model_copy(update=update))
        self.digest = save(self.graph, folder, signed=signed)
        return self.store_in(Path(folder))

    def _named_by_this_user(self) -> bool:
        """Whether this user named the model and data: the run was built here, or it is signed."""
        if self.built_here or self.folder is None or self.digest is None:
            return self.built_here
        sources = NamedSources.from_provenance(self.graph.provenance, self.digest, self.folder)
        return standing(self.folder, sources.content, sources.places) == "signed"

    def summary(self) -> "RunSummary":
        """Return the graph in a few numbers per layer and section."""
        from interbasis.analysis.summary import summarise

        given = self.given_network
        return summarise(self.graph, given.tokenizer if given is not None else "")

    def ablate(
        self,
        *,
        edges: bool = True,
        nodes: bool = False,
        data: str | None = None,
        metric: Metric | None = None,
        tolerance: float | None = None,
        sections: Sequence[str] | None = None,
        stable: bool = True,
        intervals: bool = False,
        robust: bool = False,
        level: float = 1.0,
        all_tokens: bool = False,
    ) -> "AblationResult":
        """Find the fewest edges of every section, and nodes of every layer, that keep the metric.

        Args:
            edges: Find the edges required.
            nodes: Find the nodes required.
            data: Data to evaluate on, by name; default: the test data of the run.
            metric: "accuracy" or "cross_entropy"; default: cross_entropy for language models, else accuracy.
            tolerance: Largest loss of accuracy, or increase of cross-entropy; default: 0.001 or 0.1.
            sections: Names of source layers; default: all sections.
            stable: Also find the count from which every larger one passes.
            intervals: Add 95 % bootstrap intervals over the samples to the edges required.
            robust: Add counts that survive a search for the worst combination of removed edges.
            level: How far ``robust`` may switch removed edges back on; 1 is fully.
            all_tokens: Mask tokens that the build left out, too.

        Returns:
            Edges and nodes required, by section and layer.

        Raises:
            InterbasisError: A section is unknown or unsupported, or no mask can meet the tolerance.
        """
        from interbasis.analysis.stages import ablate

        return ablate.run(self, record_from(ablate.AblateRequest, locals()))

    def curves(
        self, *, data: str | None = None, metric: Metric | None = None, seed: int = 0, robust: bool = False
    ) -> "CurvesResult":
        """Measure the metric with 0.1 to 100 % of the edges kept, per section and in all at once.

        Args:
            data: Data to evaluate on, by name; default: the test data of the run.
            metric: "accuracy" or "cross_entropy"; default: cross_entropy for language models, else accuracy.
            seed: Seed of the bootstrap.
            robust: Add, per section, the metric with the worst mask found within the edges that are removed.

        Returns:
            The curves with 95 % bootstrap intervals, and the sparsity of the edges.
        """
        from interbasis.analysis.stages import curves

        return curves.run(self, record_from(curves.CurvesRequest, locals()))

    def controls(
        self,
        *,
        data: str | None = None,
        metric: Metric | None = None,
        tolerance: float | None = None,
        seed: int = 0,
        bases: Sequence[Basis] = ("lib", "gib", "pca", "neuron", "random"),
        stressed: Sequence[Basis] = ("lib", "pca"),
        scrambles: int = 1,
    ) -> "ControlsResult":
        """Compare the run with other bases, scrambled weights and random rankings.

        Args:
            data: Data to evaluate on, by name; default: the test data of the run.
            metric: "accuracy" or "cross_entropy"; default: cross_entropy for language models, else accuracy.
            tolerance: Tolerance for the edges required; default: 0.001 for accuracy, 0.1 for cross-entropy.
            seed: Random seed.
            bases: Bases; the first is also measured with random rankings and scrambled weights.
            stressed: Bases that also get edges required and subsets of removed edges.
            scrambles: Networks with shuffled weights, and as many with redrawn ones.

        Returns:
            The table of controls.
        """
        from interbasis.analysis.stages import controls

        return controls.run(self, record_from(controls.ControlsRequest, locals()))

    def modules(
        self,
        *,
        resolution: float = 1.0,
        seed: int = 0,
        null_graphs: int = 50,
        cross_check: bool = False,
        cuts: bool = True,
    ) -> "ModulesResult":
        """Group the features of all layers into modules; neither network nor data are used.

        Args:
            resolution: γ; larger values give more and smaller modules.
            seed: Seed of the partition.
            null_graphs: Rewired graphs of the null model; 0 for none.
            cross_check: Compare with the partition of leidenalg, which must be installed.
            cuts: Find the fewest features that separate each pair of modules.

        Returns:
            The partition, and how far it can be trusted.
        """
        from interbasis.analysis.stages import modules

        return modules.run(self, record_from(modules.ModulesRequest, locals()))

    def features(
        self,
        *,
        data: str | None = None,
        top: int = 32,
        ends: int = 8,
        bands: int = 4,
        per_band: int = 4,
        mean_effect_samples: int = 64,
        seed: int = 0,
    ) -> "FeaturesResult":
        """Find out what the features respond to and what they do.

        Args:
            data: Data to use, by name; default: what the run was built on.
            top: Number of features to describe in each layer, not counting the constant.
            ends: Number of most positive, and of most negative, examples of each feature.
            bands: Number of quantile bands between them, from which more examples are drawn.
            per_band: Number of examples from each band.
            mean_effect_samples: Samples over which effects on a language model's outputs are averaged.
            seed: Seed of the examples drawn from the bands.

        Returns:
            Labels, statistics and effects, by layer.
        """
        from interbasis.analysis.stages import features

        return features.run(self, record_from(features.FeaturesRequest, locals()))

    def trace(
        self,
        prompt: str | None = None,
        *,
        sample: int | None = None,
        data: str | None = None,
        output: str | int | None = None,
        minus: str | int | None = None,
        feature: str | None = None,
        position: int = -1,
        name: str | None = None,
        method: Method = "exact",
        quadrature: int = 16,
        max_nodes: int = 64,
        node_threshold: float = 0.8,
        edge_threshold: float = 0.98,
        effect_points: int = 6,
        checks: int = 20,
    ) -> "TraceResult":
        """Trace one computation: which features, at which positions, made an output what it is.

        Args:
            prompt: Text, for a model with a tokenizer.
            sample: A sample of the data, instead of a prompt.
            data: Data to take the sample from, by name; default: what the run was built on.
            output: The token or class to explain; default: the largest output.
            minus: Another one, whose logit is subtracted; default: the mean of all logits.
            feature: A feature to explain instead, as LAYER:NUMBER.
            position: Position of what is explained; -1 is the last.
            name: Name of the trace in the run; default: made from the prompt.
            method: How the integral along the straight line is computed.
            quadrature: Points of the integration rule where there is no closed form.
            max_nodes: Maximum number of features (at positions) to follow in each layer.
            node_threshold: Keep the most influential nodes that together hold this share of all influence.
            edge_threshold: Keep the most influential edges that together hold this share of all influence.
            effect_points: Points between the mean and the activations at which slopes are averaged.
            checks: How many of the strongest nodes and edges are checked by interventions.

        Returns:
            The trace with its name.

        Raises:
            InterbasisError: There is no tokenizer, output, feature or sample of that name.
        """
        from interbasis.analysis.stages import trace

        named = {"output": output, "minus": minus}
        texts = {name: None if value is None else str(value) for name, value in named.items()}
        return trace.run(self, record_from(trace.TraceRequest, locals() | texts))

    def steer(
        self,
        feature: str,
        by: float,
        prompt: str | None = None,
        *,
        sample: int | None = None,
        samples: int | None = None,
        directions: int = 20,
        data: str | None = None,
        start: int = 0,
        top: int = 10,
        tokens: int = 20,
    ) -> "SteerResult":
        """Change a feature, on one prompt or over many samples, and compare the outputs before and after.

        Args:
            feature: The feature, as LAYER:NUMBER.
            by: How much is added at every position, in standard deviations over the data of the build.
            prompt: Text, for a model with a tokenizer.
            sample: A sample of the data, instead of a prompt.
            samples: Number of samples over which changes are averaged, instead of a prompt; the feature's
                label is tested on them.
            directions: Number of random directions of the same length that a label is tested beside.
            data: Data to take samples from, by name; default: what the run was built on.
            start: The first position that is changed.
            top: Outputs shown: those whose probability changes most, the most likely ones among them.
            tokens: Length of the continuations of a language model, in tokens.

        Returns:
            The outputs that change most; continuations with and without the change, or tests of the label.
        """
        from interbasis.analysis.stages import steer

        return steer.run(self, record_from(steer.SteerRequest, locals()))

    def intervene(
        self,
        feature: str,
        value: float | None = None,
        *,
        groups: Sequence[int] | None = None,
        data: str | None = None,
    ) -> "InterventionResult":
        """Set a feature over labelled data, and compare accuracy and loss before and after.

        Args:
            feature: The feature, as LAYER:NUMBER.
            value: Value at every position, in standard deviations from the feature's mean over the data of
                the build; default: the feature's mean given the true label, or the group of the label.
            groups: A group for every class, [1, 1, 0, …], whose mean takes the place of the class's.
            data: Data to measure on, by name; default: the test data of the run.

        Returns:
            Accuracy and cross-entropy before and after; the report's claims use them.

        Raises:
            InterbasisError: There is no such feature, or the data have no labels.
        """
        from interbasis.analysis.stages import intervene

        return intervene.run(self, record_from(intervene.InterveneRequest, locals()))

    def masked_output(
        self,
        inputs: Tensor,
        *,
        edges: "Masks | None" = None,
        nodes: "KeptFeatures | None" = None,
    ) -> Tensor:
        """Return the model's output with some edges or some nodes only.

        Args:
            inputs: A batch of inputs.
            edges: Masks [features_out, features_in] by section, True for an edge that is kept.
            nodes: By node layer, how many features are kept (the first ones) or which ones.
        """
        from interbasis.analysis.ablation.masked_pass import ablate_edges, ablate_nodes

        if nodes is None:
            return ablate_edges(self.network, self.graph, inputs, edges or {})
        return ablate_nodes(self.network, self.graph, inputs, nodes)

    def compare(self, other: "Run | str | Path", data: Data | None = None) -> "Comparison":
        """Compare with another run, both saved: features, edges, ablation, modules.

        Args:
            other: A run with the same node layers, of this model or of another one.
            data: Match features by their correlation over these data, on which both models run; default:
                match them by what the runs hold (`interbasis.compare`).

        Returns:
            Both runs, layer by layer and section by section.

        Raises:
            InterbasisError: The runs have different node layers, or are not saved.
        """
        from interbasis.analysis.compare import compare, compare_on

        if data is None:
            return compare(
                self.saved_folder(), other if isinstance(other, str | Path) else other.saved_folder()
            )
        second = open_run(other) if isinstance(other, str | Path) else other
        self.saved_folder(), second.saved_folder()
        return compare_on(self, second, data)

    def edge_experts(
        self, source: str, target: str, *, data: Data | None = None, samples: int = 100
    ) -> "EdgeExperts":
        """Say which experts of a mixture carry an edge across it.

        Args:
            source: Feature of the layer that the experts read, as LAYER:NUMBER.
            target: Feature of the layer after it, as LAYER:NUMBER.
            data: Inputs; default: those of the build.
            samples: Number of samples, the first of the data.

        Returns:
            Shares of Ê² by expert.

        Raises:
            InterbasisError: There are no experts between the two features.
        """
        from interbasis.analysis.edge_experts import edge_experts

        return edge_experts(self, source, target, data, samples)

    def examples(self, feature: str) -> "FeatureExamples":
        """Return the dataset examples of a feature that `features` has described.

        Args:
            feature: The feature, as LAYER:NUMBER.

        Returns:
            The examples, which a notebook shows as pictures or as text.

        Raises:
            InterbasisError: There is no such feature, or it has not been described.
        """
        from interbasis.analysis.prompts import parse_feature
        from interbasis.analysis.stages.features import ExamplesResult

        basis, number = parse_feature(self.graph, feature)
        stored = self.stored(ExamplesResult)
        known = {} if stored is None else {row.index: row for row in stored.layers.get(basis.name, ())}
        if number not in known:
            described = f"those of {', '.join(map(str, known))}" if known else "none"
            raise InterbasisError(
                f"there are no examples of feature {number} of {basis.name!r}, there are {described}; call "
                "run.features(), with a larger top if need be"
            )
        return known[number]

    @overload
    def to_html(self, file: None = None, *, labels: bool = True) -> "HtmlPage": ...

    @overload
    def to_html(self, file: str | Path, *, labels: bool = True) -> Path: ...

    def to_html(self, file: str | Path | None = None, *, labels: bool = True) -> "HtmlPage | Path":
        """Show the run as a page, or write it as one HTML file that works from disk, with all its results.

        Args:
            file: The file; an older one is replaced. Default: no file is written.
            labels: Describe the features that the page opens with, the first 32 of each layer, as far as
                `features` has not; that is done once and kept in the run.

        Returns:
            The file, or a page that a notebook shows.
        """
        from interbasis.show.viewer import describe_opening_view, run_page, write_run

        if labels:
            describe_opening_view(self)
        return run_page(self) if file is None else write_run(self, file)

    def _repr_html_(self) -> str:
        """The run as a page inside a notebook, with the labels that it has; nothing is computed."""
        return self.to_html(labels=False)._repr_html_()

    @overload
    def report(self, out: None = None) -> "HtmlPage": ...

    @overload
    def report(self, out: str | Path) -> Path: ...

    def report(self, out: str | Path | None = None) -> "HtmlPage | Path":
        """Show or write a report: the run's numbers, its figures, and what may be claimed from them.

        Args:
            out: Folder for report.html and its figures. Default: no file is written.

        Returns:
            The path of report.html, or a page that a notebook shows.
        """
        from interbasis.show.report import report_page, write_report

        return report_page([self]) if out is None else write_report([self], out)

    def figure(self, kind: str = "graph", part: int = 0) -> "Figure":
        """Draw a figure of the report.

        Args:
            kind: "graph", "required", "curves", "monosemanticity", "classes", "positions" or "spectra".
            part: Which figure of this kind, where a report has several.

        Returns:
            A matplotlib figure, which a notebook shows and `interbasis.figures.save` writes.

        Raises:
            InterbasisError: There is no such figure, since the analysis that it shows was not run.
        """
        from interbasis.show.report import draw_figure

        return draw_figure([self], kind, part)

    def figures(self, out: str | Path, formats: "Sequence[Format]" = ("svg", "pdf")) -> list[Path]:
        """Write every figure of the run to a folder."""
        from interbasis.show.report import write_figures

        return write_figures([self], out, formats)

    def __dir__(self) -> list[str]:
        """Names that a notebook completes: analyses, what shows them, and the parts of a run."""
        return sorted({name for name in vars(Run) if not name.startswith("_")} | set(RUN_PARTS))


def open_run(
    run: str | Path | InteractionGraph,
    network: Network | None = None,
    data: Data | None = None,
    *,
    test_data: Data | None = None,
    dictionaries: "Mapping[str, Dictionary] | None" = None,
    model: str | None = None,
    memory: int | str | None = None,
    progress: Progress | bool | None = None,
) -> Run:
    """Open a run.

    Args:
        run: Folder of the run, or a graph that was not saved. For the folder of a graph between dictionaries,
            a `DictionaryRun` is returned.
        network: The network that it was built for; default: the model that the run names, opened when it is
            first used.
        data: Inputs, or pairs of inputs and labels; default: the data that the run names.
        test_data: Data to evaluate on; default: ``data``, or the test split of what the run names.
        dictionaries: Dictionaries by place, for a graph between some that were given in Python.
        model: A model by name, in place of the one that the run names.
        memory: Memory that analyses may use where they can be limited, in bytes or such as "8GB"; the graph
            and large models stay in their files. Default: no limit.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.

    Returns:
        The run; results are stored in the folder, if there is one.

    Raises:
        InterbasisError: There is no run, or the network's weights are not those of the build.
    """
    from interbasis.run.dictionary_run import open_dictionary_run

    team, folder, digest = torchrun_team(), None, None
    limit = parse_bytes(memory) if isinstance(memory, str) else memory
    if limit is not None:
        return_freed_memory()
    if isinstance(run, InteractionGraph):
        graph = run
    else:
        folder = Path(run)
        if is_dictionary_graph(folder):
            return open_dictionary_run(  # type: ignore[return-value]
                folder, network, data, test_data=test_data, dictionaries=dictionaries, model=model,
                progress=progress,
            )  # fmt: skip
        graph, digest = load_identified(folder, in_memory=limit is None)
    return Run(
        graph=graph, folder=folder, digest=digest, given_network=network, model_spec=model or "",
        train_data=data, test_data=test_data, memory=limit, progress=progress if team.is_first else False,
        team=team,
    )  # fmt: skip

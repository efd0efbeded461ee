"""The yardstick: every method measured the same way on the same samples.

1. Networks: the trained one and, for the row learnt, two of the same shape that learnt nothing.
2. Methods are fitted on the data: per place, directions in the order of their importance (`codes.py`).
3. The rank row (`rank.py`): each place alone, then all together, at every number of directions.
4. Single directions (`directions.py`), the mean of LIB's Jacobians (`mean_jacobian.py`), edges that are
   needed (`edge_counts.py`) and agreement of fits (`stability.py`), where asked for.

Every fit, and every block of the test data, is a task of its own: processes share them, and finished ones
survive a kill. One pass over a block serves all methods and places.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from interbasis.analysis.ablation.controls import reinitialised, shuffled
from interbasis.analysis.stored_results import DataUsed
from interbasis.analysis.yardstick import store
from interbasis.analysis.yardstick.basis_methods import interaction_metrics
from interbasis.analysis.yardstick.codes import (
    CodedPlace,
    Codes,
    CoordinateCode,
    LinearCode,
    MethodInputs,
    RankingMethod,
    chosen_places,
    dump_codes,
    load_codes,
)
from interbasis.analysis.yardstick.directions import (
    direction_correlations,
    direction_effects,
    single_points,
)
from interbasis.analysis.yardstick.edge_counts import Labelled, edge_counts, given_labels, own_labels
from interbasis.analysis.yardstick.mean_jacobian import mean_jacobians
from interbasis.analysis.yardstick.measure import Measurement, Meter, PointSeries, estimate
from interbasis.analysis.yardstick.methods import METHODS, chosen_methods
from interbasis.analysis.yardstick.rank import RankPlan, area, rank_curve
from interbasis.analysis.yardstick.records import (
    Agreement,
    DirectionCorrelations,
    DirectionEffects,
    LabelKind,
    LearntDifference,
    MeanJacobianShare,
    MethodCost,
    NeededEdges,
    NetworkKind,
    RankCurve,
    YardstickRequest,
    YardstickResult,
)
from interbasis.analysis.yardstick.shared_statistics import SharingExecutor
from interbasis.analysis.yardstick.stability import Fit, agreement
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, progress_bar
from interbasis.base.records import Basis, Dtype
from interbasis.compute.checkpoints import Checkpoints, State, environment
from interbasis.compute.executor import Executor, chunk_size, most_blocks
from interbasis.compute.locks import working
from interbasis.compute.team import ALONE, Team, team_checkpoints
from interbasis.data.batches import Batches, Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.settings import BuildConfig
from interbasis.lib.bases import BASES
from interbasis.lib.build import build, with_network_defaults
from interbasis.lib.build_data import BuildData
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.lib.survey import survey
from interbasis.network.network import Network

TASK = "yardstick"


def yardstick(
    network: Network,
    data: Data,
    *,
    test_data: Data | None = None,
    methods: Sequence[str | RankingMethod] = ("lib", "pca", "random", "neuron"),
    rows: Sequence[str] = ("rank",),
    layers: Sequence[str] = (),
    alone: Sequence[str] = (),
    ranks: Sequence[int] = (),
    removed: Sequence[int] = (1, 2, 4, 8),
    together: bool = True,
    direction_samples: int | None = None,
    jacobian_samples: int | None = None,
    jacobian_queries: int | None = None,
    jacobian_sources: int | None = None,
    edge_samples: int | None = None,
    edge_tests: int | None = None,
    twins: Mapping[str, Network] | None = None,
    norm_limit: float | None = None,
    dtype: Dtype | None = None,
    seed: int = 0,
    model: str = "",
    folder: str | Path | None = None,
    progress: Progress | bool | None = None,
    team: Team = ALONE,
) -> YardstickResult:
    """Compare methods that rank the directions of a network's activations.

    Args:
        network: The network.
        data: Data that methods are fitted on; labels are not used.
        test_data: Data with labels, or tokens for a language model, that they are measured on; default:
            ``data``.
        methods: Names out of `interbasis.analysis.yardstick.methods.METHODS`, or objects with a ``name``
        and a
            ``fit`` (`interbasis.analysis.yardstick.codes.RankingMethod`); all are compared with the first.
        rows: "rank", "learnt", "directions", "mean-jacobian", "edges", "stability".
        layers: Node layers, with ":read" for the part that only weights read; default: all but the last, and
            without those that hold a variance.
        alone: Layers, out of these, that are replaced one by one as well; default: all of them.
        ranks: Numbers of directions kept; default: 0, 1, 2, 4 and multiples of an eighth of the width.
        removed: Numbers of leading directions removed.
        together: Also keep the same share of the directions in all layers at once.
        direction_samples: Test samples on which directions are dropped one by one; default: all.
        jacobian_samples: First samples of the data over which Jacobians are averaged; default: all.
        jacobian_queries: Query positions sampled per sequence in attention's Jacobians; default: all.
        jacobian_sources: Stochastic sources over output positions where no closed form is known; default:
            exact.
        edge_samples: First samples of the data over which edges are averaged; default: as for Jacobians.
        edge_tests: First test samples on which edges are removed; default: all.
        twins: Networks trained like this one from other seeds, by name; the row stability compares with them.
        norm_limit: Tokens whose norm exceeds this many times the median of their layer count in no basis and
            are not replaced; 0 is no limit. Default: 3 for language models, else 0.
        dtype: "float64" or "float32", in which the network computes; default: by model family.
        seed: Seed of methods, scrambled networks and bootstrap.
        model: A name to remember the model by.
        folder: Folder that the result is stored in. Work is stored there while it lasts: a call that was
        killed
            resumes when it is made again, and a result that is there already is returned.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.
        team: The processes that share the work; all of them make the same call.

    Returns:
        The result.

    Raises:
        InterbasisError: A method, row or layer is unknown, labels are missing, or the network cannot be made
            again from other weights, which the row learnt requires.
    """
    chosen = chosen_methods(methods)
    request = YardstickRequest.validated(
        methods=[method.name for method in chosen], rows=rows, layers=layers,
        alone=alone, ranks=tuple(map(str, ranks)), removed=tuple(map(str, removed)), together=together,
        direction_samples=direction_samples, jacobian_samples=jacobian_samples,
        jacobian_queries=jacobian_queries, jacobian_sources=jacobian_sources,
        edge_samples=edge_samples, edge_tests=edge_tests, norm_limit=norm_limit, dtype=dtype, seed=seed,
    )  # fmt: skip
    return run(
        network, data, test_data, request,
        methods=chosen, twins=twins, model=model, folder=folder, progress=progress, team=team,
    )  # fmt: skip


def run(
    network: Network,
    data: Data,
    test_data: Data | None,
    request: YardstickRequest,
    *,
    methods: Sequence[RankingMethod] | None = None,
    twins: Mapping[str, Network] | None = None,
    model: str = "",
    folder: str | Path | None = None,
    progress: Progress | bool | None = None,
    team: Team = ALONE,
) -> YardstickResult:
    """Compare the methods of a request; `yardstick` explains the parameters."""
    if not isinstance(network, Network):
        raise InterbasisError(
            f"expected an interbasis Network, received {type(network).__name__}; make one with "
            "interbasis.from_torch(module)"
        )
    path = None if folder is None else Path(folder)
    test = data if test_data is None else test_data
    chosen = chosen_methods(request.methods) if methods is None else list(methods)
    used, tested = DataUsed.from_data(data), DataUsed.from_data(test)
    settings = request.model_dump(mode="json") | {
        "model": network.fingerprint(), "data": used.fingerprint, "test_data": tested.fingerprint,
        "labels": tested.labels, "twins": {name: twin.fingerprint() for name, twin in (twins or {}).items()},
        **environment(),
    }  # fmt: skip
    identity = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    with working(path, TASK, team), progress_bar(progress if team.is_first else False) as advance:
        if path is not None and (known := store.load(path)) is not None and known[0].identity == identity:
            return known[0]
        checkpoints = team_checkpoints(path, TASK, settings, team)
        comparison = MethodComparison(
            network, data, test, request, chosen, twins or {}, checkpoints, advance, team
        )
        result = comparison.result(model, identity, used, tested)
        if path is not None and team.is_first:
            store.save(path, result, comparison.tensors())
        team.wait_for_all()  # what another process is writing must not be taken for left over
        checkpoints.finish(store.NAME)
        team.wait_for_all()
    return result


@dataclass(frozen=True, eq=False)
class FittedMethods:
    """Codes of every method of a network, from some data."""

    network: Network
    counted: CountedTokens
    codes: Mapping[str, Codes]

    def at(self, method: str, place: CodedPlace) -> Fit | None:
        """Directions of a method at a place; None where they are not linear."""
        code = self.codes[method].get(place.name)
        if not isinstance(code, LinearCode | CoordinateCode):
            return None
        return Fit(self.network, place, code, self.counted)


@dataclass(frozen=True, eq=False)
class Subject:
    """A network that methods are compared on, with the codes of every method."""

    kind: NetworkKind
    meter: Meter
    codes: Mapping[str, Codes]
    costs: tuple[MethodCost, ...]
    measured: dict[tuple[str, str], Measurement] = field(default_factory=dict)
    """Measurements of the rank row by method and place; all places together are an empty name."""


@dataclass(frozen=True, eq=False)
class MethodComparison:
    """Methods, networks and data that are compared."""

    network: Network
    data: Data
    test_data: Data
    request: YardstickRequest
    methods: Sequence[RankingMethod]
    twins: Mapping[str, Network]
    checkpoints: Checkpoints
    progress: Progress
    team: Team

    def result(self, model: str, identity: str, used: DataUsed, tested: DataUsed) -> YardstickResult:
        """Fit and measure all, and put the rows together."""
        self.progress("layers", len(self.alone), len(self.alone))  # unknown ones are refused before any work
        subjects = self.subjects
        trained = subjects[0]
        for subject in subjects if "rank" in self.request.rows else ():
            self._measure_ranks(subject)
        curves = tuple(curve for subject in subjects for curve in self._curves(subject))
        effects, correlations = self._directions(trained)
        shares = trained.meter.replaced_shares([place.layer for place in self.places])
        return YardstickResult(
            model=model or self.network.family,
            request=self.request,
            identity=identity,
            data=used.spec,
            test_data=tested.spec,
            samples=used.samples,
            test_samples=tested.samples,
            baseline=trained.meter.baseline(),
            replaced_share={place.name: shares[place.layer] for place in self.places},
            curves=curves,
            learnt=tuple(row for subject in subjects[1:] for row in self._differences(trained, subject)),
            directions=effects,
            correlations=correlations,
            mean_jacobians=self._mean_jacobians(),
            edges=self._edges(subjects) if "edges" in self.request.rows else (),
            stability=self._stability(trained) if "stability" in self.request.rows else (),
            costs=tuple(cost for subject in subjects for cost in subject.costs),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Sums of every sample, by network, method and place."""
        return {
            f"{subject.kind}/{method}/{place}/{name}": getattr(measured, name)
            for subject in self.subjects
            for (method, place), measured in subject.measured.items()
            for name in ("losses", "divergences", "counts")
        }

    @cached_property
    def places(self) -> list[CodedPlace]:
        return chosen_places(self.network, self.request.layers)

    @cached_property
    def alone(self) -> list[CodedPlace]:
        """Places that are replaced one by one."""
        alone = chosen_places(self.network, self.request.alone) if self.request.alone else self.places
        if missing := [place.name for place in alone if place not in self.places]:
            raise InterbasisError(
                f"expected layers that are measured alone to be among all that are measured, received "
                f"{', '.join(missing)}; add them to layers"
            )
        return alone

    @cached_property
    def plans(self) -> list[RankPlan]:
        """Every place alone, then all together."""
        plans = [RankPlan.from_request([place], self.request) for place in self.alone]
        if self.request.together and len({place.layer for place in self.places}) == len(self.places) > 1:
            plans.append(RankPlan.from_request(self.places, self.request))
        return plans

    @cached_property
    def config(self) -> BuildConfig:
        request = self.request
        config = BuildConfig.validated(
            edge_method=None, norm_limit=request.norm_limit, dtype=request.dtype, seed=request.seed,
            jacobian_queries=request.jacobian_queries, jacobian_sources=request.jacobian_sources,
        )  # fmt: skip
        return with_network_defaults(self.network, config)

    @cached_property
    def build_data(self) -> BuildData:
        data, count = Batches(self.data, "data"), self.request.jacobian_samples
        jacobians = (
            data if count is None or count >= len(data) else Batches(self.data, "jacobian_data").head(count)
        )
        samples = self.request.edge_samples
        edges = (
            jacobians if samples is None else Batches(self.data, "edge_data").head(min(samples, len(data)))
        )
        return BuildData(data, jacobians, edges)

    @cached_property
    def subjects(self) -> list[Subject]:
        """The trained network and, for the row learnt, two that learnt nothing, with their codes."""
        networks: dict[NetworkKind, Network] = {"trained": self.network}
        if "learnt" in self.request.rows:
            networks["shuffled"] = shuffled(self.network, self.request.seed)
            networks["redrawn"] = reinitialised(self.network, self.request.seed)
        return [self._subject(kind, network) for kind, network in networks.items()]

    def _subject(self, kind: NetworkKind, network: Network) -> Subject:
        """Fit every method to a network."""
        fitted, seconds = self._fitted(kind, network, self.build_data)
        network, batches = (
            fitted.network,
            Batches(self.test_data, "test data", predicts_next=network.predicts_next),
        )
        forward = forward_seconds(network, self.build_data.data)
        costs = tuple(
            MethodCost(network=kind, method=name, processor_seconds=time, forward_passes=time / forward)
            for name, time in seconds.items()
        )
        return Subject(kind, Meter(network, batches, fitted.counted), fitted.codes, costs)

    def _fitted(
        self, prefix: str, network: Network, data: BuildData
    ) -> tuple[FittedMethods, dict[str, float]]:
        """Codes of every method on some data, and the seconds that each fit took."""
        network = network.to(self.config.torch_dtype)
        executor = SharingExecutor(network, progress=self.progress, blocks=most_blocks(network))
        limit = self.config.norm_limit or 0.0
        counted = survey(data.data, self.config.skip_positions, limit, executor).counted
        inputs = MethodInputs(network, data, self.config, counted, executor)
        numbers = {method.name: str(k) for k, method in enumerate(self.methods)}
        stored = [method.name for method in self.methods if METHODS.get(method.name) is method]
        states = self.team.collect(
            stored, lambda name: self._fit(f"{prefix}.fit.{numbers[name]}", METHODS[name], inputs)
        )
        codes: dict[str, Codes] = {}
        seconds = {}
        for method in self.methods:
            if method.name in states:
                codes[method.name] = load_codes(states[method.name])
                seconds[method.name] = float(states[method.name][1]["seconds"])
            else:  # not ours to store
                begun = time.process_time()
                codes[method.name] = method.fit(inputs)
                seconds[method.name] = time.process_time() - begun
        return FittedMethods(network, counted, codes), seconds

    def _fit(self, name: str, method: RankingMethod, inputs: MethodInputs) -> State:
        """Codes of one method at the chosen places, from the store where they are there."""
        part = self.checkpoints.within(f"{name}.part")

        def fit() -> State:
            begun = time.process_time()
            codes = method.fit(replace(inputs, executor=replace(inputs.executor, checkpoints=part)))
            chosen = {place.name: codes[place.name] for place in self.places if place.name in codes}
            assert all(isinstance(code, LinearCode | CoordinateCode) for code in chosen.values())
            tensors, values = dump_codes(chosen)  # type: ignore[arg-type]
            return tensors, values | {"seconds": time.process_time() - begun}

        state = self.checkpoints.remember(name, fit, f"fit of {method.name}")
        part.forget()
        return state

    def _measure_ranks(self, subject: Subject) -> None:
        """Measure every method at every place of a network that it has a code for."""
        series: dict[str, dict[str, PointSeries]] = {}
        for plan in self.plans:
            columns = plan.places[0].columns
            parts = {
                method: PointSeries(
                    {place.layer: codes[place.name] for place in plan.places}, plan.points(codes), columns
                )
                for method, codes in subject.codes.items()
                if all(place.name in codes for place in plan.places)
            }
            if parts:
                series[plan.name] = parts
        for place, measurements in self._measured(f"{subject.kind}.rank", subject.meter, series).items():
            for method, measurement in measurements.items():
                subject.measured[method, place] = measurement

    def _measured(
        self, name: str, meter: Meter, series: Mapping[str, Mapping[str, PointSeries]]
    ) -> dict[str, dict[str, Measurement]]:
        """Measure all series, by place and method, in one pass over the data, block by block."""
        blocks = {f"{name}.{k}": block for k, block in enumerate(meter.blocks())}
        order = {task: number for number, task in enumerate(blocks)}
        keys = [(place, method) for place, parts in series.items() for method in parts]
        chosen = [series[place][method] for place, method in keys]

        def work(task: str) -> State:
            block = blocks[task]
            checkpoint = self.checkpoints.checkpoint(task, len(block.data))
            tensors = block.measure(chosen, checkpoint)
            self.progress(name.replace(".", ": "), order[task] + 1, len(blocks))
            return tensors, {}

        states = [tensors for tensors, _ in self.team.collect(list(blocks), work).values()] if keys else []
        measured: dict[str, dict[str, Measurement]] = {place: {} for place in series}
        for number, (place, method) in enumerate(keys):
            measured[place][method] = Measurement.from_tensors(states, number)
        return measured

    def _curves(self, subject: Subject) -> list[RankCurve]:
        curves = []
        first, seed = self.methods[0].name, self.request.seed
        for plan in self.plans:
            for method in (method.name for method in self.methods):
                if (measured := subject.measured.get((method, plan.name))) is None:
                    continue
                directions = sum(subject.codes[method][place.name].directions for place in plan.places)
                reference = None if method == first else subject.measured.get((first, plan.name))
                curves.append(
                    rank_curve(
                        plan, method, directions, measured,
                        network=subject.kind, seed=seed, reference=reference,
                    )
                )  # fmt: skip
        return curves

    def _differences(self, trained: Subject, other: Subject) -> list[LearntDifference]:
        """Divergence areas of the trained network minus those of another one, on the same samples."""
        rows = []
        for plan in self.plans:
            for method, place in trained.measured:
                if place != plan.name or (method, place) not in other.measured:
                    continue
                areas = [self._divergence_area(plan, subject, method) for subject in (trained, other)]
                difference = estimate(areas[0] - areas[1])
                rows.append(LearntDifference(network=other.kind, method=method, place=place, area=difference))
        return rows

    def _divergence_area(self, plan: RankPlan, subject: Subject, method: str) -> Tensor:  # [1 + draws]
        measured, seed = subject.measured[method, plan.name], self.request.seed
        first = subject.measured.get((self.methods[0].name, plan.name), measured)
        return area(plan, measured.mean_divergences(seed), first.mean_divergences(seed))

    def _directions(
        self, subject: Subject
    ) -> tuple[tuple[DirectionEffects, ...], tuple[DirectionCorrelations, ...]]:
        """Drop every direction of every place alone."""
        if "directions" not in self.request.rows:
            return (), ()
        metrics = interaction_metrics(subject.codes.get("lib", {}))
        count = min(self.request.direction_samples or len(subject.meter.data), len(subject.meter.data))
        meter = replace(subject.meter, data=subject.meter.data.head(count))
        series: dict[str, dict[str, PointSeries]] = {}
        for place in self.places:
            metric = metrics.get(place.name)
            parts = {
                method: PointSeries(
                    {place.layer: codes[place.name]},
                    single_points(place.layer, codes[place.name].directions),
                    place.columns,
                    metric,
                )
                for method, codes in subject.codes.items()
                if place.name in codes
            }
            if parts:
                series[place.name] = parts
        measured: dict[str, dict[str, Measurement]] = {method.name: {} for method in self.methods}
        for place_name, measurements in self._measured(f"{subject.kind}.directions", meter, series).items():
            for method, measurement in measurements.items():
                measured[method][place_name] = measurement
        effects = tuple(
            direction_effects(method, place, part, place in metrics)
            for method, parts in measured.items()
            for place, part in parts.items()
        )
        correlations = tuple(
            direction_correlations(method, parts, parts.keys() <= metrics.keys(), self.request.seed)
            for method, parts in measured.items()
            if parts
        )
        return effects, correlations

    def _mean_jacobians(self) -> tuple[MeanJacobianShare, ...]:
        if "mean-jacobian" not in self.request.rows:
            return ()
        network = self.network.to(self.config.torch_dtype)
        executor = Executor(network, progress=self.progress, blocks=most_blocks(network))
        every_token = self.config.model_copy(update={"norm_limit": 0.0})

        def compute() -> State:
            layers = build(network, self.build_data, every_token, executor).layers
            rows = mean_jacobians(network, layers, self.build_data.jacobian_data)
            return {}, {"rows": [row.model_dump() for row in rows]}

        make = partial(self.checkpoints.remember, "mean-jacobian", compute)
        _, values = self.team.once("mean-jacobian", make)
        return tuple(MeanJacobianShare.model_validate(row) for row in values["rows"])

    def _edges(self, subjects: Sequence[Subject]) -> tuple[NeededEdges, ...]:
        """Edges needed in every basis: of the labels, and of own outputs where networks are compared."""
        bases: dict[str, Basis] = {str(name): name for name in BASES}  # others have no edges
        tasks = {
            f"{subject.kind}.edges.{number}": (subject, bases[method.name])
            for subject in subjects
            for number, method in enumerate(self.methods)
            if method.name in bases
        }
        compares, seed = len(subjects) > 1, self.request.seed

        def work(task: str) -> State:
            subject, method = tasks[task]
            network, data = subject.meter.network, subject.meter.data
            data = data.head(min(self.request.edge_tests or len(data), len(data)))
            part = self.checkpoints.within(f"{task}.part")

            def compute() -> State:
                graph = self._graph(network, method, part.within("build"))
                labelled: dict[LabelKind, Labelled] = {}
                if subject.kind == "trained":
                    labelled["data"] = given_labels(network, data)
                if compares:
                    labelled["own"] = own_labels(network, data, seed)
                rows = [
                    row.model_dump(mode="json")
                    for labels, pairs in labelled.items()
                    for row in edge_counts(
                        network, graph, pairs, part.within(labels), self.progress,
                        kind=subject.kind, labels=labels,
                    )
                ]  # fmt: skip
                return {}, {"rows": rows}

            state = self.checkpoints.remember(task, compute, f"edges of {method}")
            part.forget()
            return state

        states = self.team.collect(list(tasks), work).values()
        return tuple(NeededEdges.model_validate(row) for _, values in states for row in values["rows"])

    def _graph(self, network: Network, basis: Basis, checkpoints: Checkpoints) -> InteractionGraph:
        """Graph of a network in a basis, with edges."""
        update: dict[str, object] = {"basis": basis, "edge_method": "gradient"}
        if BASES[basis].needs_all_tokens:
            update |= {"norm_limit": 0.0, "skip_positions": 0}
        executor = Executor(
            network, checkpoints=checkpoints, progress=self.progress, blocks=most_blocks(network)
        )
        return build(network, self.build_data, self.config.model_copy(update=update), executor)

    def _stability(self, trained: Subject) -> tuple[Agreement, ...]:
        """Agreement of fits on two halves of the data, and with networks of other seeds."""
        count, whole = self.request.jacobian_samples, self.build_data.data
        halves = []
        for number, half in enumerate(whole.blocks(2)):
            head = half.head(min(len(half), count // 2 or 1)) if count and count < len(whole) else half
            halves.append(self._fitted(f"half.{number}", self.network, BuildData(half, head, head))[0])
        first = FittedMethods(trained.meter.network, trained.meter.counted, trained.codes)
        pairs = {"halves": (halves[0], halves[1])}
        for number, (name, twin) in enumerate(self.twins.items()):
            pairs[name] = first, self._fitted(f"twin.{number}", twin, self.build_data)[0]
        rows = []
        for compared, (one, other) in pairs.items():
            for place, method in product(self.places, self.methods):
                fits = one.at(method.name, place), other.at(method.name, place)
                if fits[0] is None or fits[1] is None:
                    continue
                found = agreement((fits[0], fits[1]), trained.meter.data, self.request.seed)
                names = {"method": method.name, "place": place.name, "compared": compared}
                rows.append(Agreement.model_validate(names | found))
        return tuple(rows)


@torch.no_grad()
def forward_seconds(network: Network, data: Batches) -> float:
    """Processor seconds of a forward pass over the data, from its first samples."""
    _, inputs = next(data.chunks(chunk_size(network, data, fine=True)))
    begun = time.process_time()
    network(inputs.to(network.device))
    return (time.process_time() - begun) * len(data) / len(inputs)

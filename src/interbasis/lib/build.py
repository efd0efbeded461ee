"""The interaction graph of a network: the paper's algorithm.

1. Survey: norms of the first tokens decide which tokens count in all sums (`survey.py`).
2. Statistics: one pass over the data for means, centred Grams G = E[(f − μ)(f − μ)ᵀ] and the cores' sums
   (`statistics.py`).
3. Bases, from the last node layer to the first: whiten with the PCA of G, then rotate and scale by the
   eigenvectors of the Gram of Jacobians to the features of the next layer, M = E[JᵀJ] = VᵀΛV (`bases/`,
   `jacobians.py`).
4. Edges: one pass over the data for the root mean squares Ê of the integrated gradients (`edges.py`).

Where a pass runs, in how many processes, and what is stored of it meanwhile is the executor's business.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from interbasis.base.errors import InterbasisError
from interbasis.base.messages import logger
from interbasis.base.progress import Progress, silent
from interbasis.compute.checkpoints import State, versions
from interbasis.compute.executor import Executor, most_blocks
from interbasis.data.batches import Data
from interbasis.graph.interaction_graph import InteractionGraph, Provenance
from interbasis.graph.layer_basis import MAX_DENSE_IDENTITY, LayerBasis, dump_layers, load_layers
from interbasis.graph.settings import DEFAULT_NORM_LIMIT, BuildConfig
from interbasis.lib.bases import BASES, FitInputs
from interbasis.lib.build_data import BuildData
from interbasis.lib.drawn_rounds import fit_in_rounds, measure_edges
from interbasis.lib.empty_layers import check_features
from interbasis.lib.goal import NO_GOAL, Goal
from interbasis.lib.jacobians import Jacobians
from interbasis.lib.statistics import Statistics, StatisticsPass, Wanted, group_names
from interbasis.lib.survey import Survey, survey
from interbasis.lib.window import BuiltWindow, Window
from interbasis.network.network import Network

DRAWN_FOR_BASES = ("statistics_samples", "jacobian_samples")
"""Settings of the numbers of samples that bases are found from."""


def build(
    network: Network,
    data: BuildData,
    config: BuildConfig,
    executor: Executor,
    goal: Goal = NO_GOAL,
    keep: Callable[[InteractionGraph], None] | None = None,
) -> InteractionGraph:
    """Find the basis of every node layer and the edges between neighbours.

    Args:
        network: The network as it was given; its fingerprint identifies the model.
        data: Inputs for bases, Jacobians and edges.
        config: What is computed.
        executor: Runs passes over the data; its network is the given one in the build's dtype and place.
        goal: An error or a time, for which samples are drawn in rounds. The graph's own settings say how many
            there were in the end; with these and no goal, the same graph is built again.
        keep: Called with the graph after every round of edges but the last.

    Returns:
        The graph.

    Raises:
        InterbasisError: The data do not fit the network, or a setting does not.
    """
    with executor.clock("survey"):
        surveyed = survey(data.data, config.skip_positions, config.norm_limit or 0.0, executor)

    def graph(built: BuiltWindow) -> InteractionGraph:
        provenance = _provenance(network, data, surveyed, executor)
        provenance = provenance.model_copy(update={"changed_choices": built.changed_choices})
        return InteractionGraph(built.layers, built.edges, built.config, provenance, built.errors)

    whole = Window(executor, data, surveyed.counted)
    if len(executor.windows) > 1:
        from interbasis.lib.windows import build_windows

        built = build_windows(whole, config)
    else:
        built = build_window(whole, config, goal, keep and (lambda built: keep(graph(built))))
    result = graph(built)
    check_features(result, warns=executor.team.is_first)
    if result.scarce_layers(1) and executor.team.is_first:
        logger.warning(result.too_few_data)
    return result


def build_window(
    window: Window,
    config: BuildConfig,
    goal: Goal = NO_GOAL,
    keep: Callable[[BuiltWindow], None] | None = None,
) -> BuiltWindow:
    """Find bases from the last layer to the first, then the edges between them."""
    executor, data = window.executor, window.data
    drawn = any(getattr(config, name) is not None for name in DRAWN_FOR_BASES)
    with nullcontext() if drawn else executor.caching(data.jacobian_data):
        fit = partial(fit_bases, window, config, goal)
        state = executor.decide("bases", fit, lambda fitted: _with_samples(*fitted))
        layers = load_layers(state)
        config = config.model_copy(update={name: state[1].get(name) for name in DRAWN_FOR_BASES})
        if config.edge_rule is None:
            return BuiltWindow(layers, config)
        with executor.clock("edges"):
            return measure_edges(window, config, layers, goal, keep)


def _with_samples(layers: list[LayerBasis], config: BuildConfig) -> State:
    """Layers, and the numbers of samples that they were found from, as a state."""
    tensors, values = dump_layers(layers)
    return tensors, values | {name: getattr(config, name) for name in DRAWN_FOR_BASES}


def fit_bases(
    window: Window, config: BuildConfig, goal: Goal = NO_GOAL
) -> tuple[list[LayerBasis], BuildConfig]:
    """Collect statistics, then fit the bases with the Jacobians that they ask for.

    Where samples are drawn for them, more are drawn until the goal is reached. Returns the settings with how
    many there were.
    """
    network, data, executor, basis = window.network, window.data, window.executor, BASES[config.basis]
    rotate = _rotates_last(network, config) and window.end is None
    nodes = network.nodes if config.isolate else [replace(node, isolated=0) for node in network.nodes]
    collected: dict[int | None, list[Statistics]] = {}

    def fit(config: BuildConfig) -> list[LayerBasis]:
        count = config.statistics_samples
        if count not in collected:
            collected.clear()
            collected[count] = _collect(window, config, rotate)
        parts = collected[count]
        whole = parts[0] if count is None else Statistics.without_cores(parts)
        jacobians = Jacobians(
            executor, parts[-1] if count is None else whole, data.jacobian_data,
            () if count is None else parts, window.counted, config, window.first,
            frees_sums=goal.error is None,
        )  # fmt: skip
        drawn = jacobians.drawn_data
        repeated = nullcontext() if drawn is data.jacobian_data else executor.caching(drawn)
        with executor.clock("bases"), repeated:
            layers = basis.fit(FitInputs(nodes, whole.layers, jacobians, config, rotate, window.end))
        return [layer.measured_on(sums.count) for layer, sums in zip(layers, whole.layers, strict=True)]

    return fit_in_rounds(fit, config, goal, len(data.jacobian_data), executor)


def _collect(window: Window, config: BuildConfig, last_gram: bool) -> list[Statistics]:
    """Statistics of the data and, if given, of separate data for Jacobians; or of groups of drawn samples."""
    network, data, executor, basis = window.network, window.data, window.executor, BASES[config.basis]
    together = data.jacobian_data is data.data
    wanted = Wanted(
        grams=basis.needs_grams, last_gram=last_gram, cores=basis.needs_jacobians and together,
        counted=window.counted,
    )  # fmt: skip
    passes = [(StatisticsPass(network, wanted, "data"), data.data)]
    if config.statistics_samples is not None:
        names, drawn = group_names(config), partial(data.data.drawn, config.statistics_samples, config.seed)
        passes = [
            (StatisticsPass(network, wanted, name), drawn(slice(k, None, len(names))))
            for k, name in enumerate(names)
        ]
    elif basis.needs_jacobians and not together:
        core_sums = Wanted(grams=False, counted=window.counted)
        passes.append((StatisticsPass(network, core_sums, "jacobian_data"), data.jacobian_data))
    with executor.clock("statistics"):
        states = executor.run_all(passes)
        return [pass_.check(state) for (pass_, _), state in zip(passes, states, strict=True)]


def _rotates_last(network: Network, config: BuildConfig) -> bool:
    """Whether the last node layer is rotated."""
    rotate = network.rotate_last if config.rotate_last is None else config.rotate_last
    rotate = rotate and BASES[config.basis].kind.rotated
    last = network.nodes[-1]
    if rotate and not network.rotate_last and last.width > MAX_DENSE_IDENTITY:
        raise InterbasisError(
            f"the last node layer {last.name!r} is {last.width} wide and never rotated; leave out rotate_last"
        )
    return rotate


def _provenance(network: Network, data: BuildData, surveyed: Survey, executor: Executor) -> Provenance:
    with executor.clock("fingerprints"):
        fingerprints = data.fingerprints(executor)
    return Provenance(
        family=network.family,
        predicts_next=network.predicts_next,
        model="",
        model_name=network.name,
        class_names=network.class_names,
        feature_names=network.feature_names,
        model_fingerprint=network.fingerprint(),
        widths=tuple(node.width for node in network.nodes),
        data_fingerprints=fingerprints,
        samples={name: len(batches) for name, batches in data.by_name.items()},
        versions=versions(),
        timings=executor.clock.seconds,
        processor_timings=executor.clock.processor_seconds,
        largest_directions=surveyed.directions,
    )


def build_alone(
    network: Network, data: Data, config: BuildConfig, progress: Progress = silent
) -> InteractionGraph:
    """Build a graph in this process, where the network's weights are, and store nothing."""
    config = with_network_defaults(network, config)
    batches = BuildData.from_data(data)
    batches.check_order(config)
    executor = Executor(network.to(config.torch_dtype), progress=progress, blocks=most_blocks(network))
    return build(network, batches, config, executor)


def with_network_defaults(network: Network, config: BuildConfig) -> BuildConfig:
    """Return the settings with the defaults that depend on the network.

    Raises:
        InterbasisError: The basis does not support the network, or settings do not go together.
    """
    if config.edge_positions is not None and config.edge_group is None:
        raise InterbasisError(
            "output positions of edges are sampled for stochastic sources only; set edge_group as well, or "
            "leave edge_positions out"
        )
    basis = BASES[config.basis]
    if config.statistics_samples is not None and not basis.has_errors:
        raise InterbasisError(
            f"statistics_samples requires a basis whose Λ comes with errors, lib or random, received "
            f"{config.basis!r}; leave it out"
        )
    limited = network.predicts_next and not config.isolate_largest and not basis.needs_all_tokens
    defaults = {"dtype": network.build_dtype, "norm_limit": DEFAULT_NORM_LIMIT if limited else 0.0}
    missing = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    config = config.model_copy(update=missing)
    basis.require(network, all_tokens=not (config.norm_limit or config.skip_positions))
    return config

"""Bases and edges from samples that are drawn in rounds, until the goal of a build is reached."""

import math
import time
from collections.abc import Callable

from interbasis.compute.executor import Executor, add_sums
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.precision import eigenvalue_error
from interbasis.graph.settings import BuildConfig
from interbasis.lib.edges import EdgeSettings, EdgesPass, drawn_share
from interbasis.lib.goal import Goal
from interbasis.lib.window import BuiltWindow, Window
from interbasis.network.cores import Sums


def fit_in_rounds(
    fit: Callable[[BuildConfig], list[LayerBasis]],
    config: BuildConfig,
    goal: Goal,
    total: int,
    executor: Executor,
) -> tuple[list[LayerBasis], BuildConfig]:
    """Fit bases from drawn samples, more of them until the goal is reached.

    Args:
        fit: Fits the bases with given settings.
        config: Settings of the first round.
        goal: An error; without one there is one round.
        total: Samples that there are.
        executor: Its processes all take part.

    Returns:
        The bases, and the settings with the numbers of samples drawn.
    """
    while True:
        start, layers = time.monotonic(), fit(config)
        count = config.statistics_samples or config.jacobian_samples
        if count is None or goal.error is None:
            return layers, config
        drawn = min(count, total)
        error = max(eigenvalue_error(layer, config.eigenvalue_degrees) or 0.0 for layer in layers)
        seconds = time.monotonic() - start
        following = goal.next_total(f"bases of {count}", drawn, total, error, seconds, executor)
        if following <= drawn:
            return layers, config
        update: dict[str, int | None] = {"jacobian_samples": following}
        if config.statistics_samples is not None:
            jacobians = config.jacobian_samples
            update = {
                "statistics_samples": following if following < total else None,
                "jacobian_samples": jacobians and math.ceil(jacobians * following / drawn),
            }
        config = config.model_copy(update=update)


def measure_edges(
    window: Window,
    config: BuildConfig,
    layers: list[LayerBasis],
    goal: Goal,
    keep: Callable[[BuiltWindow], None] | None,
) -> BuiltWindow:
    """Measure the edges over all samples, or over those drawn in rounds until the goal is reached.

    Where signs or positions are sampled and all samples have been drawn, they are drawn again, with other
    signs and positions: the samples of a round have their own, by their place among all that were drawn.
    """
    assert config.edge_rule is not None
    executor, data = window.executor, window.data.edge_data
    settings = EdgeSettings(
        config.edge_rule, config.edge_sampling, window.counted, window.first, config.edge_samples is not None
    )
    edges = EdgesPass(window.network, layers, data, settings)
    if config.edge_samples is None:
        return BuiltWindow.from_sums(layers, config, edges.totals(executor.run(edges, data)))
    most = len(data) if config.edge_sampling is None else None
    rounds = [count if most is None else min(count, most) for count in config.edge_samples]
    sums: Sums = {}
    start, first, number = time.monotonic(), 0, 0
    while True:
        total = rounds[number]
        edges.begin_round(number)
        add_sums(sums, executor.run(edges, data.drawn(total, config.seed).part(number, first, total)))
        first, number = total, number + 1
        if number < len(rounds):
            continue
        config = config.model_copy(update={"edge_samples": tuple(rounds)})
        built = BuiltWindow.from_sums(layers, config, edges.totals(sums, drawn_share(total, len(data))))
        seconds, name = time.monotonic() - start, f"{edges.name} of {total}"
        following = goal.next_total(name, total, most, built.edge_error, seconds, executor)
        if following <= total:
            return built
        rounds.append(following)
        if keep is not None:
            keep(built)

"""From the precision or the time that was asked for to settings of a build, by a short trial."""

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from interbasis.base.errors import InterbasisError
from interbasis.base.messages import logger
from interbasis.compute.checkpoints import State
from interbasis.compute.shards import Shards
from interbasis.compute.team import Team, team_checkpoints
from interbasis.graph.costs import LEAST_DRAWN, Choice
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.precision import Precision, edge_error, eigenvalue_error
from interbasis.graph.settings import SAMPLED, BuildConfig, BuildTarget
from interbasis.lib.build_data import BuildData
from interbasis.lib.goal import FIRST_SHARE, NO_GOAL, Goal
from interbasis.lib.pilot import MIN_SAMPLES, PILOT_TOKENS, run_pilot
from interbasis.network.network import Network

DEFAULT_ERROR = 0.05
"""Of language models whose exact graph takes longer than `SHORT_SECONDS`."""
AIM = 0.92
"""Share of the error asked for at which a build stops. Its own estimate decides, and stopping as soon as that
is small enough favours estimates that are too small."""
MAX_OVERTIME = 1.1
"""Expected time of the coarsest graph over the time that is left, up to which a build begins."""
HURRIED_SECONDS, HURRIED_PILOT_TOKENS = 600.0, 512
"""Time below which the trial has fewer tokens, about, so that some of it is left for the build."""
SHORT_SECONDS = 60.0
PASSES_PER_COORDINATE = 8
"""An exact build takes fewer forward passes than so many per coordinate of the widest layer."""


@dataclass(frozen=True)
class Decision:
    """Settings of a build that were decided, and the goal that it pursues with them."""

    config: BuildConfig
    goal: Goal = NO_GOAL
    precision: Precision = field(default_factory=Precision)
    """What was asked for and expected."""

    def reached(self, graph: InteractionGraph) -> Precision:
        """The same with the errors of a graph."""
        degrees, sections = graph.config.eigenvalue_degrees, {}
        layers = {layer.name: eigenvalue_error(layer, degrees) or 0.0 for layer in graph.layers}
        for k, name in enumerate(graph.section_names if graph.edges else ()):
            sections[name] = 0.0
            if graph.edge_errors:
                ends = graph.layers[k : k + 2]
                sections[name] = edge_error(graph.edges[k], graph.edge_errors[k], *ends)
        return self.precision.model_copy(update={"layers": layers, "sections": sections})


def decide(
    network: Network,
    data: BuildData,
    config: BuildConfig,
    target: BuildTarget,
    *,
    folder: Path | None,
    team: Team,
    decisive: dict[str, object] | None,
    in_parts: bool,
    restart: bool = False,
) -> Decision:
    """Decide what is sampled; the first process does, and stores it until the build has ended.

    Args:
        network: The network as it computes.
        data: Data of the build.
        config: Settings with all defaults.
        target: Error or time asked for, or exact.
        folder: Folder of unfinished work.
        team: The processes of the build.
        decisive: Everything that decides the graph; None where nothing is stored.
        in_parts: Whether the build is made in parts, since memory is limited.
        restart: Discard a decision for other settings.

    Raises:
        InterbasisError: Settings do not go together.
    """
    _check(config, target, team, in_parts)
    asked = target.error is not None or target.time is not None
    shuffled = any(batches.shuffled for batches in data.by_name.values())
    automatic = network.predicts_next and not (in_parts or isinstance(team, Shards) or shuffled)
    too_few = min(map(len, data.by_name.values())) < MIN_SAMPLES
    if target.exact or config.sampled or too_few or not (asked or automatic):
        return Decision(config)
    begun = time.monotonic()
    if not asked and _is_short(network, data):
        return Decision(config)

    def choose() -> State:
        hurried = target.time is not None and target.time < HURRIED_SECONDS
        pilot = run_pilot(network, data, config, HURRIED_PILOT_TOKENS if hurried else PILOT_TOKENS)
        if target.time is not None:
            room = target.time - (time.monotonic() - begun)
            choice = _begun_small(pilot.choice_within(room))
            if choice.seconds.wall > MAX_OVERTIME * room:
                least = 1.1 * (choice.seconds.wall + target.time - room)
                raise InterbasisError(
                    f"{target.time:.0f} s do not suffice for {len(network.nodes)} node layers: the coarsest "
                    f"graph takes about {least:.0f} s on this machine; give --time {least:.0f}s or more, or "
                    "choose fewer node layers (--layers, blocks=)"
                )
        else:
            exact = pilot.choice(0.0)
            short = not asked and exact.seconds.wall < SHORT_SECONDS
            choice = exact if short else pilot.choice(AIM * (target.error or DEFAULT_ERROR))
        return {}, choice.model_dump(mode="json")

    settings = (decisive or {}) | target.model_dump()
    checkpoints = team_checkpoints(folder, "pilot", settings, team, restart=restart)
    _, values = team.once("pilot", partial(checkpoints.remember, "choice", choose))
    choice = Choice.model_validate(values)
    error = None if target.time is not None or choice.exact else target.error or DEFAULT_ERROR
    precision = Precision(error=error, time=target.time, expected_seconds=choice.seconds.wall)
    chosen = BuildConfig.validated(**config.model_dump() | choice.settings)
    if team.is_first:
        logger.info(_sentence(choice))
    deadline = None if target.time is None or choice.exact else begun + target.time
    return Decision(chosen, Goal(error and AIM * error, deadline), precision)


def _check(config: BuildConfig, target: BuildTarget, team: Team, in_parts: bool) -> None:
    given = [name for name in ("error", "time", "exact") if getattr(target, name)]
    given += [name for name in SAMPLED if getattr(config, name) is not None][: 1 if given else 0]
    if len(given) > 1:
        raise InterbasisError(
            f"{given[0]} and {given[1]} cannot be combined: an error, a time, exact or settings for sampling "
            "each decide what is sampled; leave out all but one"
        )
    if not given or target.exact:
        return
    if isinstance(team, Shards):
        raise InterbasisError(
            f"shards cannot decide together what is sampled for a given {given[0]}; name settings for "
            "sampling, or a run whose settings they take (--config)"
        )
    if in_parts:
        raise InterbasisError(
            f"a build in parts, which the limit on memory requires, cannot sample for a given {given[0]}; "
            "allow more memory, choose fewer node layers, or build exactly"
        )


def _begun_small(choice: Choice) -> Choice:
    """The choice with fewer samples in the first round of edges; those after it go by the time they take."""
    match choice.settings.get("edge_samples"):
        case (int() as count,):
            first = max(min(count, LEAST_DRAWN), int(FIRST_SHARE * count))
            return choice.model_copy(update={"settings": choice.settings | {"edge_samples": (first,)}})
        case _:
            return choice


def _is_short(network: Network, data: BuildData) -> bool:
    """Whether an exact build is short beyond doubt, from the time of one sample."""
    samples = max(map(len, data.by_name.values()))
    inputs = data.edge_data.first().to(network.device)
    start = time.perf_counter()
    network.activations_at(len(network.sections), inputs)
    seconds = samples * (time.perf_counter() - start)
    return PASSES_PER_COORDINATE * max(node.width for node in network.nodes) * seconds < SHORT_SECONDS


def _sentence(choice: Choice) -> str:
    """What was chosen, in words."""
    expected = f"about {choice.seconds.wall:,.0f} s expected"
    if choice.exact:
        return f"exact, {expected}"
    settings = ", ".join(
        f"{name.replace('_', ' ')} {value[0] if isinstance(value, tuple) else value}"
        for name, value in choice.settings.items()
        if value is not None
    )
    errors = f"errors of about {choice.jacobian_error:.1%} of Λ and {choice.edge_error:.1%} of Ê"
    return f"{settings}: {errors}, {expected}"

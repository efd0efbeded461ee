"""A first look at a language model: the graph of the blocks that a short time allows, labels, one trace."""

import time
from dataclasses import replace
from pathlib import Path

from interbasis.base.errors import InterbasisError
from interbasis.base.messages import logger
from interbasis.base.records import Record
from interbasis.graph import store
from interbasis.graph.settings import BuildRequest, BuildTarget
from interbasis.lib.build import with_network_defaults
from interbasis.lib.pilot import run_pilot
from interbasis.network.network import Network
from interbasis.run.execution import Execution, computing_network, execute
from interbasis.run.named_build import prepare

SAMPLE = Path(__file__).parents[1] / "data" / "sample.txt"
"""Text that is looked at by default, written for this project, under its licence (MIT)."""
CONTEXT = 64
"""Positions of a sample of the text."""
TRIAL_TOKENS = 512
"""Tokens of the trial that decides how many blocks are built, about: enough for errors of that size."""
FAIR_ERROR = 0.2
"""Error that the blocks are built to, about."""
BUILD_SHARE = 0.3
"""Share of the remaining time for the build; labels, the trace and the page take the rest."""
FEATURES = 4
"""Features of each layer that are labelled."""
TRACED_NODES = 16
"""Nodes of each layer that the trace follows, and how many of all are checked: each is labelled."""
WANTED_ERROR = 0.05


class FirstLook(Record):
    """Result of a first look, and what it would take to know more."""

    model: str
    blocks: tuple[str, ...]
    """Numbers of the blocks in the graph."""
    all_blocks: int
    labels: dict[str, tuple[str, ...]]
    """Labels of the leading features, by node layer."""
    prompt: str
    """First line of the text, which was traced."""
    trace: str
    """Name of the trace in the run."""
    error: float
    """Largest error of the graph."""
    seconds: float
    seconds_for_more: float
    """Expected time of all blocks at an error of 5 %, over the same text."""
    run: Path
    page: Path


def look(model: str, folder: Path, *, data: str | None = None, seconds: float = 80.0) -> FirstLook:
    """Build what a short time allows of a language model, from the last block back.

    Args:
        model: The model by name.
        folder: Folder of the run and the page; an older look is replaced.
        data: Text by name; default: a text that comes with interbasis.
        seconds: Time to take, about.

    Raises:
        InterbasisError: It is no language model with blocks, or model and data cannot be opened.
    """
    from interbasis.show.viewer import write_page

    start = time.monotonic()
    request = BuildRequest(model=model, data=data or f"text:{SAMPLE},context={CONTEXT},part=all")
    prepared = prepare(request)
    network, blocks = prepared.network, block_numbers(prepared.network)
    if not network.predicts_next or not blocks:
        raise InterbasisError(f"a first look is for language models; to look at {model}, build it")
    config = with_network_defaults(network, request.settings)
    last = _layers(network, blocks[-1:])
    cut = computing_network(network.between(last), config, None)
    pilot = run_pilot(cut, prepared.data, config, TRIAL_TOKENS)
    room = BUILD_SHARE * (seconds - (time.monotonic() - start))
    choice = pilot.choice(FAIR_ERROR)
    count = max(1, min(len(blocks), int(room / choice.seconds.wall)))
    chosen = blocks[-count:]
    logger.info(f"{count} of {len(blocks)} blocks")
    layers = tuple(_layers(network, chosen))
    resolved = BuildRequest.validated(**prepared.request.model_dump() | choice.settings | {"layers": layers})
    target = BuildTarget(exact=choice.exact)
    execution = Execution(folder=folder, restart=True, model=model, request=resolved, target=target)
    prepared = replace(prepared, network=network.between(layers), request=resolved)
    graph = execute(prepared.network, prepared.data, resolved.settings, execution)
    store.save(graph, folder, signed=True)
    run = prepared.run(graph, store.graph_digest(folder), folder, None)
    features = run.features(top=FEATURES, ends=2, bands=2, per_band=2, mean_effect_samples=8)
    prompt = SAMPLE.read_text(encoding="utf-8").splitlines()[0] if data is None else None
    sample = 0 if prompt is None else None
    traced = run.trace(prompt, sample=sample, max_nodes=TRACED_NODES, checks=TRACED_NODES)
    page = write_page([folder], folder.with_suffix(".html"))
    more = pilot.choice(WANTED_ERROR).seconds.wall * len(blocks)
    precision = graph.provenance.precision
    return FirstLook(
        model=model,
        blocks=tuple(chosen),
        all_blocks=len(blocks),
        labels={
            name: tuple(feature.label for feature in layer.features)
            for name, layer in features.layers.items()
        },
        prompt=prompt or "the first sample of the text",
        trace=traced.name,
        error=precision.reached if precision else 0.0,
        seconds=time.monotonic() - start,
        seconds_for_more=more,
        run=folder,
        page=page,
    )


def block_numbers(network: Network) -> list[str]:
    """Numbers of the blocks, in the network's order."""
    numbers = dict.fromkeys(name.rpartition(".")[2] for name in network.layers)
    return [number for number in numbers if number.isdecimal()]


def _layers(network: Network, blocks: list[str]) -> list[str]:
    """Node layers of neighbouring blocks, up to the beginning of what follows them."""
    names = network.layers
    inside = [k for k, name in enumerate(names) if name.rpartition(".")[2] in blocks]
    return list(names[inside[0] : inside[-1] + 2])

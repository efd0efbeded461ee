"""Plan of a build: time, memory, disk space and error for several targets, from a short trial."""

from itertools import pairwise

from interbasis.base.memory import resident_bytes
from interbasis.graph.costs import BuildPlan, PlanRequest
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build_data import BuildData
from interbasis.lib.memory import SectionMemory, window_bytes
from interbasis.lib.pilot import run_pilot
from interbasis.network.network import Network

ERRORS = (0.2, 0.1, 0.05, 0.02, 0.01)
"""Targets that are planned beside an exact build."""


def make_plan(
    model: str, network: Network, data: BuildData, config: BuildConfig, request: PlanRequest | None = None
) -> BuildPlan:
    """Try a build on a few samples, and say what it takes.

    Args:
        model: Name of the model.
        network: The network in the dtype and on the device of the build.
        data: Data of the build.
        config: Settings with all defaults; those for sampling are left out of account.
        request: Amount of data and machines; default: the data given, and this machine.
    """
    request = request or PlanRequest()
    pilot = run_pilot(network, data, config)
    if request.tokens is not None:
        samples = max(1, request.tokens // pilot.positions)
        counts = dict.fromkeys(("samples", "jacobian_samples", "edge_samples"), samples)
        pilot = pilot.model_copy(update=counts)
    tokens, itemsize = pilot.samples * pilot.positions, config.torch_dtype.itemsize
    sections = [SectionMemory.from_section(s, tokens, itemsize, config) for s in network.sections]
    widths = [min(node.width, tokens + 2) for node in network.nodes]
    bases = sum(16 * r * node.width for r, node in zip(widths, network.nodes, strict=True))
    edges = sum(16 * a * b for a, b in pairwise(widths)) if pilot.edges else 0
    return BuildPlan(
        model=model,
        samples=pilot.samples,
        positions=pilot.positions,
        processes=request.gpus * request.nodes,
        exact=pilot.choice(0.0),
        targets={error: pilot.choice(error) for error in ERRORS},
        memory=resident_bytes() + window_bytes(sections) + bases,
        disk=bases + edges,
        pilot=pilot,
    )

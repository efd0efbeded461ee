"""What a build will take: operations, memory and time per phase, before anything is computed."""

from interbasis.analysis.costs.calibration import SHARES
from interbasis.analysis.costs.models import described
from interbasis.analysis.costs.operations import NOTHING, Operations, Workload
from interbasis.analysis.costs.profile import machine_profile, seconds
from interbasis.analysis.costs.records import GPU_EFFICIENCY, GPUS, CostPlan, Gpu, MachineProfile, PhaseCost
from interbasis.analysis.costs.request import PlanRequest
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build import with_defaults_of
from interbasis.lib.memory import READING_A_BLOCK, SectionMemory, window_bytes
from interbasis.network.network import LayerMap, Network, sections_before

DEFAULT_CONTEXT = 1024
PROCESS_BYTES = 450_000_000
"""What Python, PyTorch and transformers take."""


def make_plan(model: str, request: PlanRequest, again: bool = False) -> CostPlan:
    """The costs of a build on this machine.

    Args:
        model: A shape (gpt2-small, smollm2-135m, llama-1b, llama-7b) or a model by name.
        request: Tokens, context and the settings of the build.
        again: Measure the machine again, instead of using a profile from the cache folder.

    Raises:
        InterbasisError: There is no such model.
    """
    network, centred = described(model)
    context = request.context or (DEFAULT_CONTEXT if network.predicts_next else 1)
    config = with_defaults_of(network, request)
    profile = machine_profile(again)
    work = Workload(network, request.tokens, context, config, centred)
    phases = work.phases()
    forward = phases.pop("forward")
    everything = sum(phases.values(), NOTHING)
    return CostPlan(
        model=model,
        tokens=request.tokens,
        context=context,
        dtype=str(config.dtype),
        basis=config.basis,
        edges=_edges(config),
        parameters=_parameters(network),
        forward=_cost("forward", forward, profile),
        phases={name: _cost(name, operations, profile) for name, operations in phases.items()},
        memory=_memory(network, work, config),
        least_memory=_least_memory(network, work, config),
        gpu_hours={gpu.name: _gpu_hours(everything, gpu) for gpu in GPUS},
        decompositions=everything.eigen / profile.eigen / 3600,
        machine=profile,
    )


def _cost(name: str, operations: Operations, profile: MachineProfile) -> PhaseCost:
    taken = seconds(profile, operations) * SHARES[name]
    return PhaseCost(flops=operations.flops, bytes=operations.bytes, seconds=taken)


def _gpu_hours(operations: Operations, gpu: Gpu) -> float:
    busy = (operations.single + operations.small) / gpu.single + operations.double / gpu.double
    busy += operations.bytes / gpu.bandwidth
    return busy / GPU_EFFICIENCY / 3600


def _edges(config: BuildConfig) -> str:
    if config.edge_method is None:
        return "none"
    if config.edge_group is None:
        return "exact"
    return f"signed sums over {config.edge_group}{'' if config.edge_group == 'positions' else ' tokens'}"


def _parameters(network: Network) -> int:
    return sum(rows * columns for section in network.sections for rows, columns in section.shapes)


def _sections(network: Network, work: Workload, config: BuildConfig) -> list[SectionMemory]:
    return [SectionMemory.of(section, work.tokens, work.itemsize, config) for section in network.sections]


def _memory(network: Network, work: Workload, config: BuildConfig) -> int:
    results = sum(16 * work.features(node.width) * node.width for node in network.nodes)
    outside = sum(tensor.numel() for tensor in network.prefix.tensors())
    outside += sum(tensor.numel() for step in network.tail for tensor in step.tensors())
    weights = work.itemsize * (_parameters(network) + outside)
    return PROCESS_BYTES + weights + results + window_bytes(_sections(network, work, config))


def _in_block(step: LayerMap) -> bool:
    return step.source.name.rpartition(".")[2].isdecimal()


def _least_memory(network: Network, work: Workload, config: BuildConfig) -> int:
    blocks: dict[str, int] = {}
    for section in network.sections:
        number = section.source.name.rpartition(".")[2]
        blocks[number] = blocks.get(number, 0) + sum(rows * columns for rows, columns in section.shapes)
    in_files = [step for step in (*sections_before(network), *network.tail) if _in_block(step)]
    outside = sum(tensor.numel() for tensor in network.prefix.tensors())
    outside += sum(tensor.numel() for step in network.tail for tensor in step.tensors())
    outside -= sum(tensor.numel() for step in in_files for tensor in step.tensors())
    largest = work.itemsize * max(blocks.values())
    reading = int(READING_A_BLOCK * largest)
    alone = max(window_bytes([one], reading) for one in _sections(network, work, config))
    return PROCESS_BYTES + largest + work.itemsize * outside + alone

"""Plan of a build: operations, memory and time per phase, before anything is computed.

Models are opened by name or by shape, as networks without weights: costs follow from shapes alone.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from interbasis.analysis.costs import records
from interbasis.analysis.costs.calibration import SHARES
from interbasis.analysis.costs.operations import NOTHING, Operations, Workload
from interbasis.analysis.costs.profile import machine_profile, seconds
from interbasis.analysis.costs.records import CostPlan, MachineProfile, PhaseCost, PlanRequest
from interbasis.base.errors import InterbasisError
from interbasis.graph.named_models import hub_options, open_model
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build import with_network_defaults
from interbasis.lib.memory import READING_A_BLOCK, SectionMemory, window_bytes
from interbasis.network.network import LayerMap, Network, Section, sections_before

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def _config(kind: str, **settings: int) -> "PretrainedConfig":
    import transformers

    return getattr(transformers, kind)(**settings)


SHAPES: dict[str, Callable[[], "PretrainedConfig"]] = {
    "gpt2-small": partial(_config, "GPT2Config"),
    "smollm2-135m": partial(
        _config, "LlamaConfig", hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, vocab_size=49152,
    ),
    "llama-1b": partial(
        _config, "LlamaConfig", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
    ),
    "llama-7b": partial(
        _config, "LlamaConfig", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, vocab_size=32000,
    ),
}  # fmt: skip
"""Shapes that are known by name, without weights."""


def open_shapes(model: str) -> tuple[Network, bool]:
    """Network of a model, of Hugging Face models without weights, and whether norms are centred.

    Raises:
        InterbasisError: It is neither a shape nor a model by name, or cannot be read.
    """
    family, _, name = model.partition(":")
    if model.lower() in SHAPES or (family == "hf" and name):
        from interbasis.models.hf.families import FAMILIES
        from interbasis.models.hf.load import skeleton_network
        from interbasis.models.hf.reading import language_config, load_config

        if model.lower() in SHAPES:
            return skeleton_network(SHAPES[model.lower()]())
        folder, blocks, output, _ = hub_options(model, name)
        config = language_config(load_config(folder))
        if config.model_type in FAMILIES:
            return skeleton_network(config, blocks, output)
    if not name and family not in ("modadd", "cifar10-conv"):
        raise InterbasisError(
            f"expected a shape ({', '.join(SHAPES)}) or a model by name (hf:…, mlp:…), received {model!r}"
        )
    return open_model(model).network, True


DEFAULT_CONTEXT = 1024
PROCESS_BYTES = 450_000_000
"""Bytes that Python, PyTorch and transformers take."""


def make_plan(model: str, request: PlanRequest, again: bool = False) -> CostPlan:
    """Plan the costs of a build on this machine.

    Args:
        model: A shape (gpt2-small, smollm2-135m, llama-1b, llama-7b) or a model by name.
        request: Tokens, context and the settings of the build.
        again: Measure the machine again, instead of using a profile from the cache folder.

    Raises:
        InterbasisError: There is no such model.
    """
    network, centred = open_shapes(model)
    context = request.context or (DEFAULT_CONTEXT if network.predicts_next else 1)
    config = with_network_defaults(network, request)
    profile = machine_profile(again)
    work = Workload(network, request.tokens, context, config, centred)
    phases = work.phases()
    forward = phases.pop("forward")
    total = sum(phases.values(), NOTHING)
    memory, least_memory = _memory(network, work)
    gpu_hours = {}
    for gpu in records.GPUS:
        busy = (total.single + total.small) / gpu.single + total.double / gpu.double
        busy += total.bytes / gpu.bandwidth
        gpu_hours[gpu.name] = busy / records.GPU_EFFICIENCY / 3600
    return CostPlan(
        model=model,
        tokens=request.tokens,
        context=context,
        dtype=str(config.dtype),
        basis=config.basis,
        edges=_edges(config),
        parameters=sum(map(_size, network.sections)),
        forward=_cost("forward", forward, profile),
        phases={name: _cost(name, operations, profile) for name, operations in phases.items()},
        memory=memory,
        least_memory=least_memory,
        gpu_hours=gpu_hours,
        decompositions=total.eigen / profile.eigen / 3600,
        machine=profile,
    )


def _cost(name: str, operations: Operations, profile: MachineProfile) -> PhaseCost:
    taken = seconds(profile, operations) * SHARES[name]
    return PhaseCost(flops=operations.flops, bytes=operations.bytes, seconds=taken)


def _edges(config: BuildConfig) -> str:
    if config.edge_method is None:
        return "none"
    if config.edge_group is None:
        return "exact"
    return f"signed sums over {config.edge_group}{'' if config.edge_group == 'positions' else ' tokens'}"


def _size(section: Section) -> int:
    """Numbers in a section's matrices."""
    return sum(rows * columns for rows, columns in section.shapes)


def _memory(network: Network, work: Workload) -> tuple[int, int]:
    """Bytes of a build without a limit on memory, and with the lowest that is possible."""
    sections = [
        SectionMemory.from_section(s, work.tokens, work.itemsize, work.config) for s in network.sections
    ]
    results = sum(16 * work.features(node.width) * node.width for node in network.nodes)
    outside = sum(tensor.numel() for tensor in network.prefix.tensors())
    outside += sum(tensor.numel() for step in network.tail for tensor in step.tensors())
    weights = work.itemsize * (sum(map(_size, network.sections)) + outside)
    blocks: Counter[str] = Counter()
    for section in network.sections:
        blocks[_block(section)] += _size(section)
    for step in (*sections_before(network), *network.tail):
        if _block(step).isdecimal():  # it stays in its file until its block is loaded
            outside -= sum(tensor.numel() for tensor in step.tensors())
    largest = work.itemsize * max(blocks.values())
    alone = max(window_bytes([section], int(READING_A_BLOCK * largest)) for section in sections)
    whole = PROCESS_BYTES + weights + results + window_bytes(sections)
    return whole, PROCESS_BYTES + largest + work.itemsize * outside + alone


def _block(step: LayerMap) -> str:
    """Number of the block that a step belongs to, from the name of its layer."""
    return step.source.name.rpartition(".")[2]

"""The cost model beside measurements: builds that it was calibrated on, and others that it is checked on."""

from interbasis.bench.measures import PHASES, forward_time
from interbasis.bench.shapes import Shape
from interbasis.costs.calibration import SHARES
from interbasis.costs.operations import Workload
from interbasis.costs.profile import machine_profile, seconds
from interbasis.fit.build import build
from interbasis.graph.settings import DEFAULT_NORM_LIMIT, BuildConfig
from interbasis.runtime.records import Record

CALIBRATED_ON = {
    "GPT2-small": (Shape(768, 3072, 12, positions=256, samples=8), "positions"),
    "GPT-2, 512 wide": (Shape(512, 2048, 8, positions=256, samples=8), 64),
    "GPT-2, 640 wide, T = 512": (Shape(640, 2560, 10, positions=512, samples=4), "positions"),
    "SmolLM2-135M": (Shape(576, 1536, 9, 3, positions=256, samples=8), "positions"),
    "Llama, 512 wide": (Shape(512, 1408, 8, 8, positions=256, samples=8), 64),
    "Llama, 768 wide": (Shape(768, 2048, 12, 4, positions=128, samples=16), "positions"),
}
CHECKED_ON = {
    "GPT-2, 512 wide, 2 blocks": (Shape(512, 2048, 8, blocks=2, positions=128, samples=16), "positions"),
    "GPT-2, 896 wide": (Shape(896, 3584, 14, positions=256, samples=8), 128),
    "GPT2-small, T = 1,024": (Shape(768, 3072, 12, positions=1024, samples=2), "positions"),
    "Llama, 640 wide": (Shape(640, 1728, 10, 5, positions=256, samples=8), "positions"),
    "SmolLM2-135M, T = 512": (Shape(576, 1536, 9, 3, positions=512, samples=4), 128),
    "Llama, 512 wide, 16 heads": (Shape(512, 1408, 16, 16, positions=128, samples=16), 64),
}
"""Shapes, and tokens of a group of signed edges."""


class Agreement(Record):
    """Processor time of one build, measured and planned, by phase."""

    measured: dict[str, float]
    planned: dict[str, float]

    @property
    def ratio(self) -> float:
        """Planned over measured, of the whole build."""
        return sum(self.planned[phase] for phase in PHASES) / sum(self.measured[phase] for phase in PHASES)


def agreement(shape: Shape, group: object, calibrated: bool = True) -> Agreement:
    """Build, and plan the same build; without calibration the plan is that of the operations alone."""
    network, tokens = shape.network(), shape.data()
    config = BuildConfig.of(dtype="float32", edge_group=group, edge_sources=1, norm_limit=DEFAULT_NORM_LIMIT)
    settings = config.model_dump()
    build(network, tokens[:2], progress=False, **settings)  # warm
    graph = build(network, tokens, progress=False, **settings)
    profile = machine_profile(again=True)
    phases = Workload(network, shape.tokens, shape.positions, config).phases()
    planned = {
        name: seconds(profile, operations) * (SHARES[name] if calibrated else 1.0)
        for name, operations in phases.items()
    }
    measured = {phase: graph.provenance.processor_timings[phase] for phase in PHASES}
    return Agreement(measured=measured | {"forward": forward_time(network, tokens).value}, planned=planned)

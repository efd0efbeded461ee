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
    "GPT-2, 64 wide, exact edges": (Shape(64, 256, 4, positions=64, samples=32), None),
    "GPT-2, 256 wide": (Shape(256, 1024, 4, positions=128, samples=32), 64),
    "Llama, 192 wide, 2 blocks": (Shape(192, 512, 3, 3, blocks=2, positions=64, samples=32), "positions"),
    "Llama, 128 wide": (Shape(128, 384, 4, 4, positions=256, samples=8), 128),
    "GPT-2, 192 wide": (Shape(192, 768, 6, positions=256, samples=8), "positions"),
    "GPT-2, 384 wide": (Shape(384, 1536, 6, positions=64, samples=32), 64),
}
CHECKED_ON = {
    "GPT-2, 128 wide, 2 blocks": (Shape(128, 512, 2, blocks=2, positions=64, samples=48), 32),
    "Llama, 256 wide": (Shape(256, 704, 4, 4, positions=128, samples=24), "positions"),
    "GPT-2, 320 wide": (Shape(320, 1280, 5, positions=128, samples=24), 128),
    "Llama, 128 wide, 8 heads": (Shape(128, 512, 8, 8, positions=128, samples=24), 64),
    "GPT-2, 96 wide, exact edges": (Shape(96, 384, 3, positions=96, samples=24), None),
    "Llama, 320 wide": (Shape(320, 896, 5, 5, positions=64, samples=32), 64),
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
    settings = {"dtype": "float32", "edge_group": group, "edge_sources": 1, "norm_limit": DEFAULT_NORM_LIMIT}
    config = BuildConfig.of(**settings)
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

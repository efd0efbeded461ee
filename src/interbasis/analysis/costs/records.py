"""Records of costs: the request, the machine, and the plan."""

from pydantic import Field

from interbasis.base.records import Record
from interbasis.graph.settings import BuildConfig

PROFILE_VERSION = 2


class PlanRequest(BuildConfig):
    """Settings of the build that is planned."""

    tokens: int = Field(512_000, ge=1)
    """Tokens of data, or samples of a network without positions."""
    context: int | None = Field(None, ge=1)
    """Positions of a sequence; default: 1024 for language models, else 1."""


class MachineProfile(Record):
    """Rates per second of processor time, at a number of threads."""

    version: int = PROFILE_VERSION
    machine: str
    threads: int
    torch: str
    single: float
    """Floating-point operations of large products in float32."""
    double: float
    """The same in float64."""
    small: float
    """Floating-point operations of products of heads, in float32."""
    eigen: float
    """Cubed widths of eigendecompositions in float64."""
    bytes: float
    """Bytes read and written by elementwise operations, into memory that is new."""
    calls: float
    """Calls of PyTorch on small tensors."""


class Gpu(Record):
    """A GPU by the peak figures that its maker states, in operations per second."""

    name: str
    single: float
    """float32, without reduced precision (TF32)."""
    double: float
    """float64, with tensor cores."""
    bandwidth: float
    """Bytes of memory per second."""


GPUS = (
    Gpu(name="A100", single=19.5e12, double=19.5e12, bandwidth=2.0e12),
    Gpu(name="H100", single=67e12, double=67e12, bandwidth=3.35e12),
)  # fmt: skip
GPU_EFFICIENCY = 0.4
"""The share of the peak that is assumed to be reached; nothing here was run on a GPU."""


class PhaseCost(Record):
    """One phase of a build."""

    flops: float
    """Floating-point operations."""
    bytes: float
    """Bytes moved by elementwise operations."""
    seconds: float
    """Processor time on this machine, at the number of threads of the profile."""


class CostPlan(Record):
    """Costs of a build by phase, its memory, and estimates for GPUs."""

    model: str
    tokens: int
    context: int
    dtype: str
    basis: str
    edges: str
    parameters: int
    """Numbers in the network's matrices, structure (identities, copies) included."""
    forward: PhaseCost
    """One pass of the data through the network: the floor for anything that looks at all data."""
    phases: dict[str, PhaseCost]
    memory: int
    """Bytes of a build without a limit on memory."""
    least_memory: int
    """Bytes of a build with as low a limit as is possible, its blocks loaded one at a time."""
    gpu_hours: dict[str, float]
    """By GPU: arithmetic from peak figures and an assumed efficiency, decompositions left out. Not run."""
    decompositions: float
    """Hours of decompositions, which are done on the CPU."""
    machine: MachineProfile

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases.values())

    @property
    def forward_passes(self) -> float:
        """The build in units of one pass of the data through the network."""
        return self.seconds / self.forward.seconds

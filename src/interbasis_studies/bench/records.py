"""Records of a benchmark."""

from interbasis.base.records import Record

VERSION = 1


class Measure(Record):
    """A processor time: the least of a few runs, and how far the median was from it."""

    value: float
    spread: float = 0.0
    """The median of the runs over the least of them, minus 1."""


class BenchMachine(Record):
    """The machine of a benchmark."""

    processor: str
    threads: int
    torch: str
    interbasis: str
    load: float
    """Processes that waited for the processor when the benchmark began."""


class Sweep(Record):
    """Processor time of every phase while one size grows and all others stay."""

    sizes: tuple[int, ...]
    seconds: dict[str, tuple[float, ...]]
    """By phase."""
    exponents: dict[str, float]
    """Slopes of straight lines through the logarithms, by phase."""


class Scaling(Record):
    """One build by one process and by two, each with one thread."""

    one: float
    """Seconds on the wall."""
    two: float
    speedup: float


class BenchResult(Record):
    """All measurements. Ratios have names as `phases/gpt2/edges`, so that two results can be compared."""

    version: int = VERSION
    quick: bool
    machine: BenchMachine
    ratios: dict[str, Measure]
    sweeps: dict[str, Sweep]
    """By the size that grows: tokens, width, context, heads, depth."""
    peak_bytes: dict[str, int]
    """Peak memory of builds, each in a process of its own."""
    scaling: Scaling | None = None


class RatioChange(Record):
    """A ratio that differs from the baseline."""

    name: str
    before: float
    now: float
    allowed: float
    """Largest factor that noise explains."""
    slower: bool


class BenchComparison(Record):
    """A result beside a baseline."""

    changes: tuple[RatioChange, ...]
    """Changes beyond noise."""
    compared: int

    @property
    def slower(self) -> tuple[RatioChange, ...]:
        return tuple(change for change in self.changes if change.slower)

"""What a build costs, for a terminal."""

from rich.console import RenderableType
from rich.text import Text

from interbasis.analysis.costs.records import GPU_EFFICIENCY, CostPlan, PhaseCost
from interbasis.base.memory import format_bytes
from interbasis.show.terminal.tables import make_table


def plan_tables(plan: CostPlan) -> list[RenderableType]:
    """Phases, memory, and GPUs."""
    head = Text.assemble(
        ("\n" + plan.basis.upper(), "bold"), " of ", (plan.model, "bold"),
        f" · {plan.tokens:,} tokens in sequences of {plan.context:,} · {plan.dtype} · edges: {plan.edges}\n",
    )  # fmt: skip
    table = make_table("Phases", "phase", "operations", "bytes moved", "time", "forward passes")

    def row(name: str, cost: PhaseCost) -> None:
        passes = cost.seconds / plan.forward.seconds
        table.add_row(
            name, _amount(cost.flops), format_bytes(cost.bytes), duration(cost.seconds), f"{passes:.1f}"
        )

    for name, cost in plan.phases.items():
        row(name, cost)
    row("one forward pass", plan.forward)
    table.caption = (
        f"A build takes {duration(plan.seconds)} with {plan.machine.threads} "
        f"thread{'s' if plan.machine.threads > 1 else ''}, as long as "
        f"{plan.forward_passes:.1f} forward passes."
    )
    gpus = ", ".join(f"{hours:,.2g} hours on one {name}" for name, hours in plan.gpu_hours.items())
    text = Text(
        f"\nMemory: {format_bytes(plan.memory)} without a limit; with --memory at least "
        f"{format_bytes(plan.least_memory)}.\n"
        f"On GPUs (computed from {GPU_EFFICIENCY:.0%} of their peak rates, not measured): {gpus}, and "
        f"{duration(3600 * plan.decompositions)} of decompositions on this machine's CPU.\n"
    )
    return [head, table, text]


def duration(seconds: float) -> str:
    """In the unit that people would use."""
    for unit, size in (("years", 365.25 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _amount(flops: float) -> str:
    for unit, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if flops >= size:
            return f"{flops / size:,.1f} {unit}FLOP"
    return f"{flops:.0f} FLOP"

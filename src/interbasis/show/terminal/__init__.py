"""Results as tables for a terminal: one function per kind of result."""

from interbasis.show.terminal.ablation import ablation_tables
from interbasis.show.terminal.comparison import comparison_tables
from interbasis.show.terminal.controls import control_tables
from interbasis.show.terminal.curves import curve_tables
from interbasis.show.terminal.features import feature_tables
from interbasis.show.terminal.modules import module_tables
from interbasis.show.terminal.plan import plan_tables
from interbasis.show.terminal.sections import section_tables
from interbasis.show.terminal.summary import summary_tables
from interbasis.show.terminal.traces import steer_tables, trace_tables

__all__ = [
    "ablation_tables",
    "comparison_tables",
    "control_tables",
    "curve_tables",
    "feature_tables",
    "module_tables",
    "plan_tables",
    "section_tables",
    "steer_tables",
    "summary_tables",
    "trace_tables",
]

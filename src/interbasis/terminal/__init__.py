"""Results as tables for a terminal: one function per kind of result."""

from interbasis.terminal.ablation import ablation_tables
from interbasis.terminal.comparison import comparison_tables
from interbasis.terminal.controls import control_tables
from interbasis.terminal.curves import curve_tables
from interbasis.terminal.features import feature_tables
from interbasis.terminal.modules import module_tables
from interbasis.terminal.plan import plan_tables
from interbasis.terminal.sections import section_tables
from interbasis.terminal.summary import summary_tables
from interbasis.terminal.traces import steer_tables, trace_tables

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

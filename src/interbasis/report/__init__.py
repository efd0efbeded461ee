"""The report of one run or several: what was run, what was found, how sure one may be, in one HTML page."""

from interbasis.report.standards import Statement, statements
from interbasis.report.writing import write_report

__all__ = ["Statement", "statements", "write_report"]

"""The report of one run or several: what was run and measured, and what it allows one to say."""

from interbasis.show.report.claims import Claim, claims
from interbasis.show.report.writing import write_figures, write_report

__all__ = ["Claim", "claims", "write_figures", "write_report"]

"""The report of one run or several: what was run and measured, and what it allows one to say."""

from interbasis.show.report.claims import ReportClaim, claims
from interbasis.show.report.page import draw_figure, report_page, write_figures, write_report

__all__ = ["ReportClaim", "claims", "draw_figure", "report_page", "write_figures", "write_report"]

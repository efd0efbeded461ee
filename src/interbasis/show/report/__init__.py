"""The report of one run or several: what was run and measured, and what it allows one to say."""

from interbasis.show.report.claims import claims
from interbasis.show.report.page import draw_figure, report_page, write_figures, write_report
from interbasis.show.sentences import ReportClaim

__all__ = ["ReportClaim", "claims", "draw_figure", "report_page", "write_figures", "write_report"]

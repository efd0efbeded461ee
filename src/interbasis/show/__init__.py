"""Readers of results: terminal, figures, page, report, export."""

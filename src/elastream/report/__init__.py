"""Writes the self-contained HTML report of a run."""

from elastream.report.page import write_report

__all__ = ["write_report"]

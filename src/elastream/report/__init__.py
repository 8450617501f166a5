"""Writes the self-contained HTML report of a run."""

from elastream.report.page import write_report

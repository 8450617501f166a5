"""What people read after a run: the self-contained HTML report."""

from elastream.report.page import write_report

__all__ = ["write_report"]

"""Thirty days by a clock that jumps, and 10,000 real batches on Spark: disk, files, memory and cost of a batch by tenths.

By the clock all that a run writes and remembers for months is real (`_soak.py`): loop, journals, leases, plan, recording,
durable edge, change log; Spark is left out. On Spark (`_soak_spark.py`) the batches are real, on one warm cluster. Details
are kept for a day, and for a minute, so all must be level from the first tenth on: the last tenth is compared with it.

python benchmarks/soak.py [--quick] [--part clock|spark] [--json FILE]     an hour on two cores; with --quick three minutes
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _common import Report, main, progress
from _soak import DAYS, Tenth, soak
from _soak_spark import BATCH, TenthOnSpark, soak_on_spark

BATCHES, QUICK = 10_000, 1_500
"""By the clock."""
ON_SPARK, QUICK_ON_SPARK = 10_000, 200
"""On Spark; the quick form shows that it works, and proves nothing of what is level."""
MEMORY = Path("/dev/shm")
"""Where the files by the clock are, if it is there: ext4 looks at the inodes freed in the last seconds before it makes a
folder (measured: 40 us where nothing was removed, 140 us while folders are, 30 us after 40 s of rest). The clock here
removes in two minutes what a month removes, from the second tenth on, and that would be what a batch costs."""
BAR = 1.1
SOURCE = "the project's bar"
NAMES = {"cost": "CPU a batch", "megabytes": "bytes on disk", "files": "files", "memory": "memory"}


def compared(report: Report, tenths: Sequence[Tenth | TenthOnSpark], names: dict[str, str], proves: bool) -> None:
    """Take in the figures of a part, and compare its last tenth with its first; a quick form is too short to prove it."""
    for name, what in names.items():
        report.figures[what] = [getattr(tenth, name) for tenth in tenths]
        ratio = getattr(tenths[-1], name) / getattr(tenths[0], name)
        if proves:
            report.at_most(f"{what}, last tenth over first", ratio, BAR, SOURCE)
        else:
            report.figures[f"{what}, last tenth over first"] = ratio


def by_clock(report: Report, quick: bool) -> None:
    """Thirty days."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="soak-", dir=memory) as folder:
        found = soak(Path(folder), QUICK if quick else BATCHES, progress)
    compared(report, found.tenths, NAMES, proves=not quick)
    report.at_most("rows of the result that are wrong", found.wrong, 0, SOURCE)
    report.at_most("records of the edge not read, or read twice", abs(found.read - found.written), 0, SOURCE)
    report.figures |= {
        "days": DAYS, "batches": QUICK if quick else BATCHES, "leases": found.summary.leases, "moves": found.moves,
        "summary at the end, CPU s": found.ended_seconds,
    }  # fmt: skip
    report.environment |= {"kept": "details for a day", "files by the clock": "in memory" if memory else "on disk"}


def on_spark(report: Report, quick: bool) -> None:
    """Real batches."""
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        found = soak_on_spark(Path(folder), QUICK_ON_SPARK if quick else ON_SPARK, progress)
    names = {**NAMES, "hosts": "memory of hosts"}
    compared(report, found.tenths, {name: f"Spark: {what}" for name, what in names.items()}, proves=not quick)
    report.figures |= {
        "Spark: batches": found.batches, "Spark: records": found.records, "Spark: moves": found.moves,
        "Spark: seconds a batch, median of tenths": statistics.median(tenth.seconds for tenth in found.tenths),
    }  # fmt: skip
    report.at_most("Spark: words counted wrong", found.wrong, 0, SOURCE)
    report.at_most("Spark: starts of the query after its first", found.starts - 1, 0, SOURCE)
    if not quick:
        report.at_least("Spark: batches", found.batches, ON_SPARK, SOURCE)
    report.environment["on Spark"] = f"a batch each {BATCH:g} s at best; details for a minute"


def measure(arguments: argparse.Namespace) -> Report:
    """Run it, and compare its last tenth with its first."""
    report = Report()
    if arguments.part != "spark":
        by_clock(report, arguments.quick)
    if arguments.part != "clock":
        on_spark(report, arguments.quick)
    return report


def line(report: Report) -> str:
    """The result in a line."""
    figures = report.figures
    said = []
    if "days" in figures:
        said.append(f"{figures['days']:g} days, {figures['batches']:,} batches")
    if "Spark: batches" in figures:
        said.append(f"{figures['Spark: batches']:,} batches on Spark")
    ratios = [f"{check.name.removesuffix(', last tenth over first')} {check.value:.2f}" for check in report.checks
              if check.name.endswith("first")]  # fmt: skip
    return f"{', '.join(said)}; last tenth over first: {', '.join(ratios)}"


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=("clock", "spark"), help="one alone; default both")


if __name__ == "__main__":
    main("soak", __doc__.splitlines()[0], measure, line, more)

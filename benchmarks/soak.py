"""Thirty days in minutes: sizes on disk, number of files, memory and cost of a batch, by tenths of the time.

All that a run writes and remembers for months is real (`_soak.py`): loop, journals, leases, plan, recording, durable edge,
change log; the clock jumps, and Spark is left out. Details are kept for a day, so all must be level from the first tenth,
three days, on: of each figure the last tenth is compared with the first.

python benchmarks/soak.py [--quick] [--json FILE]        10,000 batches in some 10 minutes; with --quick 3,000 in three
"""

import argparse
import tempfile
from pathlib import Path

from _common import Report, main, progress
from _soak import DAYS, soak

BATCHES, QUICK = 10_000, 3_000
BAR = 1.1
SOURCE = "the project's bar"


def measure(arguments: argparse.Namespace) -> Report:
    """Run it, and compare its last tenth with its first."""
    report, batches = Report(), QUICK if arguments.quick else BATCHES
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        found = soak(Path(folder), batches, progress)
    first, last = found.tenths[0], found.tenths[-1]
    names = {"cost": "CPU a batch", "megabytes": "bytes on disk", "files": "files", "memory": "memory"}
    for name, what in names.items():
        report.figures[what] = [getattr(tenth, name) for tenth in found.tenths]
        ratio = getattr(last, name) / getattr(first, name)
        report.at_most(f"{what}, last tenth over first", ratio, BAR, SOURCE)
    report.at_most("rows of the result that are wrong", found.wrong, 0, SOURCE)
    report.at_most("records of the edge not read, or read twice", abs(found.read - found.written), 0, SOURCE)
    report.figures["days"] = DAYS
    report.figures["batches"] = batches
    report.figures["leases"], report.figures["moves"] = found.summary.leases, found.moves
    report.figures["summary at the end, CPU s"] = found.ended_seconds
    report.environment["kept"] = "details for a day"
    return report


def line(report: Report) -> str:
    """The result in a line."""
    ratios = ", ".join(f"{check.name.split(',')[0]} {check.value:.2f}" for check in report.checks[:4])
    return f"{report.figures['days']:g} days, {report.figures['batches']:,} batches, last tenth over first: {ratios}"


if __name__ == "__main__":
    main("soak", __doc__.splitlines()[0], measure, line)

"""2,000 random moves, kills and decommissions under load: the query never starts again and its state stays exact.

python benchmarks/churn.py [--quick] [--json FILE]        about 80 minutes on two free cores
"""

import argparse
from dataclasses import asdict
from typing import Any

from _churn import churn
from _common import Report, main, progress

EVENTS, QUICK = 2000, 50


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    events = QUICK if arguments.quick else EVENTS
    found = churn(events, progress=progress)
    report.figures = asdict(found)
    report.environment["hosts"] = "four processes of one slot each, sharing the machine's cores"
    report.at_least("events", found.moves + found.kills + found.decommissions, events, "the project's bar")
    report.at_most("starts of the query after its first", found.starts, 0, "the project's bar")
    report.at_most("counts that differ from a batch query's", found.wrong, 0, "the project's bar")
    return report


def line(report: Report) -> str:
    figures: dict[str, Any] = report.figures
    return (
        f"{figures['moves']} moves, {figures['kills']} kills, {figures['decommissions']} decommissions in "
        f"{figures['batches']} batches, {figures['seconds']:.0f} s; {figures['wrong']} counts wrong"
    )


if __name__ == "__main__":
    main("churn", __doc__.splitlines()[0], measure, line)

"""500 random events under load, on both state stores: the query never starts again and its counts stay exact.

    python benchmarks/churn.py [--quick] [--events N] [--store memory|disk] [--json FILE]

Moves of state partitions and tokens, hosts killed (one, several, a whole fault zone) and given back, executors that stand
still for 3 s and go on; with one copy of each state partition.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from _churn import HOSTS, PARTITIONS, REPLICAS, churn, schedule
from _common import Report, main, progress

from elastream.evaluation.findings import Check
from elastream.settings import StateStore

EVENTS, QUICK = 500, 40
STORES: Sequence[StateStore] = ("memory", "disk")


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    events = QUICK if arguments.quick else arguments.events
    stores: Sequence[StateStore] = STORES if arguments.store is None else (arguments.store,)
    found = [churn(schedule(events // len(stores)), store=store, progress=progress) for store in stores]
    report.figures = {
        each.store: {name: value for name, value in asdict(each).items() if name != "store"} for each in found
    }
    report.environment["hosts"] = (
        f"{HOSTS} of one slot each in two fault zones; {PARTITIONS} partitions, {REPLICAS} copy each"
    )
    done = sum(sum(each.events.values()) for each in found)
    # Fewer prove less, and miss nothing.
    report.checks.append(Check("events", done, f">= {EVENTS}", done >= EVENTS or None, "the project's bar"))
    report.at_most("starts of the query after its first", sum(each.starts for each in found), 0, "the project's bar")
    report.at_most("counts that differ from a plain count", sum(each.wrong for each in found), 0, "the project's bar")
    return report


def line(report: Report) -> str:
    both = report.figures.values()
    kinds = {kind: sum(each["events"].get(kind, 0) for each in both) for kind in next(iter(both))["events"]}
    return (
        f"{', '.join(f'{count} x {kind}' for kind, count in sorted(kinds.items()))}; "
        f"{sum(each['lost'] for each in both)} hosts lost in {sum(each['batches'] for each in both)} batches, "
        f"{sum(each['opened'] for each in both)} state partitions of lost zones opened from copies; "
        f"{sum(each['wrong'] for each in both)} counts wrong"
    )


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=EVENTS, help=f"of all stores together; default {EVENTS}")
    parser.add_argument("--store", choices=STORES, help="one state store alone; default both")


if __name__ == "__main__":
    main("churn", __doc__.splitlines()[0], measure, line, more)

"""What Autopilot costs, and what it is good for, on queries that someone else wrote.

    python benchmarks/autopilot.py [--quick] [--json FILE] [--html FILE] [--part cost|growth|skew|live-skew]

cost: ten queries with 200 state partitions each, a look every 5 s. CPU seconds of Autopilot's own threads, Python's and the
JVM's, are read from /proc; besides, those of the whole process and its JVM with Autopilot and without, in turn. growth: the
same CPU-bound query on one executor that grows to four, each held to a third of a core, with Spark alone and with Autopilot
in turn. skew: loads by Zipf's law, planned by its policy, beside the exact solver's packing. live-skew: a query with
keys by Zipf's law on three such executors, beside the same. On two free cores cost and growth take about 15 minutes each,
live-skew 5, skew 2.
"""

import argparse

from _autopilot_cost import measure_cost
from _autopilot_growth import measure_growth
from _autopilot_live_skew import measure_live_skew
from _autopilot_skew import measure_skew
from _common import Report, each_check, main

PARTS = {"skew": measure_skew, "live-skew": measure_live_skew, "cost": measure_cost, "growth": measure_growth}


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    for name, part in PARTS.items():
        if arguments.part in (None, name):
            part(report, arguments.quick)
    return report


if __name__ == "__main__":
    main(
        "autopilot", __doc__.splitlines()[0], measure, each_check, lambda p: p.add_argument("--part", choices=tuple(PARTS))
    )

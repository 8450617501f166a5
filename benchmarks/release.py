"""What it costs to give hosts back under load: the longest batch while one leaves, against the median batch before.

python benchmarks/release.py [--quick] [--json FILE]
"""

import argparse
import statistics
import time

from _cluster import word_count
from _common import Report, main, progress

from elastream.model.action import DrainHost, MoveTask, ReleaseHost, SetParallelism
from elastream.model.cloud import HostState
from elastream.model.observation import Metric
from elastream.planning.placement import balance
from elastream.workload import constant

BAR = 1.5
LINES_PER_SECOND = 2000
BEFORE = 15
"""Batches that the median before a release is taken of."""


def measure(arguments: argparse.Namespace) -> Report:
    releases = 1 if arguments.quick else 3
    seconds = 150 + 45 * releases
    report, ratios = Report(), []
    with word_count(constant(LINES_PER_SECOND, lasts=seconds), hosts=releases + 1, max_hosts=releases + 1) as bench:
        plant = bench.plant
        plant.apply(SetParallelism("source", releases + 1))
        bench.steady(8)
        for action in balance(plant.observe(), weigh=False):
            assert isinstance(action, MoveTask)
            plant.apply(action)
        bench.observe_until(lambda: not plant.placing.wanted(), 60, "state spread over the hosts")
        bench.steady(5)
        for number in range(releases + 1, 1, -1):
            host = f"h{number}"
            median = bench.steady(BEFORE)
            began = time.time()
            plant.apply(DrainHost(host))
            bench.observe_until(
                lambda host=host: plant.observe().hosts.value(host, Metric.TASKS) == 0 and not plant.placing.wanted(),
                60,
                f"state moved off {host}",
            )
            plant.apply(SetParallelism("source", number - 1))
            plant.apply(ReleaseHost(host))
            bench.observe_until(
                lambda host=host: plant.hosts.leases[host].state is HostState.RELEASED, 60, f"{host} released"
            )
            bench.steady(3)
            longest = max(bench.batches(began))
            ratios.append(longest / median)
            progress(f"{host}: median before {median:.3f} s, longest until three batches after {longest:.3f} s")
        bench.observe_until(lambda: plant.finished, seconds + 120, "the load was done")
        exact = bench.counts_are_exact()
        report.figures = {"ratios": ratios, "records": plant.telemetry.rows, "batches": plant.telemetry.batches}
        report.environment["hosts"] = plant.confinement
    report.at_most(
        "longest batch over median before, median of releases", statistics.median(ratios), BAR, "the project's bar"
    )
    report.at_least("counts exact", float(exact), 1, "the project's bar")
    return report


def line(report: Report) -> str:
    ratios = ", ".join(f"{ratio:.2f}" for ratio in report.figures["ratios"])
    return (
        f"longest batch while a host leaves, over the median before: {ratios}; {report.figures['records']:,} records exact"
    )


if __name__ == "__main__":
    main("release", __doc__.splitlines()[0], measure, line)

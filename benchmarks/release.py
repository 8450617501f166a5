"""Cost of giving hosts back under load: the longest batch while one leaves, over the median before. 15 minutes."""

import argparse
import statistics
import time
from typing import Any

from _cluster import Bench, word_count
from _common import Report, main, progress

from elastream.core.action import DrainHost, MoveTask, ReleaseHost, SetParallelism
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.loads import constant
from elastream.policies.common.placement import balance

BAR = 1.5
HOSTS, LINES_PER_SECOND = 4, 2000
"""Two of four hosts of half a core can carry this load, about as full as `threshold` lets them be; one could not."""
BEFORE = 15  # batches of the median before a release


def measure(arguments: argparse.Namespace) -> Report:
    releases = 1 if arguments.quick else 2
    report = Report()
    found = [run(report, releases) for _ in range(1 if arguments.quick else 3)]
    ratios = [ratio for each in found for ratio in each["ratios"]]
    report.figures = {
        "ratios": ratios,
        "records": sum(each["records"] for each in found),
        "cores used after, of those left": [each["used"] for each in found],
    }
    report.median_at_most("longest batch over median before, median of releases", ratios, BAR)
    report.at_least("counts exact", float(all(each["exact"] for each in found)), 1)
    return report


def give_back(bench: Bench, host: str, parallelism: int) -> float:
    """Return the longest batch up to three batches after the release, over the median before it."""
    plant, median = bench.plant, bench.steady(BEFORE)
    began = time.time()
    plant.apply(DrainHost(host))
    bench.observe_until(
        lambda: plant.observe().hosts.value(host, Metric.TASKS) == 0 and not plant.placing.targets(),
        60,
        f"state moved off {host}",
    )
    plant.apply(SetParallelism("source", parallelism))
    plant.apply(ReleaseHost(host))
    bench.observe_until(lambda: plant.hosts.leases[host].state is HostState.RELEASED, 60, f"{host} released")
    bench.steady(3)
    longest = max(bench.batches(began))
    progress(f"{host}: median before {median:.3f} s, longest until three batches after {longest:.3f} s")
    return longest / median


def run(report: Report, releases: int) -> dict[str, Any]:
    seconds = 130 + 30 * releases
    with word_count(constant(LINES_PER_SECOND, lasts=seconds), hosts=HOSTS, max_hosts=HOSTS) as bench:
        plant = bench.plant
        report.environment["hosts"] = plant.confinement
        plant.apply(SetParallelism("source", HOSTS))
        bench.steady(8)
        for action in balance(plant.observe()):
            assert isinstance(action, MoveTask)
            plant.apply(action)
        bench.observe_until(lambda: not plant.placing.targets(), 60, "state spread over the hosts")
        bench.steady(5)
        ratios = [give_back(bench, f"h{number}", number - 1) for number in range(HOSTS, HOSTS - releases, -1)]
        after = plant.observe()
        used = statistics.mean(after.hosts.value(host, Metric.CPU) for host in after.usable)
        bench.observe_until(lambda: plant.finished, seconds + 120, "the load was done")
        return {"ratios": ratios, "used": used, "records": plant.queries.telemetry.rows, "exact": not bench.wrong_counts()}


if __name__ == "__main__":
    main("release", __doc__, measure)

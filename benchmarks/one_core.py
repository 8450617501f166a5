"""Gain of hosts of one core from optimising late: records/s from their start on, and a host that joins. 45 minutes.

A count in native Spark on two hosts of one core, a full batch always ready, in three ways, each on a cluster of its own, in
random order: executors as Java starts them, with the first compiler tier alone, and optimising late (the default).
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from _common import Report, in_random_order, main, with_median

from elastream.spark.jvm import session
from elastream_papers.thesis.resilience.bed import bed
from elastream_papers.thesis.resilience.job import Job

JOB = Job(keys=50_000, rows=50_000)
HOSTS, AFTER = 2, 10
WAYS: Mapping[str, Sequence[str]] = {
    "as Java does": (),
    "first tier alone": session.SMALL_JVM,
    "late": session.ONE_CORE_JVM,
}
WINDOW, THIRD = 60.0, 120.0
"""Seconds that records/s are taken over, and after which the third minute begins; of `--quick`, the QUICK part of them."""
QUICK = 0.25


@dataclass(frozen=True, slots=True)
class Measurement:
    """Records/s in the first and third window, seconds until a leased host works, longest batch over the median before."""

    first: float
    third: float
    leased: float
    longest: float


def measured(way: str, part: float) -> Measurement:
    session.ONE_CORE_JVM = tuple(WAYS[way])  # type: ignore[assignment]
    with bed(JOB, HOSTS) as made:
        began = time.monotonic()
        first = made.rate(part * WINDOW)
        time.sleep(max(0.0, began + part * THIRD - time.monotonic()))
        third = made.rate(part * WINDOW)
        normal, asked = made.normal(), time.time()
        made.lease(list(made.plant.context.host_types.values()))
        leased = time.time() - asked
        made.spread()
        made.more(AFTER)
        longest = max(end - start for start, end in made.batches() if end > asked)
    return Measurement(first, third, leased, longest / normal)


def measure(arguments: argparse.Namespace) -> Report:
    rounds, part = (1, QUICK) if arguments.quick else (arguments.rounds, 1.0)
    found = in_random_order(list(WAYS), rounds, lambda way: measured(way, part))
    report = Report()
    for name in ("first", "third", "leased", "longest"):
        report.figures[name] = {way: with_median([getattr(each, name) for each in all_of]) for way, all_of in found.items()}

    def over(name: str, other: str) -> list[float]:
        return [getattr(a, name) / getattr(b, name) for a, b in zip(found["late"], found[other], strict=True)]

    java, tier = "over Java's own way", "over the first tier"
    report.median_at_most(f"seconds until a leased host works, {java}", over("leased", "as Java does"), 0.8)
    report.median_at_least(f"records/s in the first minute, {java}", over("first", "as Java does"), 1.0)
    report.median_at_least(f"records/s in the third minute, {java}", over("third", "as Java does"), 0.85)
    report.median_at_least(f"records/s in the third minute, {tier}", over("third", "first tier alone"), 1.2)
    return report


if __name__ == "__main__":
    main("one_core", __doc__, measure, rounds=3)

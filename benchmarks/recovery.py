"""How long a lost host costs: with standby copies, without, and where the query is started again instead.

    python benchmarks/recovery.py [--quick] [--rounds N] [--json FILE]

A count over a large state on four hosts (`elastream.experiments.resilience.bed`). In each round, in random order and on a
cluster of its own each: with a copy of each state partition (`r = 1`) and without, a host is killed FAULTS times in the
middle of a batch, and another one leased in its place; and the same where the query is then stopped and started again from
its checkpoint. Recovery is the time from the kill to the commit of the first batch that began after it and takes what batches
took before. Then the records/s of the query at full speed, with copies and without, over a small and a large state.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from _common import Report, main, progress

from elastream.experiments.resilience.bed import Bed, Fault, Job, bed

HOSTS = 4
LARGE = Job(keys=2_000_000, rows=100_000)
"""A state of which a host holds a quarter: some seconds to load, as `state` in the figures says."""
FULL_SPEED = Job(keys=200_000, rows=60_000, pace=0.0)
FAULTS, ROUNDS = 3, 3
WINDOW = 20.0
"""Seconds that records/s are taken over."""
SEED = 1
SOURCE = "the project's bar"


def fault(made: Bed, chance: random.Random, *, restart: bool) -> Fault:
    """Kill a host at a random time of a batch, wait until all is as before, and bring another one."""
    normal = made.normal()
    made.more(1)
    began = made.batches()[-1][0] + made.job.pace
    time.sleep(max(0.0, began + chance.random() * normal - time.time()))
    at = made.kill(chance.choice(made.plant.hosts.usable))
    if restart:
        made.restart()
    found = made.after(at, normal)
    made.replace()
    made.spread()
    return found


def arm(name: str, faults: int, chance: random.Random) -> tuple[list[Fault], int]:
    """Faults of one way, and how many counts were wrong in the end."""
    with bed(LARGE, HOSTS, replicas=int(name == "standby")) as made:
        found = [fault(made, chance, restart=name == "restart") for _ in range(faults)]
        told(name, found)
        return found, made.wrong() + (name != "restart" and made.restarted())


def speed(replicas: int) -> float:
    """Records/s of the query with a full batch always ready."""
    with bed(FULL_SPEED, HOSTS, replicas=replicas) as made:
        since = time.time()
        time.sleep(WINDOW)
        found = [(a, b) for a, b in made.batches() if a >= since]
        return FULL_SPEED.rows * len(found) / (found[-1][1] - found[0][0])


def measure(arguments: argparse.Namespace) -> Report:
    report, chance = Report(), random.Random(SEED)
    rounds, faults = (1, 1) if arguments.quick else (arguments.rounds, FAULTS)
    runs: dict[str, list[list[Fault]]] = {"standby": [], "without": [], "restart": []}
    wrong, speeds = 0, {0: list[float](), 1: list[float]()}
    for number in range(rounds):
        for name in chance.sample(list(runs), len(runs)):
            found, differing = arm(name, faults, chance)
            runs[name].append(found)
            wrong += differing
        for replicas in chance.sample([0, 1], 2):
            speeds[replicas].append(speed(replicas))
        progress(f"round {number + 1} of {rounds}")
    seconds = {name: [f.recovered for each in found for f in each] for name, found in runs.items()}
    report.figures = {
        "faults": {name: [asdict(f) for each in found for f in each] for name, found in runs.items()},
        "median": {name: statistics.median(found) for name, found in seconds.items()},
        "records a second": {f"r = {replicas}": found for replicas, found in speeds.items()},
        "wrong": wrong,
    }
    report.environment["hosts"] = f"{HOSTS} processes of one slot each, sharing the machine's cores"
    report.median_at_most("standby over without", _over(runs, "without"), 0.5, SOURCE)
    report.median_at_most("standby over a restart", _over(runs, "restart"), 0.1, SOURCE)
    report.median_at_least(
        "records/s of r = 1 over r = 0", [a / b for a, b in zip(speeds[1], speeds[0], strict=True)], 0.85, SOURCE
    )
    report.at_most("counts that differ from a batch query's, and restarts that were not meant", wrong, 0, SOURCE)
    return report


def _over(runs: dict[str, list[list[Fault]]], other: str) -> Sequence[float]:
    """Ratios round by round, of medians."""
    medians = {name: [statistics.median(f.recovered for f in each) for each in runs[name]] for name in ("standby", other)}
    return [a / b for a, b in zip(medians["standby"], medians[other], strict=True)]


def line(report: Report) -> str:
    median: dict[str, Any] = report.figures["median"]
    return (
        f"a lost host costs {median['standby']:.1f} s with copies, {median['without']:.1f} s without, "
        f"{median['restart']:.1f} s with a restart; {report.figures['wrong']} counts wrong"
    )


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")


if __name__ == "__main__":
    main("recovery", __doc__.splitlines()[0], measure, line, more)

"""Cost of a lost host: with standby replicas, without, and with a restart of the query. Half an hour at most.

A count over a large state on four hosts, all ways in random order on one cluster: a host is killed in mid-batch, and
another one leased in its place. Recovery ends with the first batch that began after the kill and is as short as earlier
ones.
"""

import argparse
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from _common import Report, in_random_order, main

from elastream.errors import InputError
from elastream_papers.thesis.resilience.bed import STEADY, Bed, RecoveryCost, bed
from elastream_papers.thesis.resilience.job import Job

HOSTS = 4
LARGE = Job(keys=600_000, rows=10_000)
"""As large as two cores allow: with more, hosts that are left after a kill fall behind until another one has come."""
QUICK = replace(LARGE, keys=200_000)
FAULTS, ROUNDS, QUICK_FAULTS = 3, 5, 1
QUICK_STEADY = 4  # batches to wait after a change
WAYS = ("standby", "without", "restart")
SEED = 1


def fault(made: Bed, chance: random.Random, *, restart: bool) -> RecoveryCost:
    normal = made.normal()
    made.more(1)
    next_one = made.batches()[-1][0] + made.job.pace
    time.sleep(max(0.0, next_one + chance.random() * normal - time.time()))
    host = chance.choice(made.plant.hosts.usable)
    at = made.kill(host)
    if restart:
        made.restart()
    found = made.after(at, normal)
    made.in_place_of([host])
    return found


def arm(made: Bed, name: str, faults: int, chance: random.Random) -> list[RecoveryCost]:
    made.plant.standby.replicas = int(name == "standby")
    made.settled()
    return [fault(made, chance, restart=name == "restart") for _ in range(faults)]


def measure(arguments: argparse.Namespace) -> Report:
    if min(arguments.rounds, arguments.faults) < 1:
        raise InputError("--rounds and --faults must be 1 or more")
    report, chance = Report(), random.Random(SEED)
    rounds, faults = (1, QUICK_FAULTS) if arguments.quick else (arguments.rounds, arguments.faults)
    job, steady = (QUICK, QUICK_STEADY) if arguments.quick else (LARGE, STEADY)
    with bed(job, HOSTS, replicas=1, steady=steady) as made:
        runs = in_random_order(WAYS, rounds, lambda name: arm(made, name, faults, chance))
        wrong = int(made.restarted) + made.wrong()
    report.environment["hosts"] = f"{HOSTS} processes of four slots each, sharing the machine's cores"
    report.figures = {
        "wrong": wrong,
        "faults": {name: [asdict(each) for found in all for each in found] for name, all in runs.items()},
        "median": {
            name: statistics.median(each.recovered for found in all for each in found) for name, all in runs.items()
        },
    }
    report.median_at_most("recovery with a copy over without", _over(runs, "without"), 0.5)
    report.median_at_most("recovery with a copy over a restart", _over(runs, "restart"), 0.1)
    report.at_most("counts that differ from a batch query's, and restarts that were not meant", wrong, 0)
    return report


def _over(runs: Mapping[str, Sequence[Sequence[RecoveryCost]]], other: str) -> list[float]:
    ours, theirs = ([statistics.median(each.recovered for each in found) for found in runs[n]] for n in ("standby", other))
    return [a / b for a, b in zip(ours, theirs, strict=True)]


if __name__ == "__main__":
    faults_help = f"of each way a round; default {FAULTS}"
    main("recovery", __doc__, measure, lambda p: p.add_argument("--faults", type=int, default=FAULTS, help=faults_help),
         rounds=ROUNDS)  # fmt: skip

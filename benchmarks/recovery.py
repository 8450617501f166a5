"""How long a lost host costs: with standby copies, without, and where the query is started again instead.

    python benchmarks/recovery.py [--quick] [--part faults|speeds] [--rounds N] [--faults N] [--json FILE]

A count over a large state on four hosts (`thesis.resilience.bed`), all ways in turn on one cluster. In each
round, in random order: with a copy of each state partition and without, a host is killed `--faults` times in mid-batch, and
another one leased in its place; and the same where the query is then stopped and started again from its checkpoint.
Recovery is the time from the kill to the commit of the first batch that began after it and takes what batches took before.
Then the records/s of the query at full speed, with copies and without, over a small and a large state. --part: one of the
two, half an hour at most each.
"""

import argparse
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from _common import Report, main, progress

from elastream.errors import InputError
from elastream_papers.thesis.resilience.bed import STEADY, Bed, Mended, bed
from elastream_papers.thesis.resilience.job import Job

HOSTS = 4
LARGE = Job(keys=600_000, rows=10_000)
"""A state of which a host holds a quarter. It is as large as two cores allow: the heap's store copies the map of its state
for each batch. With 2,000,000 keys four hosts took 2.5 s for a batch of 20,000 records, one after the other without a
pause, so that those which are left after a kill fall behind, and recovery says how long another host takes to come."""
SMALL = Job(keys=50_000, rows=100_000)
QUICK = replace(LARGE, keys=200_000)
FAULTS, ROUNDS, QUICK_FAULTS = 3, 5, 1
QUICK_STEADY = 4  # batches that are waited for after a change
WINDOW, QUICK_WINDOW = 20.0, 5.0  # seconds that records/s are taken over
PARTS = ("faults", "speeds")
WAYS: Mapping[str, str] = {"standby": "with copies", "without": "without", "restart": "with a restart"}
SEED = 1
SOURCE = "the project's bar"
BARS: Mapping[str, float] = {"small": 0.95, "large": 0.85}  # records/s with a copy over those without


def fault(made: Bed, chance: random.Random, *, restart: bool) -> Mended:
    """Kill a host at a random time of a batch, wait until all is as before, and bring another one."""
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


def arm(made: Bed, name: str, faults: int, chance: random.Random) -> list[Mended]:
    made.plant.standby.replicas = int(name == "standby")
    made.settled()
    found = [fault(made, chance, restart=name == "restart") for _ in range(faults)]
    seconds = ", ".join(f"{each.recovered:.2f}" for each in found)
    progress(f"{name}: {seconds} s; batches of {found[0].normal:.2f} s before")
    return found


def speeds_of(made: Bed, job: Job, window: float, chance: random.Random) -> dict[int, float]:
    """Records/s with a full batch always ready, without copies and with one of each partition."""
    made.run(replace(job, pace=0.0))
    found = {}
    for copies in chance.sample((0, 1), 2):
        made.plant.standby.replicas = copies
        made.settled()
        found[copies] = made.rate(window)
    return found


def ended(made: Bed) -> int:
    """End the query: how many counts were wrong, or restarts were not meant."""
    return int(made.restarted) + made.wrong()


def measure(arguments: argparse.Namespace) -> Report:
    if min(arguments.rounds, arguments.faults) < 1:
        raise InputError("--rounds and --faults must be 1 or more")
    report, chance = Report(), random.Random(SEED)
    rounds, faults = (1, QUICK_FAULTS) if arguments.quick else (arguments.rounds, arguments.faults)
    parts = PARTS if arguments.part is None else (arguments.part,)
    jobs = {"small": SMALL, "large": QUICK if arguments.quick else LARGE}
    runs: dict[str, list[list[Mended]]] = {name: [] for name in WAYS}
    speeds: dict[tuple[str, int], list[float]] = {(size, copies): [] for size in jobs for copies in (0, 1)}
    wrong = 0
    with bed(jobs["large"], HOSTS, replicas=1, steady=QUICK_STEADY if arguments.quick else STEADY) as made:
        for number in range(rounds):
            if "faults" in parts:
                if number and "speeds" in parts:
                    made.run(jobs["large"])
                for name in chance.sample(list(runs), len(runs)):
                    runs[name].append(arm(made, name, faults, chance))
            if "speeds" in parts:
                wrong += ended(made)
                for size in chance.sample(list(jobs), len(jobs)):
                    found = speeds_of(made, jobs[size], QUICK_WINDOW if arguments.quick else WINDOW, chance)
                    for copies, speed in found.items():
                        speeds[size, copies].append(speed)
                    wrong += ended(made)
            progress(f"round {number + 1} of {rounds}")
        if parts == ("faults",):
            wrong += ended(made)
    report.figures = {"wrong": wrong}
    report.environment["hosts"] = f"{HOSTS} processes of four slots each, sharing the machine's cores"
    if "faults" in parts:
        report.figures["faults"] = {name: [asdict(each) for found in all for each in found] for name, all in runs.items()}
        report.figures["median"] = {
            name: statistics.median(each.recovered for found in all for each in found) for name, all in runs.items()
        }
        report.median_at_most("recovery with a copy over without", _over(runs, "without"), 0.5, SOURCE)
        report.median_at_most("recovery with a copy over a restart", _over(runs, "restart"), 0.1, SOURCE)
    if "speeds" in parts:
        report.figures["records a second"] = {
            f"{size} state, r = {copies}": found for (size, copies), found in speeds.items()
        }
        for size, bar in BARS.items():
            ratios = [a / b for a, b in zip(speeds[size, 1], speeds[size, 0], strict=True)]
            report.median_at_least(f"records/s with a copy over without, {size} state", ratios, bar, SOURCE)
    report.at_most("counts that differ from a batch query's, and restarts that were not meant", wrong, 0, SOURCE)
    return report


def _over(runs: Mapping[str, Sequence[Sequence[Mended]]], other: str) -> list[float]:
    """Ratios of recoveries with a copy to those of another way, round by round, of medians."""
    ours, theirs = ([statistics.median(each.recovered for each in found) for found in runs[n]] for n in ("standby", other))
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=PARTS, help="alone; default both")
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"of each way a round; default {FAULTS}")


if __name__ == "__main__":
    main("recovery", __doc__, measure, more, rounds=ROUNDS)

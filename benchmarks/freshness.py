"""Bounded runs for a freshness of 10 minutes over 12 hours of bursty load, simulated, compared with a constant fleet.

The real controller and planner start runs that are drawn: start-up (median 45 s, one in ten over 80 s), work per record
(spread 15 %), a fixed part of 5 s, release. The baseline is the smallest constant fleet, in hindsight, that keeps 99 % of
the records fresh with the same work and no start-up. Hosts are billed by the second, a minute at least.

Two parts run the real process on this machine. `--part hour`: a freshness of 10 minutes for an hour. `--part kills`: 50
kills at drawn moments of a cycle; after each, all rows must be exact and no host leased.
"""

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _common import Report, main, progress
from _sleeper import sleeper

from elastream.core.frames import Floats
from elastream.core.hosts import Billing, HostType
from elastream.freshness.controller import Controller
from elastream.freshness.planner import HostBounds
from elastream.freshness.wakes import RunReporter, SourceSpec, State, WakeOrder
from elastream.freshness.watching import Look
from elastream.recording.directory import RunDirectory

FRESHNESS, HOURS, MOST = 600.0, 12, 8
SECONDS = HOURS * 3600
TYPE = HostType("host", cores=1, price=1.0, billing=Billing(1.0, 60.0), start=45.0)
SPEC = SourceSpec("kafka", "topic", "checkpoint")
WORK, FIXED, RELEASE = 1e-3, 5.0, 5.0  # seconds of a host for a record; of a run; of its end
MET, COST = 0.99, 0.3
RNG = np.random.Generator
# Of the kills: seconds of freshness, states whose begin is waited for, and seconds after it within which is killed.
KILL_FRESHNESS, STEPS, STEP_S = 20.0, (State.LEASING, State.RUNNING, State.RELEASING, State.ASLEEP), 8.0
SEEDS = range(10, 20)  # the planner was developed on other seeds


def bursts(rng: RNG) -> Floats:
    """A trickle, and bursts at random: one in 15 minutes, of very different sizes."""
    rates = np.full(SECONDS, 10.0)
    for at in np.flatnonzero(rng.random(SECONDS) < 1 / 900):
        long = int(rng.integers(5, 120))
        rates[at : at + long] += rng.lognormal(math.log(30_000), 1.0) / long
    return rates


def shifts(rng: RNG) -> Floats:
    """Half an hour of load every two hours, and nothing between."""
    rates = np.zeros(SECONDS)
    for hour in range(0, HOURS, 2):
        since = hour * 3600 + int(rng.integers(0, 3600))
        rates[since : since + 1800] = rng.uniform(100, 500)
    return rates


def half_day(rng: RNG) -> Floats:
    """A wave over the half day, with bursts on it."""
    wave = 60 * (1 - np.cos(2 * np.pi * np.arange(SECONDS) / SECONDS))
    return wave + bursts(rng) / 2


def rare(rng: RNG) -> Floats:
    """A few large drops and nothing else."""
    rates = np.zeros(SECONDS)
    for at in rng.integers(0, SECONDS - 1200, 6):
        rates[at : at + 20] += rng.uniform(2_000, 20_000)
    return rates


LOADS: tuple[Callable[[RNG], Floats], ...] = (bursts, shifts, half_day, rare)


@dataclass
class Outcome:
    fresh: float  # records committed in time
    records: float
    cost: float
    runs: int
    staying: float  # cost of the constant fleet


class World:
    """The arrivals, what is committed, and one run at a time. Implements the watch of the source."""

    def __init__(self, folder: Path, arrived: Floats, rng: RNG) -> None:
        self.directory, self.cumulative, self.rng = RunDirectory(folder), np.cumsum(arrived), rng
        self.now = self.committed = self.cost = self.fresh = 0.0
        self.before: float | None = None
        self.run: Run | None = None
        self.starts = 0

    def arrived(self, at: float) -> float:
        return float(self.cumulative[min(len(self.cumulative) - 1, int(at))])

    def look(self) -> Look:
        arrived = self.arrived(self.now)
        since, self.before = arrived if self.before is None else self.before, arrived
        waiting = arrived - self.committed
        oldest = float(np.searchsorted(self.cumulative, self.committed, side="right")) if waiting > 0 else math.inf
        return Look(waiting, oldest, arrived - since)

    def begin_run(self) -> None: ...

    def end_run(self) -> str:
        return ""

    def close(self) -> None: ...

    def launch(self, order: WakeOrder) -> "Run":
        self.starts += 1
        self.run = Run(self, order)
        return self.run


class Run:
    """A drawn bounded run."""

    def __init__(self, world: World, order: WakeOrder) -> None:
        self.world, self.order, self.start = world, order, world.now
        startup = 45.0 * world.rng.lognormal(0, 0.45)
        self.snapshot, self.end = world.now + startup, math.inf
        self.report = RunReporter(world.directory, order, lambda: world.now)
        self.done = False

    def poll(self) -> int | None:
        world = self.world
        if world.now >= self.snapshot and self.end == math.inf:
            upto = world.arrived(world.now)
            records, first = upto - world.committed, world.committed
            work = (FIXED + WORK * records / self.order.hosts) * world.rng.lognormal(0, 0.15) if records else 0.0
            self.read, self.commit, self.upto = records, world.now + work, upto
            late = world.arrived(self.commit - FRESHNESS - 1) if self.commit > FRESHNESS + 1 else 0.0
            self.fresh = upto - max(first, min(upto, late))
            self.end = self.commit + RELEASE
            self.report.started()
        if world.now >= self.end and not self.done:
            self.done = True
            world.committed, world.fresh = self.upto, world.fresh + self.fresh
            world.cost += self.order.hosts * TYPE.price * TYPE.billing.units(self.end - self.start)
            self.report.caught_up(self.commit, {SPEC.name: self.read}, {}, [SPEC])
        return 0 if self.done else None

    def stop(self) -> None: ...


def slept(load: Callable[[RNG], Floats], seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    came = rng.poisson(load(rng)).astype(float)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "control").mkdir()
        world = World(Path(folder), came, rng)
        controller = Controller(
            world.directory, FRESHNESS, HostBounds(TYPE, 1, MOST), world.launch, clock=lambda: world.now,
            watch=lambda spec: world, say=lambda line: None,
        )  # fmt: skip
        while world.now < SECONDS + 2 * FRESHNESS:  # the last arrivals are committed, too
            controller.step()
            world.now += 1.0 if controller.is_awake else controller.pause
    return Outcome(world.fresh, float(came.sum()), world.cost, world.starts, constant_cost(came))


def constant_cost(came: Floats) -> float:
    """Return the cost of the smallest fleet that commits MET of the records in time, without batches or start-up."""
    total, arrived = came.sum(), np.cumsum(came)
    for hosts in range(1, 1000):
        waits, served = 0.0, np.empty(len(came))
        for second, count in enumerate(came):
            waits = max(0.0, waits + count - hosts / WORK)
            served[second] = waits
        late = np.interp(np.arange(len(came)) - FRESHNESS, np.arange(len(came)), arrived, left=0.0) - (arrived - served)
        if np.maximum(late, 0).max() <= (1 - MET) * total:
            return hosts * TYPE.price * SECONDS
    return math.inf


def simulated(report: Report, quick: bool) -> None:
    for load in LOADS:
        outcomes = [slept(load, seed) for seed in SEEDS[: 2 if quick else None]]
        met = sum(each.fresh for each in outcomes) / sum(each.records for each in outcomes)
        cost = sum(each.cost for each in outcomes) / sum(each.staying for each in outcomes)
        progress(f"{load.__name__}: {met:.4f} met; cost {cost:.3f} of always on")
        report.figures[load.__name__] = {
            "met": [each.fresh / each.records for each in outcomes],
            "cost_ratio": [each.cost / each.staying for each in outcomes],
            "runs": [each.runs for each in outcomes],
            "constant_hosts": [each.staying / SECONDS for each in outcomes],
        }
        report.at_least(f"{load.__name__}: records committed within 10 min", met, MET)
        report.at_most(f"{load.__name__}: cost against always on", cost, COST)


def hour(report: Report, quick: bool) -> None:
    """Drop a file each 10 s, with bursts as in `bursts`, for six freshnesses; always on is one host."""
    freshness = FRESHNESS / 10 if quick else FRESHNESS
    chance = random.Random(1)
    with sleeper(freshness) as job:
        begin = time.time()
        while (now := time.time()) < begin + 6 * freshness:
            burst = int(chance.lognormvariate(math.log(30_000), 1.0)) if chance.random() < 10 / 900 else 0
            job.drop(100 + burst)
            time.sleep(max(0.0, now + 10.0 - time.time()))
        cost = job.cost(time.time()) / (TYPE.price / TYPE.billing.unit * (time.time() - begin))
        job.settle()
        committed = job.committed()
        ages = {name: committed[name] - arrival for name, (arrival, _) in job.files.items()}
        fresh = sum(lines for name, (_, lines) in job.files.items() if ages[name] <= freshness)
        met = fresh / sum(lines for _, lines in job.files.values())
        report.figures["hour"] = {"met": met, "cost_ratio": cost, "runs": job.run, "oldest_s": max(ages.values())}
    report.at_least(f"real: records committed within {freshness:g} s", met, MET)
    report.at_most("real: cost against always on", cost, COST)


def kills(report: Report, quick: bool) -> None:
    """Kill a run, its controller or both at drawn moments of a cycle."""
    chance, exact, drawn = random.Random(1), 0, []
    count = 3 if quick else 50
    with sleeper(KILL_FRESHNESS) as job:
        job.settle()
        for number in range(count):
            state, victims = chance.choice(STEPS), chance.choice(("run", "controller", "both"))
            delay = chance.uniform(0, STEP_S)
            following = job.run + 1
            job.drop(50)
            job.reach(state, following)
            time.sleep(delay)
            job.kill(victims)
            job.drop(50)
            drawn.append(f"{victims}, {delay:.2f} s into {state}")
            try:
                job.settle()
            except TimeoutError:
                progress(f"kill {number + 1} of {count}, {drawn[-1]}: not exact")
                break
            exact += 1
            progress(f"kill {number + 1} of {count}, {drawn[-1]}: exact")
    report.figures["kills"] = {"exact": exact, "drawn": drawn}
    report.at_least(f"exact after a kill, of {count}", exact, count)


PARTS = {"simulated": simulated, "hour": hour, "kills": kills}


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    PARTS[arguments.part](report, arguments.quick)
    return report


def with_part(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=tuple(PARTS), default="simulated", help="default: simulated")


if __name__ == "__main__":
    main("freshness", __doc__, measure, with_part)

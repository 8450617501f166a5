"""N-Storm's evaluation of task migration (section 5.2) on Spark, in paired blocks.

In a block, each way moves the same tasks there and back; the ways run in random order. A way's cost is the records missing
against a local baseline until the first batch after the last landing. Tasks are state partitions, workers executors.
"""

import contextlib
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elastream.core.migration import MigrationState
from elastream.core.task_id import TaskId
from elastream.errors import EnvironmentProblem
from elastream.spark.placement.placing import MigrationLimits
from elastream_papers.nstorm.rig import CommittedBatch, Rig, Used
from elastream_papers.nstorm.schemes import Cycles, Scheme

DRAWS = 20  # draws of which the most even one is chosen: the paper requires an even distribution
SHORT = Cycles(0.3, 0.05)  # all ways read the plan equally often: late reading costs no throughput
BEFORE, AFTER = 3.0, 2.0  # seconds of the baseline before a re-deployment, and after the last landing
LONGEST = 180.0  # seconds for all tasks to land: new executors start anew, cycles are up to 10 s

# text of sections 5.2.1 to 5.2.3 about Figs. 9 and 10, of 600 s each
PAPER: Mapping[str, Mapping[str, float]] = {
    "Storm, 1 task": {"seconds at >= 60 %": 279.0, "seconds at 100 %": 267.0, "total, Storm = 1": 1.0},
    "Storm*, 1 task": {"seconds at >= 60 %": 155.0, "total, Storm = 1": 1.41},
    "N-Storm, 1 task": {"seconds at >= 60 %": 20.0, "total, Storm = 1": 1.75},
    "N-Storm, 16 tasks": {"seconds at >= 60 %": 118.0},
    "N-Storm+, 16 tasks": {"seconds at >= 60 %": 84.0, "seconds at 100 %": 53.0, "total, N-Storm = 1": 1.11},
}


@dataclass(frozen=True, slots=True)
class WayToMove:
    """A scheme with its cycles and most simultaneous moves to a host (None: the scheme's)."""

    name: str
    scheme: Scheme
    cycles: Cycles = SHORT
    per_host: int | None = None

    @property
    def limits(self) -> MigrationLimits | None:
        return None if self.per_host is None else MigrationLimits(self.per_host, lazy=self.scheme is Scheme.LAZY)


RESTART = WayToMove("stop and restart", Scheme.RESTART)
ONLINE = WayToMove("online, all at once", Scheme.ONLINE)
LAZY = WayToMove("online, lazy", Scheme.LAZY)
LAZY_4 = WayToMove("online, lazy, four a host and batch", Scheme.LAZY, per_host=4)
EXECUTORS = WayToMove("restart of executors", Scheme.EXECUTORS)
# T_S and T_W under N-Storm+ (5.2.4): the first and last are the paper's, T_S is about 3 T_W
CYCLES_TRIED = tuple(
    WayToMove(f"online, lazy, cycles {plan:g} s and {look:g} s", Scheme.LAZY, Cycles(plan, look))
    for plan, look in ((10.0, 3.0), (3.0, 1.0), (1.0, 0.3), (0.3, 0.1))
)


@dataclass(frozen=True, slots=True)
class Arm:
    """Ways to compare in `blocks` blocks for each number of `moves`. load: part of the capacity that arrives."""

    name: str
    ways: tuple[WayToMove, ...]
    moves: tuple[int, ...] = (1, 7, 16)
    blocks: int = 10
    seconds: float = 10.0
    load: float = 1.0

    def order(self, chance: random.Random) -> list[tuple[int, int, tuple[WayToMove, ...]]]:
        """Return (block, moves, ways in order) of all blocks, in random order."""
        return [
            (block, moves, tuple(chance.sample(self.ways, len(self.ways))))
            for block in range(self.blocks)
            for moves in chance.sample(self.moves, len(self.moves))
        ]


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Arms of a run, seconds of warm-up, and the pilot for the power."""

    arms: tuple[Arm, ...]
    warm: float
    pilot: Arm | None = None

    def reduced(self, moves: Sequence[int] | None) -> "BlockPlan":
        """Return the main arm alone, with these numbers of `moves` only."""
        if moves is None:
            return self
        main = self.arms[0]
        return BlockPlan((Arm(main.name, main.ways, tuple(moves), main.blocks, main.seconds, main.load),), self.warm)


MAIN = Arm("moves at full load", (RESTART, ONLINE, LAZY))  # the paper moves 1 to 16 of 36 tasks: 16 of 36 are 7 of our 16
PLAIN = BlockPlan((MAIN,), 90.0, Arm("pilot", MAIN.ways, (7,), 4))  # twenty minutes
# adds state preload, the sweep of cycles (5.2.4), and Storm* (5.2.1) last: new executors are slow
PARTLY = Arm("moves at 70 % load", (ONLINE, LAZY, LAZY_4), (7,), load=0.7)
FULL = BlockPlan(
    (
        MAIN,
        PARTLY,
        Arm("cycles", CYCLES_TRIED, (16,), 6, 20.0),
        Arm("executors replaced", (RESTART, EXECUTORS), (1,), 5, 15.0),
    ),
    90.0,
    PLAIN.pilot,
)
# functional check; two blocks decide nothing
QUICK = BlockPlan((Arm("moves at full load", MAIN.ways, (7,), 2, 8.0),), 15.0)


@dataclass(frozen=True, slots=True)
class MoveWindow:
    """A re-deployment in one way.

    lost: seconds of baseline throughput lost. gap: longest time between commits (s). landed: seconds until the last task
    ran on its new host. warm: part of migrations with state preloaded. rate: baseline (records/s).
    """

    arm: str
    moves: int
    block: int
    way: str
    lost: float
    gap: float
    landed: float
    warm: float
    rate: float


@dataclass(frozen=True, slots=True)
class Marks:
    """Epoch seconds of a window: begin, re-deployment, last landing, end."""

    began: float
    asked: float
    landed: float
    ended: float


def records_between(batches: Sequence[CommittedBatch], since: float, until: float) -> float:
    """Return the records processed between two times, each batch's spread evenly over its duration."""
    shares = (
        batch.rows * max(0.0, min(batch.end, until) - max(batch.start, since)) / max(batch.end - batch.start, 1e-9)
        for batch in batches
    )
    return math.fsum(shares)


def measured(marks: Marks, batches: Sequence[CommittedBatch]) -> tuple[float, float, float]:
    """Return (seconds lost, longest commit gap, baseline records/s) of a window.

    Raises EnvironmentProblem if the baseline has no time on either side.
    """
    after = min((batch.end for batch in batches if batch.start >= marks.landed), default=math.inf)
    calm = (marks.asked - marks.began) + (marks.ended - after)
    done = records_between(batches, marks.began, marks.asked) + records_between(batches, after, marks.ended)
    if not (math.isfinite(calm) and calm > 0 and done > 0):
        raise EnvironmentProblem("no batch ended after the tasks had landed: the window has no baseline")
    rate = done / calm
    lost = (after - marks.asked) - records_between(batches, marks.asked, after) / rate
    ends = sorted(batch.end for batch in batches if batch.end <= after)
    known = [end for end in ends if end <= marks.asked][-1:] + [end for end in ends if end > marks.asked]
    gap = float(np.diff(known).max()) if len(known) > 1 else math.nan
    return lost, gap, rate


def redeploy(at: Mapping[TaskId, str], hosts: Sequence[str], moves: int, chance: random.Random) -> dict[TaskId, str]:
    """Return a random re-deployment of `moves` tasks: the most even of DRAWS draws."""
    drawn = [_draw(at, hosts, moves, chance) for _ in range(DRAWS)]
    return min(drawn, key=lambda placement: _spread(Counter({**at, **placement}.values()), hosts))


def _draw(at: Mapping[TaskId, str], hosts: Sequence[str], moves: int, chance: random.Random) -> dict[TaskId, str]:
    chosen = chance.sample(sorted(at), moves)
    load = Counter(host for task, host in at.items() if task not in chosen)
    placement: dict[TaskId, str] = {}
    for task in chosen:
        placement[task] = min((host for host in hosts if host != at[task]), key=lambda host: (load[host], chance.random()))
        load[placement[task]] += 1
    return placement


def _spread(load: Counter[str], hosts: Sequence[str]) -> int:
    return max(load[host] for host in hosts) - min(load[host] for host in hosts)


def run_setting(
    setting: BlockPlan,
    progress: Callable[[str, int, int], None],
    tell: Callable[[Sequence[MoveWindow]], str] = lambda _: "",
    seed: int = 1,
) -> tuple[list[MoveWindow], dict[str, Any]]:
    """Run all arms; return their windows and further facts.

    tell: summary of a pilot, for the progress. Raises EnvironmentProblem if the query fails.
    """
    began, windows, pilot = Used.now(), list[MoveWindow](), list[MoveWindow]()
    arms = [*([setting.pilot] if setting.pilot else []), *setting.arms]
    every = sum(arm.blocks * len(arm.moves) * len(arm.ways) for arm in arms)
    facts: dict[str, Any] = {"batches": 0, "wrong counts": 0, "batch seconds": {}}
    interval = 0.0
    for load in dict.fromkeys(arm.load for arm in arms):
        if load < 1:  # a batch takes as long as at full load, and the next one waits
            interval = facts["batch seconds"]["full load"] / load
        with (
            tempfile.TemporaryDirectory(prefix="nstorm-") as folder,
            contextlib.closing(Rig(Path(folder), interval=interval)) as rig,
        ):
            progress("starting four executors", len(windows) + len(pilot), every)
            rig.begin(setting.warm)
            for arm in (each for each in arms if each.load == load):
                found = pilot if arm is setting.pilot else windows
                for window in _run_arm(rig, arm, random.Random(f"{seed} {arm.name}")):
                    found.append(window)
                    progress(f"{arm.name}: {window.way}, {window.moves} of 16", len(windows) + len(pilot), every)
                if arm is setting.pilot and (said := tell(pilot)):
                    facts["power, by the pilot"] = said
                    progress(said, len(pilot), every)
            rig.settle()
            progress("comparing counts", len(windows) + len(pilot), every)
            lasted = float(np.median([batch.end - batch.start for batch in rig.batches]))
            facts["batch seconds"]["full load" if load == 1 else f"{load:.0%} load"] = lasted
            batches, wrong = rig.finish()
            facts["batches"] += batches
            facts["wrong counts"] += wrong
            facts["hosts"] = rig.confinement
    return windows, {**facts, "others": Used.now().others(began)}


def _run_arm(rig: Rig, arm: Arm, chance: random.Random) -> Iterator[MoveWindow]:
    for block, moves, ways in arm.order(chance):
        before = rig.at
        there = redeploy(before, rig.hosts, moves, chance)
        for number, way in enumerate(ways):
            if way.scheme is Scheme.EXECUTORS or not set(there.values()) <= set(rig.hosts):
                before = rig.at  # hosts have new addresses, so draw the moves again
                there = redeploy(before, rig.hosts, moves, chance)
            placement = {task: before[task] for task in there} if number % 2 else there
            marks, warm = _window(rig, way, placement, arm.seconds)
            lost, gap, rate = measured(marks, rig.batches)
            yield MoveWindow(arm.name, moves, block, way.name, lost, gap, marks.landed - marks.asked, warm, rate)


def _window(rig: Rig, way: WayToMove, placement: Mapping[TaskId, str], seconds: float) -> tuple[Marks, float]:
    rig.settle()
    rig.follower.switch(way.scheme, way.cycles, way.limits)
    began = time.time()
    time.sleep(BEFORE)
    rig.plan.publish(placement, at=time.time(), why=way.name)
    asked = time.time()
    while rig.arrival(asked) is None:
        if time.time() - asked > LONGEST:
            raise EnvironmentProblem(f"{way.name}: not all tasks were on their hosts within {LONGEST:g} s")
        time.sleep(0.05)
    landed = time.time()
    rig.next_batch(LONGEST)
    rig.next_batch(LONGEST)
    time.sleep(max(AFTER, began + seconds - time.time()))
    ended = time.time()
    rig.note()
    mine = [each for each in rig.follower.placing.landed if each.since >= asked]
    warm = [any(state is MigrationState.WARM for _, state in each.history) for each in mine]
    return Marks(began, asked, landed, ended), float(np.mean(warm)) if warm else 0.0

"""N-Storm's evaluation of task migration (section 5.2) on Spark: one query, random re-deployments, in paired blocks.

In a block the same tasks move between the same hosts, there and back, once in each way, in random order. The cost of a way
is the records that a local baseline misses from the re-deployment to the first batch after the last task landed. Tasks are
state partitions, workers executors. `rig` runs cluster and query.
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
from elastream.spark.placement.schemes import Cycles, Scheme
from elastream_papers.nstorm.rig import CommittedBatch, Rig, Used

DRAWS = 20
"""Random re-deployments from which the most even one is chosen: the paper requires an even distribution after each."""
SHORT = Cycles(0.3, 0.05)
"""Where ways are compared, all of them read the plan as often: how late a plan is read costs no throughput."""
BEFORE, AFTER = 3.0, 2.0
"""Seconds of the local baseline: before a re-deployment, and at least after its last task has landed."""
LONGEST = 180.0
"""Seconds within which all tasks must have landed: executors that are replaced start anew, and cycles are up to 10 s."""

PAPER: Mapping[str, Mapping[str, float]] = {
    "Storm, 1 task": {"seconds at >= 60 %": 279.0, "seconds at 100 %": 267.0, "total, Storm = 1": 1.0},
    "Storm*, 1 task": {"seconds at >= 60 %": 155.0, "total, Storm = 1": 1.41},
    "N-Storm, 1 task": {"seconds at >= 60 %": 20.0, "total, Storm = 1": 1.75},
    "N-Storm, 16 tasks": {"seconds at >= 60 %": 118.0},
    "N-Storm+, 16 tasks": {"seconds at >= 60 %": 84.0, "seconds at 100 %": 53.0, "total, N-Storm = 1": 1.11},
}
"""Figures given in the text of sections 5.2.1 to 5.2.3 about Figs. 9 and 10, of 600 s each."""


@dataclass(frozen=True, slots=True)
class WayToMove:
    """How tasks move: a scheme, its cycles, and at most so many moves to a host at a time (None: that of the scheme)."""

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
CYCLES_TRIED = tuple(
    WayToMove(f"online, lazy, cycles {plan:g} s and {look:g} s", Scheme.LAZY, Cycles(plan, look))
    for plan, look in ((10.0, 3.0), (3.0, 1.0), (1.0, 0.3), (0.3, 0.1))
)
"""Settings of T_S and T_W under N-Storm+ (5.2.4): the paper gives the first and the last, and that T_S is about three times
T_W."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Ways that are compared in `blocks` blocks for each number of `moves`, each in a window of at least `seconds`.

    load: part of what the query can take that arrives; below 1 it waits for its next batch.
    """

    name: str
    ways: tuple[WayToMove, ...]
    moves: tuple[int, ...] = (1, 7, 16)
    blocks: int = 10
    seconds: float = 10.0
    load: float = 1.0

    def order(self, chance: random.Random) -> list[tuple[int, int, tuple[WayToMove, ...]]]:
        """(block, moves, ways in their order) of all blocks; numbers of moves take turns in random order."""
        return [
            (block, moves, tuple(chance.sample(self.ways, len(self.ways))))
            for block in range(self.blocks)
            for moves in chance.sample(self.moves, len(self.moves))
        ]


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """The arms of a run, seconds of warm-up before the first, and blocks of a pilot from which the power is told before."""

    arms: tuple[Arm, ...]
    warm: float
    pilot: Arm | None = None

    def reduced(self, moves: Sequence[int] | None) -> "BlockPlan":
        """The main arm alone, with only these numbers of `moves`."""
        if moves is None:
            return self
        main = self.arms[0]
        return BlockPlan((Arm(main.name, main.ways, tuple(moves), main.blocks, main.seconds, main.load),), self.warm)


MAIN = Arm("moves at full load", (RESTART, ONLINE, LAZY))
"""The paper moves 1 to 16 of 36 tasks: 16 of 36 are 7 of our 16, and 16 are all."""
PLAIN = BlockPlan((MAIN,), 90.0, Arm("pilot", MAIN.ways, (7,), 4))
"""Twenty minutes."""
FULL = BlockPlan(
    (
        MAIN,
        Arm("moves at 70 % load", (ONLINE, LAZY, LAZY_4), (7,), load=0.7),
        Arm("cycles", CYCLES_TRIED, (16,), 6, 20.0),
        Arm("executors replaced", (RESTART, EXECUTORS), (1,), 5, 15.0),
    ),
    90.0,
    PLAIN.pilot,
)
"""Adds the load at which state is loaded ahead, the sweep of the cycles (5.2.4), and Storm* (5.2.1) last: new executors are
slow."""
QUICK = BlockPlan((Arm("moves at full load", MAIN.ways, (7,), 2, 8.0),), 15.0)
"""Shows that it works; two blocks decide nothing."""


@dataclass(frozen=True, slots=True)
class MoveWindow:
    """A re-deployment in one way. lost: seconds of baseline throughput lost until the last task landed. gap: longest
    time between two commits, s. landed: seconds until the last task ran on its new host. warm: part of the migrations
    with state loaded ahead. rate: the baseline, records/s.
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
    """Epoch seconds of a window: its begin, its re-deployment, when the last task had landed, its end."""

    began: float
    asked: float
    landed: float
    ended: float


def records_between(batches: Sequence[CommittedBatch], since: float, until: float) -> float:
    """Records processed between two times: those of a batch are spread evenly over its duration.

    There are none between batches, nor in an aborted batch; its repetition counts them.
    """
    shares = (
        batch.rows * max(0.0, min(batch.end, until) - max(batch.start, since)) / max(batch.end - batch.start, 1e-9)
        for batch in batches
    )
    return math.fsum(shares)


def measured(marks: Marks, batches: Sequence[CommittedBatch]) -> tuple[float, float, float]:
    """Return (seconds lost, longest gap between commits, baseline records/s) of a window.

    The baseline excludes the time from the re-deployment to the end of the first batch after the last landing. Raises
    EnvironmentProblem if either side of it has no time.
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
    """A random re-deployment of `moves` tasks, each to another host: of DRAWS draws the most even one."""
    drawn = [_draw(at, hosts, moves, chance) for _ in range(DRAWS)]
    return min(drawn, key=lambda wanted: _spread(Counter({**at, **wanted}.values()), hosts))


def _draw(at: Mapping[TaskId, str], hosts: Sequence[str], moves: int, chance: random.Random) -> dict[TaskId, str]:
    chosen = chance.sample(sorted(at), moves)
    load = Counter(host for task, host in at.items() if task not in chosen)
    wanted: dict[TaskId, str] = {}
    for task in chosen:
        wanted[task] = min((host for host in hosts if host != at[task]), key=lambda host: (load[host], chance.random()))
        load[wanted[task]] += 1
    return wanted


def _spread(load: Counter[str], hosts: Sequence[str]) -> int:
    return max(load[host] for host in hosts) - min(load[host] for host in hosts)


def run_setting(
    setting: BlockPlan,
    progress: Callable[[str, int, int], None],
    tell: Callable[[Sequence[MoveWindow]], str] = lambda _: "",
    seed: int = 1,
) -> tuple[list[MoveWindow], dict[str, Any]]:
    """Run all arms; returns their windows and further facts. tell: what a pilot's windows say, told as progress.

    Arms with another load have a cluster of their own. Raises EnvironmentProblem if the query fails.
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
    """Run the blocks of an arm; yields its windows."""
    for block, moves, ways in arm.order(chance):
        before = rig.at
        there = redeploy(before, rig.hosts, moves, chance)
        for number, way in enumerate(ways):
            if way.scheme is Scheme.EXECUTORS or not set(there.values()) <= set(rig.hosts):
                before = rig.at  # hosts have other addresses now: what moves is drawn anew
                there = redeploy(before, rig.hosts, moves, chance)
            wanted = {task: before[task] for task in there} if number % 2 else there
            marks, warm = _window(rig, way, wanted, arm.seconds)
            lost, gap, rate = measured(marks, rig.batches)
            yield MoveWindow(arm.name, moves, block, way.name, lost, gap, marks.landed - marks.asked, warm, rate)


def _window(rig: Rig, way: WayToMove, wanted: Mapping[TaskId, str], seconds: float) -> tuple[Marks, float]:
    """Re-deploy once; returns its times and the part of its migrations that were warm."""
    rig.settle()
    rig.follower.switch(way.scheme, way.cycles, way.limits)
    began = time.time()
    time.sleep(BEFORE)
    rig.plan.publish(wanted, at=time.time(), why=way.name)
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

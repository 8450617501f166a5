"""N-Storm's evaluation of task migration (section 5.2) on Spark: one query, random re-deployments, four schemes.

A word count reads at full speed from a source that always has a batch of the same size ready, as the paper's clients feed
its topology; the cost of a migration is therefore missing from the total. State partitions are the tasks, executors the
workers. `rig` runs the cluster and query; `page` renders the results.
"""

import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from elastream.experiments.findings import Check
from elastream.experiments.nstorm.rig import CommittedBatch, Rig, Used
from elastream.model.action import TaskId
from elastream.spark.placement.schemes import CYCLES, Cycles, Scheme

LEVELS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Levels of degradation of Fig. 9."""
DRAWS = 20
"""Random re-deployments from which the most even one is chosen: the paper requires an even distribution after each."""

PAPER: Mapping[str, Mapping[str, float]] = {
    "Storm, 1 task": {"seconds at >= 60 %": 279.0, "seconds at 100 %": 267.0, "total, Storm = 1": 1.0},
    "Storm*, 1 task": {"seconds at >= 60 %": 155.0, "total, Storm = 1": 1.41},
    "N-Storm, 1 task": {"seconds at >= 60 %": 20.0, "total, Storm = 1": 1.75},
    "N-Storm, 16 tasks": {"seconds at >= 60 %": 118.0},
    "N-Storm+, 16 tasks": {"seconds at >= 60 %": 84.0, "seconds at 100 %": 53.0, "total, N-Storm = 1": 1.11},
}
"""Figures given in the text of sections 5.2.1 to 5.2.3 about Figs. 9 and 10, of 600 s each."""


@dataclass(frozen=True, slots=True)
class NStormCase:
    """One scheme with `moves` tasks in each re-deployment; scheme None: no moves.

    cycles: seconds between reads of the plan and of the query's state (T_S, T_W); None: those of the scheme.
    """

    scheme: str | None
    moves: int = 0
    cycles: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        if self.scheme is None:
            return "no migration"
        cycles = "" if self.cycles is None else f", cycles {self.cycles[0]:g} s and {self.cycles[1]:g} s"
        return f"{self.scheme}, {self.moves} task{'s' * (self.moves != 1)}{cycles}"


RESTART, EXECUTORS, ONLINE, LAZY = "stop and restart", "restart of executors", "online", "online, lazy"
MOVES = (1, 2, 4, 8, 16)
CYCLES_TRIED = ((10.0, 3.0), (3.0, 1.0), (1.0, 0.3), (0.3, 0.1))
"""Settings of T_S and T_W: the paper gives the first and the last, and that T_S is about three times T_W."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Length of each case, frequency of re-deployments, and the cases.

    Every case runs `rounds` times for `seconds`, in forward and backward order alternately, because machines and compilers
    warm up and other programs may run. first: seconds from the start of a round to its first re-deployment, repeated every
    `period` seconds. hurry: divisor of all cycles except those of the lazy scheme. warm: seconds before the first round.
    """

    seconds: float
    period: float
    first: float
    cases: tuple[NStormCase, ...]
    rounds: int = 1
    hurry: float = 1.0
    warm: float = 60.0

    @property
    def order(self) -> tuple[NStormCase, ...]:
        """All rounds of all cases. Those that replace executors are last, because new executors are slow."""
        kept = [case for case in self.cases if case.scheme != EXECUTORS]
        others = [case for case in self.cases if case.scheme == EXECUTORS]
        return (*(case for turn in range(self.rounds) for case in kept[:: -1 if turn % 2 else 1]), *others * self.rounds)

    def reduced(self, moves: Sequence[int] | None = None, seconds: float | None = None) -> "Schedule":
        """The setting with only these numbers of `moves`, without other cycles, and with about `seconds` per case."""
        cases = self.cases
        if moves is not None:
            others = (NStormCase(scheme, number) for number in moves for scheme in (RESTART, ONLINE, LAZY))
            cases = (NStormCase(None), *others, NStormCase(EXECUTORS, min(moves)))
        rounds = self.rounds if seconds is None else max(1, round(seconds / self.seconds))
        return replace(self, cases=cases, rounds=rounds)


FULL = Schedule(
    60.0,
    60.0,
    10.0,
    (
        NStormCase(None),
        *(NStormCase(scheme, moves) for moves in MOVES for scheme in (RESTART, ONLINE, LAZY)),
        NStormCase(EXECUTORS, 1),
        *(NStormCase(LAZY, 16, cycles) for cycles in CYCLES_TRIED),
    ),
    rounds=10,
)
"""600 s per case and a re-deployment every 60 s, as in section 5.2; each of the ten in a separate round."""
QUICK = Schedule(
    6.0,
    6.0,
    0.5,
    (
        *(NStormCase(RESTART, 1), NStormCase(ONLINE, 1), NStormCase(LAZY, 1)),
        *(NStormCase(RESTART, 2), NStormCase(LAZY, 2)),
        NStormCase(None),
        *(NStormCase(LAZY, 4), NStormCase(RESTART, 4)),
        *(NStormCase(RESTART, 8), NStormCase(LAZY, 8)),
        *(NStormCase(LAZY, 16), NStormCase(RESTART, 16)),
    ),
    hurry=10.0,
    warm=12.0,
)
"""Shorter periods and cycles, one re-deployment per case, fewer cases: a functional check with less evidence.

With only one round, compared cases are adjacent, and the baseline is in the middle."""


@dataclass(frozen=True)
class NStormRun:
    """Results of a case.

    throughput: records in each second from its start. landing: seconds from a re-deployment until its last task ran on its
    new host. traffic: bytes/s, by kind.
    """

    case: NStormCase
    throughput: tuple[float, ...]
    moved: int
    landing: tuple[float, ...]
    restarts: int
    traffic: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return float(sum(self.throughput))


def per_second(batches: Sequence[CommittedBatch], since: float, seconds: int) -> tuple[float, ...]:
    """Records in each of `seconds` seconds from `since`: those of a batch are spread evenly over its duration.

    There are none between batches, nor in an aborted batch; its repetition counts them.
    """
    edges = since + np.arange(seconds + 1)
    times, done, count = [-np.inf], [0.0], 0.0
    for batch in sorted(batches, key=lambda batch: batch.start):
        times += [batch.start, batch.end]
        done += [count, count + batch.rows]
        count += batch.rows
    return tuple(np.diff(np.interp(edges, times[1:] or [0.0], done[1:] or [0.0])).tolist())


def usual(none: NStormRun, rounds: int) -> tuple[float, ...]:
    """Baseline records/s without migrations, for each second: the mean of its round, because machine speed varies."""
    means = np.reshape(none.throughput, (rounds, -1)).mean(axis=1)
    return tuple(np.repeat(means, len(none.throughput) // rounds).tolist())


def degraded(throughput: Sequence[float], baseline: Sequence[float]) -> dict[float, int]:
    """Seconds with at least each level of degradation relative to `baseline`, records in each second (Fig. 9)."""
    lost = 1 - np.asarray(throughput) / np.asarray(baseline)
    return {level: int((lost >= level - 1e-9).sum()) for level in LEVELS}


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


def bars(runs: Sequence[NStormRun], rounds: int, wrong: int = 0) -> tuple[Check, ...]:
    """The project's bars (after section 5.2.1), as far as the cases that were run determine them.

    rounds: of each case. wrong: final counts that differ from a batch query's.
    """
    by_case = {run.case: run for run in runs}
    none = by_case[NStormCase(None)]
    baseline = usual(none, rounds)
    checks = [Check("counts that differ from a batch query's", wrong, "0", wrong == 0, "project's bar")]

    restart = by_case.get(NStormCase(RESTART, 1))
    for scheme in (ONLINE, LAZY):
        run = by_case.get(NStormCase(scheme, 1))
        if run is None or restart is None:
            continue
        lost, worst = degraded(run.throughput, baseline), degraded(restart.throughput, baseline)[0.6]
        stopped, slow = lost[1.0] - degraded(none.throughput, baseline)[1.0], lost[0.6]
        limit = f"<= {worst / 5:g}, a fifth of stop and restart's {worst}"
        paper = "project's bar; paper: 20 of 279"
        checks += [
            Check(f"{scheme}, 1 task: seconds at 100 % added", stopped, "<= 0", stopped <= 0, "project's bar"),
            Check(f"{scheme}, 1 task: seconds at >= 60 %", slow, limit, slow <= worst / 5, paper),
        ]
    for run in runs:
        against = by_case.get(NStormCase(RESTART, run.case.moves))
        if run.case.scheme in (ONLINE, LAZY) and run.case.cycles is None and against is not None:
            ratio = run.total / against.total
            what = f"{run.case.name}: total over stop and restart's"
            checks.append(Check(what, round(ratio, 3), "> 1", ratio > 1, "project's bar"))
    return tuple(checks)


def run_cases(
    setting: Schedule, progress: Callable[[str, int, int], None], seed: int = 1
) -> tuple[list[NStormRun], dict[str, Any]]:
    """Run all cases on one cluster and one query; returns the runs and further facts.

    Raises EnvironmentProblem if the query fails.
    """
    with tempfile.TemporaryDirectory(prefix="nstorm-") as folder, contextlib.closing(Rig(Path(folder))) as rig:
        order = setting.order
        progress("starting four executors", 0, len(order) + 1)
        rig.begin(setting.warm)
        rounds, began = [], Used.now()
        for number, case in enumerate(order):
            progress(case.name, number + 1, len(order) + 1)
            # The same re-deployments for all schemes, other ones in each round.
            turn = order[:number].count(case)
            rounds.append(_run_case(rig, case, setting, random.Random(f"{seed} {turn} {case.moves}")))
        others = Used.now().others(began)
        rig.settle()  # the batch that is under way at the end counts for the last case
        progress("comparing counts", len(order) + 1, len(order) + 1)
        batches, wrong = rig.finish()
        by_case = {case: [(at, run) for at, run in rounds if run.case == case] for case in setting.cases}
        runs = [_together(each, rig.batches, setting) for each in by_case.values()]
        return runs, {"batches": batches, "hosts": rig.confinement, "wrong counts": wrong, "others": others}


def _together(rounds: Sequence[tuple[float, NStormRun]], batches: Sequence[CommittedBatch], setting: Schedule) -> NStormRun:
    """Combine the rounds of one case; each with its start, epoch seconds."""
    runs = [run for _, run in rounds]
    return NStormRun(
        runs[0].case,
        tuple(second for began, _ in rounds for second in per_second(batches, began, int(setting.seconds))),
        sum(run.moved for run in runs),
        tuple(seconds for run in runs for seconds in run.landing),
        sum(run.restarts for run in runs),
        {kind: sum(run.traffic[kind] for run in runs) / len(runs) for kind in runs[0].traffic},
    )


def _run_case(rig: Rig, case: NStormCase, setting: Schedule, chance: random.Random) -> tuple[float, NStormRun]:
    """Run a round of `case`: its start, epoch seconds, and its results without the throughput."""
    scheme = Scheme(case.scheme) if case.scheme else Scheme.LAZY
    cycles = Cycles(*case.cycles) if case.cycles else CYCLES[scheme]
    hurry = setting.hurry if scheme is not Scheme.LAZY else 1.0
    rig.settle()
    rig.follower.switch(scheme, Cycles(cycles.plan / hurry, cycles.batches / hurry))
    began, landing, asked = time.time(), [], 0.0
    restarts, landed, before = rig.take()
    times = iter(np.arange(setting.first, setting.seconds, setting.period).tolist() if case.moves else [])
    due = next(times, None)
    while (now := time.time() - began) < setting.seconds:
        if due is not None and now >= due:
            wanted = redeploy(rig.at, rig.hosts, case.moves, chance)
            rig.plan.publish(wanted, at=time.time(), why=case.name)
            asked, due = time.time(), next(times, None)
        if asked and (arrived := rig.arrival(asked)) is not None:
            landing.append(arrived)
            asked = 0.0
        time.sleep(0.05)
    restarted, ended, after = rig.take()
    traffic = {kind: (after[kind] - before[kind]) / setting.seconds for kind in after}
    return began, NStormRun(case, (), ended - landed, tuple(landing), restarted - restarts, traffic)

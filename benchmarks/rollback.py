"""Roll-back of bad decisions, simulated: injected ones, and those of policies on synthetic and recorded loads. Two minutes.

Bars: at least 95 % of the bad decisions are undone within five rounds of their effect (a host type slower than declared, an
alternate costlier than declared, a move behind a lost link), at most 1 % of the good ones. Good are the same decisions
under true declarations, and all that policies decide on loads that change, with true declarations, hosts and links.
"""

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, counting, main, progress
from promise import HIGH, HOUR, TARGET, loads, more, two

from elastream.control.rollback import BY, ROLLED_BACK
from elastream.core.action import Action, LeaseHost, MoveTask, ReleaseHost, RenewHost, SwitchAlternate
from elastream.core.hosts import Billing, HostType
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.trials import simulated
from elastream.loads import Ec2Speeds, LinkTrace, SpeedTrace, steps
from elastream.loads.links import pair_number
from elastream.loads.pattern import Pattern
from elastream.simulator import Settings, SimulatedPlant, Travel, make_plant
from elastream.simulator.settings import Service

SOURCE = "the project's bar for roll-back"
KINDS = ("slow type", "wrong cost", "lost link")
PERIOD, ROUNDS_BEFORE, ROUNDS_AFTER = 15.0, 20, 16
WITHIN_ROUNDS = 5
FIRST, CORES = 4, 0.2  # hosts at the start; cores of an instance


@dataclass(frozen=True)
class Case:
    """One run with one injected decision, which keeps its promise unless it is `bad`."""

    kind: str
    seed: int
    bad: bool = True
    chained: bool = False

    @property
    def title(self) -> str:
        layout = "chained" if self.chained else "unchained"
        return f"{self.kind}, {layout}, seed {self.seed}, {'bad' if self.bad else 'good'}"


class Injected(Policy):
    """Plans nothing but the decision of a case, in round `at`."""

    name = "injected"

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at = kind, at

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        number = (memory or 0) + 1
        return Plan(tuple(self._actions(observation)) if number == self.at else (), number)

    def _actions(self, observation: Observation) -> Sequence[Action]:
        match self.kind:
            case "slow type":
                return [LeaseHost(observation.host_name(), "bargain")]
            case "wrong cost":
                return [SwitchAlternate("work", "cheap")]
            case _:
                return [MoveTask(task, f"h{FIRST}") for task in observation.tasks.tasks if task.operator == "work"]


def dataflow(cost: float) -> Graph:
    """Source > first > work (two alternates) > count (keyed) > sink."""
    alternates = (Alternate("exact", cost=cost, value=1.0), Alternate("cheap", cost=cost / 2, value=0.9))
    operators = (
        Operator("source", Kind.SOURCE),
        Operator("first", alternates=(Alternate("first", cost=cost / 4),), cores=CORES),
        Operator("work", alternates=alternates, cores=CORES),
        Operator("count", Kind.KEYED, (Alternate("count", cost=cost / 4),), key=("k",), cores=CORES),
        Operator("sink", Kind.SINK, cores=0.0),
    )
    names = [each.name for each in operators]
    return Graph("injected", operators, tuple(Edge(a, b) for a, b in pairwise(names)))


def plant_of(case: Case) -> SimulatedPlant:
    """Return the plant of a case: a seed draws the true values, which differ from the declared ones if the case is bad."""
    draw = np.random.default_rng((case.seed, KINDS.index(case.kind)))
    cost, fill, slow, dear, far = (
        float(draw.uniform(low, high)) for low, high in ((5e-4, 2e-3), (0.2, 0.6), (0.15, 0.5), (1.2, 6.0), (1e5, 1e6))
    )
    speeds, latency = np.ones((64, 1)), np.ones((64, 1))
    cheap, links = cost / 2, None
    match case.kind if case.bad else "":
        case "slow type":
            speeds[FIRST:] = slow
        case "wrong cost":
            cheap = cost * dear
        case "lost link":
            latency[pair_number(np.arange(FIRST - 1), np.full(FIRST - 1, FIRST - 1))] = far
            links = LinkTrace(latency, np.ones((64, 1)))
    kinds = [
        HostType(name, cores=4.0, memory=8000.0, price=price, billing=Billing(60.0), start=30.0, stop=5.0, slots=64)
        for name, price in (("standard", 4.0), ("bargain", 2.5))
    ]
    rate = fill * (FIRST * 4 / 1.5 if case.chained else 16 * CORES) / cost
    return make_plant(
        lay_out(dataflow(cost), chained=case.chained),
        host_types=kinds,
        loads={"source": noisy(rate, case.seed)},
        seed=case.seed,
        settings=Settings(
            monitor=1.0 if case.chained else PERIOD,
            travel=Travel.COHORTS,
            cohorts_above=0,
            speed_trace=SpeedTrace(speeds),
            link_trace=links,
            services={"work": Service(alternates={"exact": (cost, 1.0), "cheap": (cheap, 1.0)})},
        ),
        hosts=["standard"] * FIRST,
        on={} if case.chained else {name: [n % (FIRST - 1) for n in range(16)] for name in ("first", "work", "count")},
        parallelism={"source": 16} if case.chained else {"first": 8, "work": 16, "count": 8},
        target_latency=TARGET,
        max_hosts=20,
    )


def noisy(rate: float, seed: int) -> ArrivalPattern:
    """Return a load with independent noise of up to 5 %, by seed, about `rate`."""
    draw = np.random.default_rng((seed, len(KINDS)))
    noise = draw.normal(0.0, draw.uniform(0.0, 0.05), 2 * (2 * ROUNDS_BEFORE + ROUNDS_AFTER))
    return steps(*(rate * max(0.5, 1 + each) for each in noise.tolist()), every=PERIOD)


def inject(case: Case) -> float:
    """Return the rounds from the effect of a case's decision to its undo; inf if it is not undone."""
    at = ROUNDS_BEFORE + case.seed % 10
    effects: list[float] = []

    def look(observation: Observation) -> None:
        types = {observation.leases[host].type.name for host in observation.usable}
        if (case.kind != "slow type" or "bargain" in types) and observation.time > at * PERIOD:
            effects.append(observation.time)

    plant = plant_of(case)
    until = PERIOD * (at + ROUNDS_AFTER)
    decisions = simulated(plant, Injected(case.kind, at), period=PERIOD, until=until, look=look).decisions
    undone = [each.time for each in decisions if any(p.by == BY and not p.refused for p in each.proposals)]
    # The effect shows in the observation after the round in which it came.
    return (undone[0] - effects[0]) / PERIOD + 1 if undone else math.inf


@dataclass(frozen=True)
class Course:
    """Run of a policy on a load that changes, under true declarations."""

    policy: str
    load: str
    chained: bool
    speeds: bool  # hosts of EC2's speeds
    quick: bool
    data: Path

    @property
    def title(self) -> str:
        speeds = ", speeds of EC2" if self.speeds else ""
        return f"{self.policy} on {self.load}, {'chained' if self.chained else 'unchained'}{speeds}"


def course(case: Course) -> tuple[int, list[str]]:
    """Return the number of decisions with an effect, and the reasons of those undone."""
    seconds = HOUR if case.quick else 2 * HOUR
    graph = two() if case.policy in ("threshold", "btu", "queue_threshold") else dataflow(2e-4)
    kind = HostType("m1.small", 1.0, 1700.0, price=0.044, billing=Billing(60.0), start=60.0, slots=10_000)
    larger = HostType("m1.large", 4.0, 7500.0, price=0.18, billing=Billing(60.0), start=60.0, slots=10_000)
    pattern = all_loads(case.data)[case.load]
    speeds = Ec2Speeds(seed=1).over(seconds) if case.speeds else None
    plant = make_plant(
        lay_out(graph, chained=case.chained),
        host_types=[kind, larger],
        loads={"source": pattern.scaled(0.25) if isinstance(pattern, Pattern) else pattern},
        seed=1,
        settings=Settings(monitor=1.0 if case.chained else PERIOD, travel=Travel.COHORTS, speed_trace=speeds),
        target_latency=TARGET,
        max_hosts=200,
    )
    policy = made(POLICY, *named_in(case.policy, POLICY), References())
    decisions = simulated(plant, policy, period=PERIOD, until=seconds).decisions
    with_effect = [each for each in decisions if any(not isinstance(o.action, RenewHost | ReleaseHost) for o in each.done)]
    undone = [note for each in decisions for note in each.note.split("; ") if note.startswith(ROLLED_BACK)]
    return len(with_effect), undone


def all_loads(data: Path) -> dict[str, ArrivalPattern]:
    """Return the loads of `promise.py`, and a constant one with 20 % of noise."""
    noise = np.random.default_rng(1).normal(0.0, 0.2, 480).tolist()
    constant = steps(*(HIGH / 2 * max(0.2, 1 + each) for each in noise), every=PERIOD)
    return {name: load for name, (load, *_) in loads(data, True).items()} | {"noise": constant}


def courses(arguments: argparse.Namespace) -> list[Course]:
    data, quick = arguments.data, arguments.quick
    ways = [("threshold", True, False), ("threshold", False, False), ("threshold", True, True), ("btu", False, False),
            ("queue_threshold", False, False), ("ce:throughput=1", True, False)]  # fmt: skip
    names = list(all_loads(data))
    return [Course(policy, name, chained, speeds, quick, data) for policy, chained, speeds in ways for name in names]


def measure(arguments: argparse.Namespace) -> Report:
    report, workers, title = Report(), os.cpu_count() or 1, attrgetter("title")
    seeds = range(4 if arguments.quick else 100)
    layouts = {"slow type": (True, False), "wrong cost": (True, False), "lost link": (False,)}
    cases = [
        Case(kind, seed, bad, chained)
        for kind, of_kind in layouts.items()
        for chained, bad, seed in product(of_kind, (True, False), seeds)
    ]
    rounds, _ = run_all(inject, cases, ExperimentOptions(workers=workers, progress=counting(50, "cases")), title)
    for kind in KINDS:
        bad = [each for case, each in zip(cases, rounds, strict=True) if case.kind == kind and case.bad]
        within = sum(each <= WITHIN_ROUNDS for each in bad) / len(bad)
        report.at_least(f"{kind}: undone within {WITHIN_ROUNDS} rounds", within, 0.95, SOURCE)
        report.figures[kind] = {"runs": len(bad), "undone": sum(each < math.inf for each in bad), "within": within}
    good = [each for case, each in zip(cases, rounds, strict=True) if not case.bad]
    report.at_most("injected good decisions: undone", sum(each < math.inf for each in good) / len(good), 0.01, SOURCE)
    runs = [each for each in courses(arguments) if arguments.only in each.title]
    results, _ = run_all(course, runs, ExperimentOptions(workers=workers, progress=counting(1, "runs")), title)
    for each, (decisions, undone) in zip(runs, results, strict=True):
        progress(f"{each.title}: {decisions} decisions, {len(undone)} undone" + "".join(f"\n  {why}" for why in undone))
    total = sum(decisions for decisions, _ in results)
    share = sum(len(undone) for _, undone in results) / max(1, total)
    report.at_most("decisions of policies on loads that change: undone", share, 0.01, SOURCE)
    report.figures["policies"] = {case.title: [n, len(undone)] for case, (n, undone) in zip(runs, results, strict=True)}
    report.figures["decisions of policies"] = total
    return report


if __name__ == "__main__":
    main("rollback", __doc__, measure, more)

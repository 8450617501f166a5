"""Trials of policies on the simulated plant, in the loop of live runs, on parallel workers."""

import gc
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait as wait_for_any
from typing import Any, Protocol, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from elastream.control.extension import KeyTableExtension, LoopExtension
from elastream.control.guarding import GuardExtension
from elastream.control.loop import Loop
from elastream.core.decision import Decision, Unknown, longest_lacked
from elastream.core.fitting import state_partitions_of
from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.core.observation import Observation
from elastream.core.plant import Plant, Policy, Prospect, Variation, check_supported
from elastream.core.scaling import NO_RULES, ScalingRules, rule_of
from elastream.core.wording import gist
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.key_table import KeyTableBook
from elastream.dataflow.stages import Layout
from elastream.errors import ElastreamError
from elastream.evaluation.comparison import Trial
from elastream.evaluation.worth import WorthWatch, merits_of
from elastream.guards.document import GuardDocument
from elastream.guards.pollers import ReadOnce
from elastream.loads.links import LinkTrace, pair_number
from elastream.loads.speeds import SpeedTrace, number_of
from elastream.policies.common.provision import Costs
from elastream.policies.static import initial_hosts
from elastream.policies.value_cost.problem import Goal
from elastream.recording.guard_log import GuardLog
from elastream.recording.observer import Observer
from elastream.settings import SimulateSettings
from elastream.simulator import Result, Settings, SimulatedPlant, make_plant
from elastream.simulator.plant import Advancing
from elastream.units import ROUNDING

# share of rounds from which a remark characterises a run
OFTEN = 0.1


@dataclass(frozen=True)
class SimulatedRun:
    result: Result
    decisions: tuple[Decision, ...]

    @property
    def refused(self) -> int:
        return sum(
            sum(bool(proposal.refused) and proposal.by == decision.policy for proposal in decision.proposals)
            + sum(not outcome.succeeded for outcome in decision.outcomes)
            for decision in self.decisions
        )

    @property
    def lacked(self) -> tuple[Unknown, ...]:
        return longest_lacked(self.decisions)

    @property
    def remarked(self) -> str:
        """Return the most frequent remark or refusal if in `OFTEN` of the rounds, else ""."""
        counts, last = Counter[str](), dict[str, str]()
        for decision in self.decisions:
            refused = (each.refused for each in decision.proposals if rule_of(each.refused))
            texts = {gist(each): each for each in (*decision.note.split("; "), *refused) if each}
            counts.update(texts.keys())
            last |= texts
        most = counts.most_common(1)
        return last[most[0][0]] if most and most[0][1] >= OFTEN * len(self.decisions) else ""


def simulated(  # noqa: PLR0913
    plant: SimulatedPlant,
    policy: Policy,
    *,
    period: float,
    until: float,
    look: Callable[[Observation], None] = lambda _: None,
    guards: GuardDocument | None = None,
    scaling: ScalingRules = NO_RULES,
    figures: bool = True,
    roll_back: bool = True,
) -> SimulatedRun:
    """Let `policy` plan every `period` seconds; close the plant at `until`.

    Args:
        look: Receives every observation, once a period.
        guards: In force throughout; external signals keep their initial values.
    """
    plant.advance(plant.time + period)
    versions, outside = GuardLog(), ReadOnce(plant.clock.now)
    if guards is not None:
        outside.follow(guards.signals)
        versions.append(guards.text, guards.path, "simulate")
    decisions = steered(
        plant, policy, period=period, until=until, look=look,
        extensions=(GuardExtension(versions, outside), KeyTableExtension(plant.network.tables)),
        scaling=scaling, figures=figures, roll_back=roll_back,
    )  # fmt: skip
    return SimulatedRun(plant.result(), decisions)


class SteeredPlant(Plant, Advancing, Protocol):
    """Plant whose time advances on request."""


def steered(  # noqa: PLR0913
    plant: SteeredPlant,
    policy: Policy,
    *,
    period: float,
    until: float,
    look: Callable[[Observation], None] = lambda _: None,
    extensions: Sequence[LoopExtension] = (),
    scaling: ScalingRules = NO_RULES,
    figures: bool = True,
    roll_back: bool = True,
) -> tuple[Decision, ...]:
    """Run `policy` on any plant in simulated time; return every round's decision."""
    watch = _Watch(look)
    limit = until - plant.time
    loop = Loop(
        plant, policy, monitor=period, period=period, observers=[watch], limit=limit, to_the_limit=True,
        extensions=extensions, scaling=scaling, figures=figures, roll_back=roll_back,
    )  # fmt: skip
    watch.stop = loop.stop
    with _unlogged(), _rare_collections():
        ending = loop.run()
    if watch.broken is not None:
        raise watch.broken
    if ending.status == "failed":
        raise ElastreamError(ending.reason)
    for decision in watch.decisions.values():
        for fault in decision.faults:
            error = ElastreamError(f"at {decision.time:g} s of the simulated run: {fault.said}{fault.place}")
            error.add_note(fault.traceback)
            raise error
    return tuple(watch.decisions.values())


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silence the loop's fault log: the raised error reports it."""
    of_loop = logging.getLogger(Loop.__module__)
    before, of_loop.disabled = of_loop.disabled, True
    try:
        yield
    finally:
        of_loop.disabled = before


# Allocations between two garbage collections of a simulated run: a round leaves no cycles, and its decision stays.
ALLOCATIONS = 100_000


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage rarely: each collection visits the decisions of all rounds so far."""
    before = gc.get_threshold()
    gc.set_threshold(max(ALLOCATIONS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Watch(Observer):
    def __init__(self, look: Callable[[Observation], None]) -> None:
        self._look = look
        self.stop: Callable[[], None] = lambda: None
        self.decisions: dict[int, Decision] = {}
        self.broken: Exception | None = None

    def observed(self, observation: Observation) -> None:
        try:
            self._look(observation)
        except Exception as error:
            self.broken = error
            raise

    def decided(self, decision: Decision) -> None:
        self.decisions[decision.round] = decision
        if decision.faults:
            self.stop()


# seconds between looks at the workers' progress; least seconds between a worker's reports
LOOK, TELL = 0.5, 0.2


C = TypeVar("C")
R = TypeVar("R")
# receives a case's progress, in a unit of its own
Tell = Callable[[float], None]

# workers inherit it; set before forking
_inherited: dict[str, Any] = {}


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_beside(
    run: Callable[[C, Tell], R],
    cases: Sequence[C],
    workers: int,
    follow: Callable[[Sequence[float], Sequence[bool]], None] = lambda *_: None,
    ended: Callable[[int, R], None] = lambda *_: None,
) -> list[R]:
    """Run all `cases` on up to `workers` processes; return their results in order.

    The first error or interrupt ends all cases and is raised.
    """
    progress, done = [0.0] * len(cases), [False] * len(cases)
    if min(workers, len(cases)) < 2 or sys.platform == "win32" or sys.platform == "darwin":
        results = []
        for number, case in enumerate(cases):

            def tell(far: float, number: int = number) -> None:
                progress[number] = far
                follow(progress, done)

            results.append(run(case, sparing(tell)))
            ended(number, results[-1])
            done[number] = True
            follow(progress, done)
        return results
    forked = multiprocessing.get_context("fork")
    others = set(multiprocessing.active_children())
    reports = forked.SimpleQueue()
    _inherited.update(run=run, cases=cases, reports=reports)
    pool = ProcessPoolExecutor(min(workers, len(cases)), mp_context=forked, initializer=_as_worker)
    try:
        futures = [pool.submit(_run_inherited, number) for number in range(len(cases))]
        waiting: set[Future[R]] = set(futures)
        numbers = {future: number for number, future in enumerate(futures)}
        while waiting:
            new, waiting = wait(waiting, timeout=LOOK, return_when=FIRST_COMPLETED)
            for future in new:
                ended(numbers[future], future.result())  # raises what the case raised
            while not reports.empty():
                number, far = reports.get()
                progress[number] = far
            done = [future.done() for future in futures]
            follow(progress, done)
        return [future.result() for future in futures]
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        _inherited.clear()


def sparing(tell: Tell) -> Tell:
    last = -TELL

    def now_and_then(far: float) -> None:
        nonlocal last
        if time.monotonic() - last >= TELL:
            last = time.monotonic()
            tell(far)

    return now_and_then


def _as_worker() -> None:
    # Interrupts are the parent's; a worker whose parent is gone ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threadpool_limits(1)  # every core has a worker, so further threads would only wait for each other
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow_the_parent() -> None:
            wait_for_any([parent.sentinel])
            os._exit(1)

        threading.Thread(target=follow_the_parent, daemon=True).start()


def _run_inherited(number: int) -> Any:
    reports = _inherited["reports"]
    return _inherited["run"](_inherited["cases"][number], sparing(lambda far: reports.put((number, far))))


def prospect_of(
    layout: Layout,
    host_types: Sequence[HostType],
    loads: Mapping[str, ArrivalPattern],
    settings: Settings,
    *,
    seconds: float | None = None,
    window: float | None = None,
) -> Prospect:
    costs = {operator: (each.cost, each.selectivity) for operator, each in settings.services.items()}
    speeds = None if settings.speed_trace is None else _speeds(settings.speed_trace)
    links = None if settings.link_trace is None else _links(settings.link_trace)
    return Prospect(layout, host_types, loads, seconds, window, costs, speeds, links)


def _speeds(trace: SpeedTrace) -> Variation:
    def course(host: str, times: Floats) -> Floats:
        number = number_of(host, -1)
        return np.full(times.shape, np.nan) if number < 0 else _row(trace.factors, number, trace.interval, times)

    return course


def _links(trace: LinkTrace) -> Variation:
    def course(link: str, times: Floats) -> Floats:
        ends = [number_of(host, -1) for host in link.split(">")]
        if min(ends) < 0 or len(ends) != 2:
            return np.full(times.shape, np.nan)
        pair = int(pair_number(np.array(ends[0]), np.array(ends[1])))
        return _row(trace.bandwidth, pair, trace.interval, times)

    return course


def _row(table: Floats, row: int, interval: float, times: Floats) -> Floats:
    slots = np.floor(times / interval + ROUNDING).astype(np.int64)
    return np.asarray(table[row % table.shape[0], slots % table.shape[1]])


# limit if the cloud sets none
MOST_HOSTS = 1_000


@dataclass(frozen=True)
class Scene:
    """Conditions that all policies of a comparison share.

    Attributes:
        period: Seconds between plans.
        partitions_for: Hosts that default state partitions suffice for; None: those of `constants`.
    """

    layout: Layout
    loads: Mapping[str, ArrivalPattern]
    seconds: float
    records: int
    constants: Settings
    settings: SimulateSettings
    period: float
    guards: GuardDocument | None = None
    goal: Goal | None = None
    partitions_for: int | None = None

    @property
    def max_hosts(self) -> int:
        return self.settings.max_hosts or MOST_HOSTS

    @property
    def min_hosts(self) -> int:
        """Return the fewest hosts at once, also at the start."""
        return self.settings.min_hosts or 1

    @property
    def costs(self) -> Costs:
        return self.prospect.costs

    @property
    def prospect(self) -> Prospect:
        return prospect_of(
            self.layout,
            self.settings.types,
            self.loads,
            self.constants,
            seconds=self.seconds,
            window=self.settings.latency,
        )

    def set_up(self, policy: Policy) -> tuple[SimulatedPlant, Policy]:
        policy = policy.prepared(self.prospect)
        constants, types = self.constants, self.settings.types
        if self.partitions_for is not None:
            default = state_partitions_of(types, self.partitions_for, policy.partitions_a_host)
            constants = replace(constants, state_partitions=max(constants.state_partitions, default))
        hosts, parallelism = initial_hosts(policy, self.layout, types, self.max_hosts, self.costs) or (None, None)
        if hosts is not None:  # its own, and those below which no run has fewer
            hosts = [*hosts, *hosts[:1] * (self.min_hosts - len(hosts))]
        plant = make_plant(
            self.layout,
            hosts=hosts,
            parallelism=parallelism,
            host_types=types,
            loads=self.loads,
            seed=self.settings.seed,
            settings=constants,
            max_hosts=self.max_hosts,
            min_hosts=self.min_hosts,
            target_latency=self.settings.latency,
            seconds=self.seconds,
            tables=KeyTableBook(*self.settings.tables),
        )
        check_supported(policy, plant.context)
        return plant, policy


def tried(scene: Scene, name: str, policy: Policy, tell: Tell) -> Trial:
    """Try `policy`; `tell` receives the simulated time."""
    plant, policy = scene.set_up(policy)
    watch = None if scene.goal is None else WorthWatch(scene.layout.graph, scene.goal, scene.period)

    def look(observation: Observation) -> None:
        tell(observation.time)
        if watch is not None:
            watch.look(observation)

    run = simulated(
        plant,
        policy,
        period=scene.period,
        until=scene.seconds,
        look=look,
        guards=scene.guards,
        scaling=replace(scene.settings.scaling, approve=None),  # nobody can approve leases
        figures=False,  # a trial reads what was proposed and refused
    )
    latency = scene.settings.latency
    waiting = sum(operator.queued for operator in run.result.operators.values())
    late = _overdue(scene.layout, run.result, scene.loads, scene.seconds, scene.records, latency)
    compliance = _compliance(run.result, latency, late)
    merits = None if watch is None or scene.goal is None else merits_of(watch, scene.goal)
    result, remark = run.result, run.remarked
    return Trial(name, result.cost, compliance, result, waiting, run.refused, run.lacked, late, merits, remark)


def _overdue(
    layout: Layout,
    result: Result,
    loads: Mapping[str, ArrivalPattern],
    length: float,
    records: int,
    target_latency: float | None,
) -> float:
    graph = layout.graph
    done: dict[str, float] = {}
    for name in graph.order:
        part = min((done[edge.source] for edge in graph.inputs[name]), default=1.0)
        if (operator := result.operators.get(name)) is not None:
            arrived = max(operator.arrived, operator.done + operator.queued + operator.in_service)
            part *= 1 - (operator.queued + operator.in_service) / arrived if arrived > 0 else 1.0
        done[name] = part
    if target_latency is None and not any(operator.max_duration is not None for operator in graph.operators):
        return 0.0
    levels = sum(operator.max_duration or 0.0 for operator in graph.operators)
    grace = levels if target_latency is None else target_latency
    young = sum(load.count(length) - load.count(max(0.0, length - grace)) for load in loads.values())
    return max(0.0, 1 - min(done[sink.name] for sink in graph.sinks) - young / records)


def _compliance(result: Result, target_latency: float | None, overdue: float) -> float | None:
    """Return the fraction of records in time, or None; `overdue`: fraction queued and late at the end."""
    if target_latency is None:
        if not any(operator.within for operator in result.operators.values()):
            return None
        share = result.compliance(1.0)
        return 0.0 if math.isnan(share) else share * (1 - overdue)
    in_time, finished = result.series[:, 5], result.series[:, 6]
    measured = ~np.isnan(in_time) & (finished > 0)
    return float(np.average(in_time[measured], weights=finished[measured])) * (1 - overdue) if measured.any() else 0.0

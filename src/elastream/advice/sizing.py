"""Sizing of an application: other numbers of hosts, and `horizon`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from elastream.advice.application import Application, LoggedBatch, LoggedQuery
from elastream.advice.service import ANY_TASKS, LEAST_CALIBRATED, Arrivals, BatchModel, Latency, Slots, cross_validated
from elastream.core.frames import Floats
from elastream.core.hosts import Billing, HostType
from elastream.core.wording import amount, counted
from elastream.policies.common.service import MOST_OVERHEAD, Service, planned_seconds
from elastream.policies.horizon.budget import Grid
from elastream.policies.horizon.policy import IN_TIME, LEAST_PAST, outlooks_of
from elastream.policies.horizon.replay import REPLAYED, Choice, Fleet, Setting, replay
from elastream.policies.horizon.scenarios import Past
from elastream.units import format_duration

NAN = float("nan")
NO_CORES = "sizes: this source does not say how many cores the tasks had; give them with --cores"
NO_FLEET = "what the policy horizon would lease: no number of hosts keeps the target"
HOURS_A_MONTH = 730.0
UNKNOWN_LATENCY = Latency()
# Hosts on the curve: every number up to the first constant, then fewer; at most the second constant times the logged hosts.
EACH_HOST, MOST_TIMES = 8, 2
# Newest batches of a query that are predicted again for each number of hosts.
PREDICTED = 4_000
# Share of the work of a query without a model, from which sizes of the others mislead.
UNSERVED = 0.1
# Bytes of state whose memory sizes should not ignore in silence.
LARGE_STATE = 100e6
# Part of the target that a record takes at most with the advised trigger; partitions a slot.
TRIGGER_WAIT, PARTITIONS_A_SLOT = 0.9, 2
# Shortest bin of arrivals whose peak rate a trigger must bear.
LEAST_BIN_S = 1.0
# Seconds between plans of `horizon`, and the start of a host, which a log does not tell.
PACE_S, HOST_START_S = 15.0, 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """A number of hosts on the curve.

    Attributes:
        p50, p99: Of the slowest query (seconds).
        in_time: Share of records within the target.
        cost: Of a month; NaN without a price.
        logged: True for the log's fleet.
    """

    hosts: float
    cores: float
    p50: float
    p99: float
    in_time: float
    busy: float
    cost: float
    logged: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a query.

    Attributes:
        partitions: 0 without a shuffle.
        trigger: Longest (seconds); NaN if none keeps the target.
        batch_rows: Records that take half of the target; NaN if none do.
    """

    query: str
    partitions: int
    trigger: float
    batch_rows: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Model of a query's batches (seconds).

    Attributes:
        work: Of tasks, per record.
        driver, tasks: Of a batch without records.
        spread: Longest task over the mean; NaN without tasks.
        state: Commits per batch.
        error: Of p50 and p99 by cross-validation; NaN if unknown.
    """

    query: str
    work: float
    driver: float
    tasks: float
    spread: float
    state: float
    error: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sizing:
    """Sizing of an application.

    Attributes:
        unit: "executor", or "core" of a single process.
        error: The largest of a query.
        logged: Latencies in the log.
        fixed: Fewest constant hosts that keep the target; None if none do.
        horizon: Mean of the policy `horizon`; None if the log is too short.
        useful: Hosts beyond which no query has tasks; 0 if unknown.
    """

    unit: str
    cores_each: float
    curve: tuple[Point, ...] = ()
    error: tuple[float, float] = (NAN, NAN)
    logged: Latency = UNKNOWN_LATENCY
    fixed: Point | None = None
    horizon: Point | None = None
    useful: int = 0
    settings: tuple[Settings, ...] = ()
    calibration: tuple[Calibration, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Served:
    query: LoggedQuery
    batches: list[LoggedBatch]
    model: BatchModel
    arrivals: Arrivals
    error: tuple[float, float]

    @property
    def records(self) -> float:
        return float(self.arrivals.total[-1])

    @property
    def busy(self) -> float:
        return self.records * self.model.work / float(np.ptp(self.arrivals.times))


def size(application: Application, target: float, price: float, limits: dict[str, float]) -> Sizing:
    """Predict the latencies of other fleets.

    Args:
        target: Seconds.
        price: Of a host-hour; NaN if unknown.
        limits: Most records of a batch, by id of a limited query.
    """
    alone = all(each.id == "driver" for each in application.working)
    unit, each = ("core", 1.0) if alone else ("executor", application.cores_each)
    logged = _logged(application, target)
    if not application.executors:
        return Sizing(unit, each, logged=logged, unknown=(NO_CORES,))
    served, unknown = _calibrated(application, target, limits)
    if missing := _missing(application, served):
        unknown.append(f"sizes: the service of {missing}, which has much of the work, is unknown")
    if missing or not served:
        return Sizing(unit, each, logged=logged, unknown=tuple(unknown))
    width = max(1.0, each // application.task_cpus)
    now = round(float(np.median([application.slots(batch.start) for one in served for batch in one.batches])) / width)
    tasks = max(one.model.useful_slots for one in served)
    useful = 0 if tasks >= ANY_TASKS else math.ceil(tasks / width)
    curve = tuple(
        _point(served, hosts, hosts * width, each, target, price, logged=hosts == now)
        for hosts in _numbers(max(1, now), useful or ANY_TASKS)
    )
    fixed = next((point for point in curve if point.in_time >= IN_TIME), None)
    horizon, why = _horizon(served, each, target, price, fixed) if fixed else (None, NO_FLEET)
    slots = (fixed or curve[-1]).hosts * width
    return Sizing(
        unit,
        each,
        curve,
        (max(one.error[0] for one in served), max(one.error[1] for one in served)),
        logged,
        fixed,
        horizon,
        useful,
        tuple(_settings(one, target, slots) for one in served),
        tuple(map(_calibration, served)),
        (*unknown, why) if why else tuple(unknown),
    )


def partitions_on(slots: float) -> int:
    return max(2, round(PARTITIONS_A_SLOT * slots))


def longest_trigger(target: float, fixed: float, by_records: float) -> float:
    """Return the longest interval (seconds) that keeps the target and no batch overruns, or NaN.

    Args:
        fixed: Seconds of a batch without records.
        by_records: Seconds for the records of a second.
    """
    interval = TRIGGER_WAIT * (target - fixed) / (1.0 + by_records)
    return interval if fixed < interval * (1.0 - by_records) else NAN


def _settings(one: _Served, target: float, slots: float) -> Settings:
    shuffles = bool(one.query.stateful) or any(stage.times.shuffled for batch in one.batches for stage in batch.stages)
    rates, fixed = one.arrivals.rates(max(LEAST_BIN_S, target)), one.model.seconds(0.0, slots)
    rate = float(np.quantile(rates, IN_TIME)) if rates.size else one.records / float(np.ptp(one.arrivals.times))
    by_records = (one.model.seconds(1e6, slots) - fixed) / 1e6 * rate
    most = one.model.largest_batch(target / 2, slots)
    return Settings(
        one.query.name,
        partitions_on(slots) if shuffles else 0,
        longest_trigger(target, fixed, by_records),
        most if 0 < most < math.inf else NAN,
    )


def _calibration(one: _Served) -> Calibration:
    model, widest = one.model, max(one.model.stages, key=lambda stage: stage.run.each)
    return Calibration(
        one.query.name,
        math.fsum(stage.run.each for stage in model.stages),
        model.driver.fixed,
        math.fsum(stage.run.fixed for stage in model.stages),
        widest.spread if model.of_tasks else NAN,
        float(np.median([batch.state_work for batch in one.batches])),
        one.error,
    )


def _calibrated(application: Application, target: float, limits: dict[str, float]) -> tuple[list[_Served], list[str]]:
    served, unknown = [], []
    begun, ended = application.span
    work, tasks = _work(application), any(batch.stages for query in application.queries.values() for batch in query.batches)
    for id, query in application.queries.items():
        warm, limit = query.warm[-PREDICTED:], limits.get(id, math.inf)
        others = math.fsum(each for other, each in work.items() if other != id) / max(ended - begun, 1e-9)
        slots = _left_by(application, others) if tasks else _shared_with(application, others)
        if query.bounded:
            lasts = format_duration(query.runs[-1][-1].end - query.runs[-1][0].start)
            unknown.append(f"sizes for {query.name}: it read what was there, as with availableNow, and ended after {lasts}")
            continue
        if query.lacking:
            continue
        if files := query.waiting_files:
            unknown.append(f"latency and sizes of {query.name}: {amount(files)} files wait, of unknown numbers of records")
            continue
        if limit < math.inf and all(math.isnan(batch.behind) for batch in warm):
            unknown.append(f"sizes for {query.name}: its source is limited and does not report what waits")
            continue
        model = BatchModel.of(query, warm, slots, limit)
        if model is None:
            batches = counted(len(warm), "warm batch", "warm batches")
            unknown.append(f"the service of {query.name}: {batches}, and {LEAST_CALIBRATED} are needed")
            continue
        unknown += _unknown(query, warm, model)
        error = cross_validated(query, warm, slots, target, limit)
        served.append(_Served(query, warm, model, Arrivals.of(query, warm), error))
    if len(served) > 1:
        unknown.append("how queries delay each other: each is predicted on the slots that others leave idle on average")
    if any(math.isnan(one.error[0]) for one in served):
        unknown.append("the error of the sizes: a half of the log is too short to be predicted by the other")
    return served, unknown


def _unknown(query: LoggedQuery, warm: Sequence[LoggedBatch], model: BatchModel) -> Iterator[str]:
    """Yield what is unknown of a modelled query."""
    if len(query.warm) > PREDICTED:
        yield f"sizes over all of {query.name}: they are those of its newest {PREDICTED:,} batches"
    if not model.of_tasks:
        yield f"the tasks of {query.name}: what grows with its records is taken to divide over all cores"
    if math.isnan(warm[-1].behind):
        yield f"what waits for {query.name}: its source does not report it, and counts as read by each batch"
    if (state := max(batch.state_bytes for batch in warm)) >= LARGE_STATE:
        yield f"whether fewer hosts have the memory for {query.name}: its state takes {amount(state / 1e6)} MB"
    if query.stateful:
        yield f"the time that {query.name} needs to load state after a move"
    if query.restless:
        yield f"whether {query.name} has a trigger: no batch waited for one, and more hosts may let some wait"
    if not model.separable:
        yield f"how the work of {query.name} grows with its records: all batches had about as many"


def _missing(application: Application, served: Sequence[_Served]) -> str:
    """Return a query without a model that has much work, or ""."""
    work, known = _work(application), [one.query for one in served]
    most = UNSERVED * math.fsum(work.values())
    heavy = (query for id, query in application.queries.items() if work[id] > most)
    return next((query.name for query in heavy if all(query is not each for each in known)), "")


def _work(application: Application) -> dict[str, float]:
    """Return seconds of tasks by query; of batches, if no task is known."""
    run = {id: math.fsum(batch.run for batch in query.batches) for id, query in application.queries.items()}
    if any(run.values()):
        return run
    return {id: math.fsum(batch.seconds for batch in query.batches) for id, query in application.queries.items()}


def _left_by(application: Application, others: float) -> Slots:
    return lambda at: max(1.0, application.slots(at) - others)


def _shared_with(application: Application, others: float) -> Slots:
    """Return an equal share of the slots, with `others` more batches at a time."""
    return lambda at: max(1.0, application.slots(at) / (1 + others))


def _constant(slots: float) -> Slots:
    return lambda _: slots


def _logged(application: Application, target: float) -> Latency:
    each = [(query, query.warm) for query in application.queries.values()]
    return _together([(sum(b.rows for b in warm), Latency.logged(query, warm, target)) for query, warm in each if warm])


def _together(latencies: Sequence[tuple[float, Latency]]) -> Latency:
    records = math.fsum(count for count, _ in latencies)
    if not records:
        return Latency()
    in_time = math.fsum(count * latency.in_time for count, latency in latencies) / records
    return Latency(max(each.p50 for _, each in latencies), max(each.p99 for _, each in latencies), in_time)


def _numbers(now: int, useful: int) -> list[int]:
    most = max(now, min(useful, MOST_TIMES * now))
    beyond = {round(EACH_HOST * 1.25**step) for step in range(40)}
    return sorted({*range(1, min(most, EACH_HOST) + 1), *(each for each in beyond if each < most), now, most})


def _point(
    served: Sequence[_Served], hosts: int, slots: float, cores: float, target: float, price: float, *, logged: bool
) -> Point:
    latencies, busy = [], math.fsum(one.busy for one in served)
    for one in served:
        own = max(1.0, slots - (busy - one.busy))
        if busy > slots and one.busy > 0:
            own = slots * one.busy / busy / one.model.lent  # no slot is idle
        latencies.append((one.records, one.model.predict(one.arrivals, _constant(own), target)))
    all_ = _together(latencies)
    share = min(1.0, busy / slots)
    return Point(hosts, hosts * cores, all_.p50, all_.p99, all_.in_time, share, hosts * price * HOURS_A_MONTH, logged)


def _horizon(
    served: Sequence[_Served], cores: float, target: float, price: float, fixed: Point
) -> tuple[Point | None, str]:
    """Return the mean hosts of `horizon`, or why they are unknown.

    Args:
        fixed: `horizon` leases at most twice as many.
    """
    busiest = max(served, key=lambda one: one.records * one.model.work)
    shortest = min(batch.seconds for batch in busiest.batches)
    length = planned_seconds(shortest, target, None)
    rows = busiest.model.largest_batch(length, fixed.cores)
    if not rows > 0:
        return None, f"what the policy horizon would lease: an empty batch takes more than {format_duration(length)}"
    overhead = max(1.0, length * fixed.cores / (rows * busiest.model.work)) if rows < math.inf else 1.0
    waits = (shortest,) if math.isnan(busiest.model.trigger) else (busiest.model.trigger + shortest,)
    service = Service((), waits, shortest)
    kind = HostType("executor", cores=cores, billing=Billing(1.0, 60.0))
    grid = Grid.of(HOST_START_S, service.budget(target, None), PACE_S, None, kind.billing.shortest)
    rates = _summed([one.model.work * one.arrivals.rates(grid.seconds) for one in served])
    if rates.size < 2 * LEAST_PAST * grid.steps:
        least = format_duration(2 * LEAST_PAST * grid.steps * grid.seconds)
        return None, f"what the policy horizon would lease: it needs a log of {least}"
    outlooks = outlooks_of(Past(grid.seconds, rates), min(rates.size, REPLAYED), grid)
    fleet = Fleet(kind, cores / min(overhead, MOST_OVERHEAD), grid, 1, round(MOST_TIMES * fixed.hosts))
    choice = replay(outlooks, fleet, 1 - IN_TIME, Choice(Setting()))
    hosts = choice.hosts
    point = Point(hosts, hosts * cores, NAN, NAN, max(0.0, fixed.in_time - choice.late), NAN, hosts * price * HOURS_A_MONTH)
    return point, ""


def _summed(rates: Sequence[Floats]) -> Floats:
    total = np.zeros(max(each.size for each in rates))
    for each in rates:
        total[: each.size] += each
    return total

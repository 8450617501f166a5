"""Estimation of the simulator's constants and loads from a recorded run.

Each constant comes from the quantity it stands for, never from tuning the simulation's output.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from elastream.core.batch_line import BatchLine
from elastream.core.frames import CPU_WINDOW, Floats, whole_batches
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.lines import line_through
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.dataflow.operators import Kind, Operator
from elastream.dataflow.stages import Layout
from elastream.errors import InputError
from elastream.recording.recorder import Recording
from elastream.simulator.arrivals import Emissions
from elastream.simulator.microbatch import COMING, dealt, landed
from elastream.simulator.settings import Settings

# Seconds over which replayed arrivals are spread evenly.
STEP = 0.1


def recorded_loads(
    recording: Recording, layout: Layout, batches: Sequence[MicroBatch], origin: float
) -> dict[str, Emissions]:
    """Return each source's arrivals, in seconds after `origin`.

    They pass through the recorded due times of batches; elsewhere they follow the recorded rate.
    """
    clock = recording.times - origin
    loads = {}
    for source in layout.graph.sources:
        rates = recording.operator(source.name, Metric.ARRIVAL_RATE)
        finite = np.isfinite(rates)
        if not finite.any():
            raise InputError(f"the recording shows no arrivals at source {source.name!r}")
        edges = np.arange(0.0, recording.end - origin + STEP, STEP)
        # The floor keeps the cumulative rate strictly increasing, so that due times map to it one to one.
        rate = np.maximum(np.interp(edges, clock[finite], rates[finite]), 1e-9 * rates[finite].max())
        summed = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * STEP)])
        numbers = np.cumsum([batch.records for batch in batches])
        due = [
            (at - origin, number)
            for batch, last in zip(batches, numbers, strict=True)
            for at, number in ((batch.end - batch.oldest, last - batch.records), (batch.end - batch.newest, last))
            if not math.isnan(at)
        ]
        if due:
            times, counted = (np.array(column) for column in zip(*due, strict=True))
            # Timestamps have millisecond resolution: due times of successive batches may overlap slightly.
            at = np.interp(np.maximum.accumulate(times), edges, summed)
            # Records due after the last batch are the final backlog.
            left = np.nan_to_num(recording.operator(source.name, Metric.BACKLOG))[-1]
            total = np.interp(summed, at, counted) + np.clip(summed - at[-1], 0.0, left)
        else:
            begins = clock[finite][0] - float(np.median(np.diff(clock)))
            total = np.maximum(0.0, summed - np.interp(begins, edges, summed))
        counts = np.diff(np.floor(total + 1e-6).astype(np.int64))
        if not counts.sum():
            raise InputError(f"the recording shows no arrivals at source {source.name!r}")
        loads[source.name] = Emissions(edges[:-1], counts, STEP)
    return loads


# Compilation dominates this many batches at the start of a run or host.
WARMING = 3


def circumstances_of(
    recording: Recording, layout: Layout, batches: Sequence[MicroBatch], shares: Mapping[str, float]
) -> Floats:
    """Return the conditions at each batch's start; `shares` is each stage's fraction of a record's cost.

    Rows: seconds per core-second of its records' work, and of work divided equally over stages; hosts starting; seconds to
    load moved state, at one core-second a task; 1 from WARMING batches after the newest host on.
    """
    times = recording.times
    widths = {stage.name: recording.parallelism(stage.name) for stage in layout.stages}
    placed = {stage.name: recording.tasks(stage.name) for stage in layout.stages if stage.keyed}
    conditions = []
    where: dict[str, Mapping[int, str]] = {name: {} for name in placed}
    ended = -math.inf
    for number, batch in enumerate(batches):
        # A move is requested when a batch has ended, and appears in the next observation.
        requested = min(int(np.searchsorted(times, ended, side="right")), len(times) - 1)
        before, ended = where, batch.end
        where = {name: landed(before[name], of[requested]) for name, of in placed.items()}
        row = max(0, int(np.searchsorted(times, batch.start, side="right")) - 1)
        up = [lease for lease in recording.hosts if state_at(lease, batch.start) in (HostState.RUNNING, HostState.DRAINING)]
        coming = sum(state_at(lease, batch.start) in COMING for lease in recording.hosts)
        burden, even, moved = 0.0, 0.0, 0.0
        if up:
            power = {lease.host: lease.type.cores * lease.type.speed for lease in up}
            slots = {lease.host: lease.type.slots for lease in up}
            for stage in layout.stages:
                width = widths[stage.name][row]
                at = _on_hosts(where.get(stage.name), slots, 1 if math.isnan(width) else int(width))
                host = max(at, key=lambda name: at[name] / power[name])
                pace = min(power[host], at[host], slots[host])
                longest = at[host] / sum(at.values()) / pace
                burden += shares[stage.name] * longest
                even += longest / len(layout.stages)
            for name, placement in where.items():
                hosts = list(placement.values())
                fresh = [host for task, host in placement.items() if before[name].get(task, host) != host]
                for host in set(fresh) & set(power):
                    moved = max(moved, fresh.count(host) / min(power[host], hosts.count(host), slots[host]))
        ready_times = [lease.ready_at() for lease in recording.hosts]
        newest = max([time for time in ready_times if time is not None and time <= batch.start], default=0.0)
        since = sum(other.start > newest for other in batches[:number])
        conditions.append((burden, even, coming, moved, since >= WARMING))
    return np.array(conditions, dtype=np.float64).T


def _on_hosts(placement: Mapping[int, str] | None, slots: Mapping[str, int], width: int) -> dict[str, int]:
    hosts = [host for host in (placement or {}).values() if host in slots]
    if hosts:
        return {host: hosts.count(host) for host in set(hosts)}
    number = dealt(width, np.array(list(slots.values())))
    return {host: int(count) for host, count in zip(slots, number, strict=True) if count}


def state_at(lease: Lease, at: float) -> HostState | None:
    return next((state for time, state in reversed(lease.history) if time <= at), None)


# Fewest non-empty batches for a calibration.
FEWEST = 10
# Core-seconds until a host's first task (`benchmarks/start.py`). Hosts that start together on one machine delay each other
# by this over its cores. Used if a recording has no simultaneous starts.
START_CPU = 3.7


@dataclass(frozen=True, slots=True)
class Constant:
    name: str
    value: float
    unit: str
    source: str


class Notes:
    def __init__(self) -> None:
        self.constants: list[Constant] = []
        self.unknown: list[str] = []

    def add(self, name: str, value: float, unit: str, source: str) -> None:
        self.constants.append(Constant(name, value, unit, source))


@dataclass(frozen=True)
class Calibration:
    """Settings, host types and loads estimated from a recording.

    Attributes:
        origin: Recorded time at which the simulation begins.
        in_peace: Indices of undisturbed non-empty batches.
        separable: True if batch sizes separate batch costs from record costs.
    """

    settings: Settings
    host_types: tuple[HostType, ...]
    loads: Mapping[str, Emissions]
    origin: float
    constants: tuple[Constant, ...]
    unknown: tuple[str, ...]
    in_peace: tuple[int, ...]
    separable: bool = True


def calibrate(
    recording: Recording,
    layout: Layout,
    host_types: Sequence[HostType],
    settings: Settings | None = None,
    *,
    batch_seconds: float | None = None,
) -> Calibration:
    """Estimate the constants from a recording of `layout`, a dataflow of one segment.

    A batch lasts a constant plus the work of the batch and its records, fitted to undisturbed batches. Starting hosts and
    moved state cost the mean excess over the fit.

    Args:
        batch_seconds: Target duration and least interval of batches.

    Raises:
        InputError: For several segments, fewer than FEWEST non-empty batches, or a source without arrivals.
    """
    base = settings or Settings()
    if len(layout.segments) != 1:
        raise InputError(
            f"dataflow {layout.graph.name!r} ran as {len(layout.segments)} queries, because it has durable edges, and what "
            "a batch costs can be told of one query only: declare a `cost` for each operator, without --calibrate"
        )
    if batch_seconds is not None:
        base = replace(base, batch_seconds=batch_seconds, batch_interval=batch_seconds)
    batches = [batch for batch in recording.batches if batch.records > 0]
    if len(batches) < FEWEST:
        raise InputError(f"the recording has {len(batches)} non-empty micro-batches; calibration needs at least {FEWEST}")
    origin = min((lease.since for lease in recording.hosts), default=0.0)
    notes = Notes()
    parts = _parts(recording, layout, notes)
    shares = {stage.name: sum(parts[o].share for o in stage.operators if o in parts) for stage in layout.stages}
    costs = _batch_costs(recording, layout, batches, shares, notes, base)
    services = dict(base.services)
    for name, part in parts.items():
        cost = costs.record * part.share / part.arriving if part.arriving > 0 else 0.0
        own = _alternate_costs(recording, layout.graph.by_name[name], cost / part.seconds) if part.seconds > 0 else {}
        services[name] = base.service(name).costing(cost, part.selectivity, own)
        notes.add(f"a record at {name}", cost, "core-s", "share of a source record's cost, by recorded service times")
        for alternate, (each, _) in own.items():
            notes.add(f"a record at {name} as {alternate}", each or 0.0, "core-s", "the same, in the ratio of its own")
        if part.selectivity is not None:
            notes.add(f"records out of {name}", part.selectivity, "a record in", "records emitted over records processed")
    boost, hosts = _boost(recording, base.settling_batches)
    if hosts:
        notes.add("cores of a host in its first batches", boost, "of its own", f"peak CPU use, median of {hosts} hosts")
    queue = _start_queue(recording, notes, base)
    started = tuple(_host_type(recording, kind, queue, notes) for kind in host_types)
    widths = [_first(recording.parallelism(stage.name)) for stage in layout.stages if stage.keyed]
    partitions = [int(width) for width in widths if width >= 1]
    calibrated = replace(
        base,
        services=services,
        monitor=max(float(np.median(np.diff(recording.times))), 1e-3) if len(recording.times) > 1 else base.monitor,
        host_start_spread=0.0,
        host_start_queue=queue,
        batch_overhead=costs.fixed / len(layout.stages),
        batch_work=costs.work,
        delivered=costs.delivered,
        settling_boost=max(1.0, boost),
        state_load=costs.load,
        batch_ratios=costs.ratios,
        start_delay=costs.delay,
        state_partitions=partitions[0] if partitions else base.state_partitions,
    )
    return Calibration(
        calibrated,
        started,
        recorded_loads(recording, layout, batches, origin),
        origin,
        tuple(notes.constants),
        tuple(notes.unknown),
        costs.peace,
        costs.separable,
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of batches.

    Attributes:
        record, work: Core-seconds a source record and a batch.
        delivered: Fraction of the hosts' cores that tasks got.
        ratios: Duration over expected duration of undisturbed batches.
    """

    fixed: float
    record: float
    work: float
    delivered: float
    delay: float
    load: float
    ratios: tuple[float, ...]
    peace: tuple[int, ...]
    separable: bool


@dataclass(frozen=True, slots=True)
class Part:
    """An operator's part in a source record.

    Attributes:
        share: Fraction of the record's cost.
        seconds: Service time (core-seconds); 0 where unknown.
    """

    share: float
    arriving: float
    selectivity: float | None
    seconds: float


def _batch_costs(
    recording: Recording,
    layout: Layout,
    batches: Sequence[MicroBatch],
    shares: Mapping[str, float],
    notes: Notes,
    base: Settings,
) -> Costs:
    a_record, even, coming, moved, warm = circumstances_of(recording, layout, batches, shares)
    lasted = np.array([batch.seconds for batch in batches])
    burden = a_record * np.array([batch.records for batch in batches])
    quiet = (coming == 0) & (moved == 0)
    peace = quiet & (warm > 0)
    for wider in (quiet, np.ones_like(quiet)):
        peace = peace if peace.sum() >= FEWEST else wider
    of = f"{peace.sum()} undisturbed batches"
    work, record = _cpu_costs(recording, batches[int(np.argmax(peace))].start)
    weighed, line = burden, BatchLine.of(burden[peace], lasted[peace], base.batch_overhead * len(layout.stages))
    if line.separable:
        # Hosts do fixed work for each batch. Like the records' work, it takes time on their cores.
        weighed = burden + (even * work / record if record > 0 else 0.0)
        line = BatchLine(*line_through(weighed[peace], lasted[peace]))
        notes.add("a batch", line.fixed, "s", f"Theil-Sen line through {of}")
    else:
        mean = float(np.mean([batch.records for batch in batches], where=peace))
        work, record = 0.0, record + work / mean if record > 0 else 0.0
        notes.unknown.append(f"how much of a batch its records take: {of} were all of about the same size")
    fixed, each, expected = line.fixed, line.each, line.seconds(weighed)
    ratios = (lasted / np.maximum(expected, 1e-9))[peace]
    notes.add(
        "a batch is off by",
        float(np.median(np.abs(ratios - 1))),
        "of its length, median",
        f"deviation of {of} from that line",
    )
    delivered = record / each if record > 0 and each > 0 else 1.0
    if record > 0:
        notes.add("a record from the source", record, "core-s", "line through hosts' CPU use, batches and records a second")
        notes.add("a batch, on hosts", work, "core-s", "the same line")
        notes.add(
            "cores that tasks get", delivered, "of a host's", f"CPU a record over {each:.2e} core-s, the slope of {of}"
        )
    else:
        record = each
        notes.add("a record from the source", record, "core-s", f"slope of the line through {of}")
        notes.unknown.append("the fraction of hosts' cores that tasks got: CPU use is not recorded")
    delay = load = 0.0
    slowed = (coming > 0) & (moved == 0)
    if slowed.sum() >= 3:
        delay = max(0.0, float(np.mean((lasted - expected)[slowed] / coming[slowed])))
        notes.add("a batch while a host starts", delay, "s more a host", f"mean of {slowed.sum()} batches meanwhile")
    else:
        notes.unknown.append("by how much batches last longer while hosts start")
    loaded = (moved > 0) & (coming == 0)
    if loaded.any():
        load = max(0.0, float(np.mean((lasted - expected)[loaded] / moved[loaded]))) * delivered
        notes.add("loading the state of a task that moved", load, "core-s", f"mean of {loaded.sum()} batches after moves")
    else:
        notes.unknown.append("the cost of moving a task")
    return Costs(
        fixed, record, work, delivered, delay, load,
        tuple(ratios.tolist()), tuple(np.flatnonzero(peace).tolist()), line.separable,
    )  # fmt: skip


def _cpu_costs(recording: Recording, since: float) -> tuple[float, float]:
    """Return (core-s per batch, core-s per record) while no host started; (0, 0) if unknown."""
    starts, ends, records = (
        np.array([getattr(batch, name) for batch in recording.batches]) for name in ("start", "end", "records")
    )
    on_spark = recording.header.plant == "spark"
    queries = np.array([batch.segment for batch in recording.batches])
    by_query = [np.sort(ends[queries == name]) for name in dict.fromkeys(queries.tolist())]
    used = np.zeros(len(recording.times))
    for lease in recording.hosts:
        used += np.nan_to_num(recording.host(lease.host, Metric.CPU)) * lease.type.cores
    records_a_batch, cores_a_batch = [], []
    for time, now in zip(recording.times, used, strict=True):
        settled = [at for lease in recording.hosts if (at := lease.ready_at()) is not None and at < time]
        coming = any(state_at(lease, time) in COMING for lease in recording.hosts)
        so_far = [each[: np.searchsorted(each, time, "right")] for each in by_query]
        ago, until_ago = whole_batches(so_far, time) if on_spark else (CPU_WINDOW, 0.0)
        first, last = time - ago, time - until_ago
        if first < max([since, *(at + CPU_WINDOW for at in settled)]) or coming:
            continue
        within = np.minimum(ends, last) - np.maximum(starts, first)
        share = np.maximum(0.0, within) / np.maximum(ends - starts, 1e-9) / (last - first)
        rate = float(share[records > 0].sum())
        if rate > 0:
            records_a_batch.append(float((share * records).sum()) / rate)
            cores_a_batch.append(now / rate)
    if len(cores_a_batch) < FEWEST or not any(cores_a_batch):
        return 0.0, 0.0
    return line_through(np.array(records_a_batch), np.array(cores_a_batch))


def _boost(recording: Recording, settling: int) -> tuple[float, int]:
    peaks = []
    for lease in recording.hosts:
        ready = lease.ready_at()
        if ready is None or not any(batch.end <= lease.since for batch in recording.batches if batch.records > 0):
            continue
        first = [batch.end for batch in recording.batches if batch.start >= ready][:settling]
        cpu = recording.host(lease.host, Metric.CPU)
        young = (recording.times > ready) & (recording.times <= max(first, default=ready) + 1) & np.isfinite(cpu)
        if young.any():
            peaks.append(float(cpu[young].max()))
    return (float(np.median(peaks)) if peaks else 1.0), len(peaks)


def _parts(recording: Recording, layout: Layout, notes: Notes) -> dict[str, Part]:
    widths = np.diff(recording.times, prepend=0.0)

    def total(name: str, metric: Metric) -> float:
        return float(np.nansum(recording.operator(name, metric) * widths))

    arrivals = sum(total(source.name, Metric.PROCESSED_RATE) for source in layout.graph.sources)
    spent, parts = {}, {}
    for operator in layout.graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            processed, went = (total(operator.name, metric) for metric in (Metric.PROCESSED_RATE, Metric.EMITTED_RATE))
            each = recording.operator(operator.name, Metric.SERVICE_TIME)
            each = each[np.isfinite(each)]
            if not each.size or not processed > 0:
                notes.unknown.append(f"the cost of {operator.name}")
            seconds = float(np.median(each)) if each.size else 0.0
            spent[operator.name] = processed * seconds
            selectivity = went / processed if processed > 0 and went > 0 else None
            parts[operator.name] = Part(0.0, processed / arrivals if arrivals > 0 else 0.0, selectivity, seconds)
    whole = math.fsum(spent.values())
    return {name: replace(part, share=spent[name] / whole if whole > 0 else 1 / len(parts)) for name, part in parts.items()}


def _alternate_costs(
    recording: Recording, operator: Operator, ratio: float
) -> dict[str, tuple[float | None, float | None]]:
    """Return (core-seconds per record, selectivity) of each alternate that ran; `ratio`: cost over service time."""
    costs: dict[str, tuple[float | None, float | None]] = {}
    for alternate in operator.alternates:
        row = f"{operator.name}.{alternate.name}"
        seconds, emitted = (_last(recording.alternate(row, each)) for each in (Metric.SERVICE_TIME, Metric.SELECTIVITY))
        if seconds is not None:
            costs[alternate.name] = (ratio * seconds, emitted)
    return costs if len(costs) > 1 else {}  # the figures of a single alternate equal the operator's


def _starts(recording: Recording) -> list[tuple[str, int, float]]:
    """Return (type, hosts ahead, seconds until ready) of each host leased during the run."""
    first = min((batch.start for batch in recording.batches), default=0.0)
    starts, hosts = [], list(recording.hosts)
    for number, lease in enumerate(hosts):
        if (ready := lease.ready_at()) is None or lease.since <= first:
            continue
        before = (other.ready_at() for other in hosts[:number] if other.since <= lease.since)
        starts.append((lease.type.name, sum(at is None or at > lease.since for at in before), ready - lease.since))
    return starts


def _start_queue(recording: Recording, notes: Notes, base: Settings) -> float:
    """Return the extra start time (seconds) per host already starting."""
    starts = _starts(recording)
    ahead = np.array([float(each) for _, each, _ in starts])
    if not ahead.any():
        cores = recording.header.environment.get("cores")
        notes.unknown.append("how much longer a host takes to start beside others")
        return START_CPU / float(cores) if cores and recording.header.plant == "spark" else base.host_start_queue
    _, more = line_through(ahead, np.array([seconds for *_, seconds in starts]))
    notes.add("a host starts later by", more, "s for each on its way", f"Theil-Sen line through {ahead.size} leases")
    return more


def _host_type(recording: Recording, kind: HostType, queue: float, notes: Notes) -> HostType:
    leases = [lease for lease in recording.hosts if lease.type.name == kind.name]
    starts = [seconds - queue * ahead for name, ahead, seconds in _starts(recording) if name == kind.name]
    stops = [
        gone - since
        for lease in leases
        for (since, state), (gone, then) in pairwise(lease.history)
        if state is HostState.RELEASING and then is HostState.RELEASED and since < recording.end
    ]
    for what, field, seconds in (("starts", "start", starts), ("stops", "stop", stops)):
        if seconds:
            value = float(np.median(seconds))
            kind = replace(kind, start=value) if field == "start" else replace(kind, stop=value)
            source = f"median of {len(seconds)} lease{'s' * (len(seconds) > 1)}"
            notes.add(f"a {kind.name} host {what} within", value, "s", source)
        else:
            notes.unknown.append(f"how long a {kind.name} host takes until it {what}")
    return kind


def _last(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if finite.size else None


def _first(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite[0]) if finite.size else math.nan

"""Estimates the simulator's constants from a recorded run.

Each constant is estimated from the quantity it stands for (batch durations, host start times), never by tuning the
simulation's output. `replay` simulates the run with them; `recorded` defines what is read of a recording.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from elastream.core.frames import CPU_WINDOW, Floats, whole_batches
from elastream.core.hosts import HostState, HostType
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.dataflow.operators import Kind, Operator
from elastream.dataflow.stages import Layout
from elastream.errors import InputError
from elastream.recording.recorder import Recording
from elastream.simulator.arrivals import Emissions
from elastream.simulator.circumstances import circumstances_of, state_at
from elastream.simulator.lines import line_through
from elastream.simulator.microbatch import COMING
from elastream.simulator.recorded_loads import recorded_loads
from elastream.simulator.settings import Settings

FEWEST = 10
"""Least number of non-empty batches that a calibration needs."""
START_CPU = 3.7
"""Core-seconds until a host's first task, as `benchmarks/start.py` measured: of hosts that share a machine each that starts
holds up the others by so much over the machine's cores, where a recording has none that started beside another."""
ALIKE = 1.5
"""Largest batches over smallest, without a tenth at either end, below which they do not tell batches and records apart."""


@dataclass(frozen=True, slots=True)
class Constant:
    """An estimated constant of the simulation: value, unit, and the data of the recording it comes from."""

    name: str
    value: float
    unit: str
    source: str


class Notes:
    """Collects estimated constants, and descriptions of those that the recording does not determine."""

    def __init__(self) -> None:
        self.constants: list[Constant] = []
        self.unknown: list[str] = []

    def found(self, name: str, value: float, unit: str, source: str) -> None:
        """Add an estimated constant."""
        self.constants.append(Constant(name, value, unit, source))


@dataclass(frozen=True)
class Calibration:
    """Settings, host types and loads estimated from a recording.

    origin: time of the recording at which the simulation begins, that of the first host request. constants: those
    estimated. unknown: those not determined, which keep their assumed values. in_peace: numbers (from 0, among the
    non-empty batches) of the undisturbed batches that batch and record costs are fitted to. told: whether their sizes
    differ enough to tell the cost of a batch from that of its records.
    """

    settings: Settings
    host_types: tuple[HostType, ...]
    loads: Mapping[str, Emissions]
    origin: float
    constants: tuple[Constant, ...]
    unknown: tuple[str, ...]
    in_peace: tuple[int, ...]
    told: bool = True


def calibrate(
    recording: Recording,
    layout: Layout,
    host_types: Sequence[HostType],
    settings: Settings | None = None,
    *,
    batch_seconds: float | None = None,
) -> Calibration:
    """Estimate the constants from a recording of `layout`, a dataflow of one segment, on hosts of `host_types`.

    Batch duration is modelled as a constant plus the work of the batch and of its records on the hosts at that time (see
    `microbatch`) and fitted to undisturbed batches: no host starting, no task just moved, workers warm. The delays caused
    by starting hosts and by loading moved state are the mean excess of the other batches over that fit; means, because
    the sum of delays determines the queue. Core-seconds per record and per batch are fitted to the hosts' CPU use; their
    ratio says how much work a batch is whatever its records, and the slope of the durations over that work the fraction of
    the leased cores that tasks really got. A record's cost is divided among operators by their SERVICE_TIME. Start and
    stop times of a host type are medians over its leases.

    batch_seconds: target duration of the run's batches, also the least interval between two starts; None: that of
    `settings`.

    Raises InputError for a dataflow of several segments, for fewer than FEWEST non-empty batches, or for a source without
    recorded arrivals.
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
        cost = costs.record * part.share / part.came if part.came > 0 else 0.0
        own = _own(recording, layout.graph.by_name[name], cost / part.seconds) if part.seconds > 0 else {}
        services[name] = base.service(name).costing(cost, part.selectivity, own)
        notes.found(f"a record at {name}", cost, "core-s", "share of a source record's cost, by recorded service times")
        for alternate, (each, _) in own.items():
            notes.found(f"a record at {name} as {alternate}", each or 0.0, "core-s", "the same, in the ratio of its own")
        if part.selectivity is not None:
            notes.found(f"records out of {name}", part.selectivity, "a record in", "records emitted over records processed")
    boost, hosts = _boost(recording, base.settling_batches)
    if hosts:
        notes.found("cores of a host in its first batches", boost, "of its own", f"peak CPU use, median of {hosts} hosts")
    queue = _start_queue(recording, notes, base)
    started = tuple(_host_type(recording, kind, queue, notes) for kind in host_types)
    widths = [_first(recording.parallelism(stage.name)) for stage in layout.stages if stage.keyed]
    partitions = [int(width) for width in widths if width >= 1]
    found = replace(
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
        found,
        started,
        recorded_loads(recording, layout, batches, origin),
        origin,
        tuple(notes.constants),
        tuple(notes.unknown),
        costs.peace,
        costs.told,
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of batches. fixed: s per batch. record, work: core-s per source record and per batch, from the hosts' CPU use.
    delivered: fraction of the hosts' cores that tasks got. delay: s per starting host. load: core-s per moved task.
    ratios: duration over expected duration of each undisturbed batch, in order. peace: numbers of those batches. told: see
    `Calibration`."""

    fixed: float
    record: float
    work: float
    delivered: float
    delay: float
    load: float
    ratios: tuple[float, ...]
    peace: tuple[int, ...]
    told: bool


@dataclass(frozen=True, slots=True)
class Part:
    """An operator's part in a source record: `share` of its cost, records it gets per source record, records out per in.

    seconds: its recorded service time, core-seconds; 0 where unknown.
    """

    share: float
    came: float
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
    """Fit durations and CPU use of `batches`. shares: fraction of a record's cost, by stage."""
    seen = circumstances_of(recording, layout, batches, shares)
    lasted = np.array([batch.seconds for batch in batches])
    burden = np.array([each.burden * batch.records for each, batch in zip(seen, batches, strict=True)])
    even = np.array([each.even for each in seen])
    coming, moved = (np.array([getattr(each, name) for each in seen]) for name in ("coming", "moved"))
    quiet = (coming == 0) & (moved == 0)
    peace = quiet & np.array([each.warm for each in seen])
    for wider in (quiet, np.ones_like(quiet)):
        peace = peace if peace.sum() >= FEWEST else wider
    of = f"{peace.sum()} undisturbed batches"
    work, record = _cpu_costs(recording, batches[int(np.argmax(peace))].start)
    sizes = np.array([batch.records for batch in batches])[peace]
    low, high = np.quantile(sizes, (0.1, 0.9))
    told = bool(high >= ALIKE * low)
    if told:
        # Hosts work on a batch whatever its records: that work takes time as theirs does, on the same cores.
        weighed = burden + (even * work / record if record > 0 else 0.0)
        fixed, each = line_through(weighed[peace], lasted[peace])
        notes.found("a batch", fixed, "s", f"Theil-Sen line through {of}")
    else:
        work, record = 0.0, record + work / float(sizes.mean()) if record > 0 else 0.0
        weighed, fixed = burden, base.batch_overhead * len(layout.stages)
        each = max(0.0, float(np.median((lasted - fixed)[peace] / burden[peace])))
        notes.unknown.append(f"how much of a batch its records take: {of} were all of about the same size")
    expected = fixed + each * weighed
    ratios = (lasted / np.maximum(expected, 1e-9))[peace]
    notes.found(
        "a batch is off by",
        float(np.median(np.abs(ratios - 1))),
        "of its length, median",
        f"deviation of {of} from that line",
    )
    delivered = record / each if record > 0 and each > 0 else 1.0
    if record > 0:
        notes.found(
            "a record from the source", record, "core-s", "line through hosts' CPU use, batches and records a second"
        )
        notes.found("a batch, on hosts", work, "core-s", "the same line")
        notes.found(
            "cores that tasks get", delivered, "of a host's", f"CPU a record over {each:.2e} core-s, the slope of {of}"
        )
    else:
        record = each
        notes.found("a record from the source", record, "core-s", f"slope of the line through {of}")
        notes.unknown.append("the fraction of hosts' cores that tasks got: CPU use is not recorded")
    delay = load = 0.0
    slowed = (coming > 0) & (moved == 0)
    if slowed.sum() >= 3:
        delay = max(0.0, float(np.mean((lasted - expected)[slowed] / coming[slowed])))
        notes.found("a batch while a host starts", delay, "s more a host", f"mean of {slowed.sum()} batches meanwhile")
    else:
        notes.unknown.append("by how much batches last longer while hosts start")
    loaded = (moved > 0) & (coming == 0)
    if loaded.any():
        load = max(0.0, float(np.mean((lasted - expected)[loaded] / moved[loaded]))) * delivered
        notes.found("loading the state of a task that moved", load, "core-s", f"mean of {loaded.sum()} batches after moves")
    else:
        notes.unknown.append("the cost of moving a task")
    return Costs(
        fixed, record, work, delivered, delay, load, tuple(ratios.tolist()), tuple(np.flatnonzero(peace).tolist()), told
    )


def _cpu_costs(recording: Recording, since: float) -> tuple[float, float]:
    """(core-s per batch, core-s per record) that hosts used from `since` on while no host started; (0, 0) if unknown."""
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
    """(median over hosts that joined a running load of peak cores used over cores leased; number of such hosts)."""
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
    """Parts of the operators by name; cost shares are proportional to PROCESSED_RATE times SERVICE_TIME."""
    widths = np.diff(recording.times, prepend=0.0)

    def total(name: str, metric: Metric) -> float:
        return float(np.nansum(recording.operator(name, metric) * widths))

    taken = sum(total(source.name, Metric.PROCESSED_RATE) for source in layout.graph.sources)
    spent, parts = {}, {}
    for operator in layout.graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            came, went = (total(operator.name, metric) for metric in (Metric.PROCESSED_RATE, Metric.EMITTED_RATE))
            each = recording.operator(operator.name, Metric.SERVICE_TIME)
            each = each[np.isfinite(each)]
            if not each.size or not came > 0:
                notes.unknown.append(f"the cost of {operator.name}")
            seconds = float(np.median(each)) if each.size else 0.0
            spent[operator.name] = came * seconds
            selectivity = went / came if came > 0 and went > 0 else None
            parts[operator.name] = Part(0.0, came / taken if taken > 0 else 0.0, selectivity, seconds)
    whole = math.fsum(spent.values())
    return {name: replace(part, share=spent[name] / whole if whole > 0 else 1 / len(parts)) for name, part in parts.items()}


def _own(recording: Recording, operator: Operator, ratio: float) -> dict[str, tuple[float | None, float | None]]:
    """(core-seconds a record, records out per in) of the alternates that ran, as recorded last.

    ratio: of the first to what was told: a fused stage's machinery is part of what a record costs, of no service time.
    """
    found: dict[str, tuple[float | None, float | None]] = {}
    for alternate in operator.alternates:
        row = f"{operator.name}.{alternate.name}"
        seconds, emitted = (_last(recording.alternate(row, each)) for each in (Metric.SERVICE_TIME, Metric.SELECTIVITY))
        if seconds is not None:
            found[alternate.name] = (ratio * seconds, emitted)
    return found if len(found) > 1 else {}  # the only one that ran is what was told of the operator


def _starts(recording: Recording) -> list[tuple[str, int, float]]:
    """Of each host that was leased while batches ran: its type, how many were on their way when it was requested, and the
    seconds until it was ready; leases cut off by the run's end are left out."""
    first = min((batch.start for batch in recording.batches), default=0.0)
    found, hosts = [], list(recording.hosts)
    for number, lease in enumerate(hosts):
        if (ready := lease.ready_at()) is None or lease.since <= first:
            continue
        before = (other.ready_at() for other in hosts[:number] if other.since <= lease.since)
        found.append((lease.type.name, sum(at is None or at > lease.since for at in before), ready - lease.since))
    return found


def _start_queue(recording: Recording, notes: Notes, base: Settings) -> float:
    """Seconds more that a host takes to start for each that is on its way when it is requested."""
    starts = _starts(recording)
    ahead = np.array([float(each) for _, each, _ in starts])
    if not ahead.any():
        cores = recording.header.environment.get("cores")
        notes.unknown.append("how much longer a host takes to start beside others")
        return START_CPU / float(cores) if cores and recording.header.plant == "spark" else base.host_start_queue
    _, more = line_through(ahead, np.array([seconds for *_, seconds in starts]))
    notes.found("a host starts later by", more, "s for each on its way", f"Theil-Sen line through {ahead.size} leases")
    return more


def _host_type(recording: Recording, kind: HostType, queue: float, notes: Notes) -> HostType:
    """Set the type's start and stop times to recorded medians, the start without what others on their way add (queue);
    leases cut off by the run's start or end are ignored."""
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
            notes.found(f"a {kind.name} host {what} within", value, "s", source)
        else:
            notes.unknown.append(f"how long a {kind.name} host takes until it {what}")
    return kind


def _last(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else None


def _first(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known[0]) if known.size else math.nan

"""From a recorded run to the constants of a simulation of it.

Every constant is estimated from what it means - how long batches took of how many records, how long hosts took to come -
and none by trying which value brings the simulation closest. Playing the run again with them is left to `replay`.
What of a recording is read, and under what its batches ran, is in `recorded`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from elastream.model.cloud import HostState, HostType
from elastream.model.errors import InputError
from elastream.model.graph import Kind
from elastream.model.observation import Floats, Metric, MicroBatch
from elastream.model.stages import Layout
from elastream.simulation.arrivals import Emissions
from elastream.simulation.lines import line_through
from elastream.simulation.microbatch import COMING
from elastream.simulation.recorded import Recorded, circumstances_of, state_at
from elastream.simulation.settings import Settings

__all__ = ["Calibration", "Constant", "calibrate"]

FEWEST = 10
"""Batches with records that a calibration needs, at least."""
STEP = 0.1
"""Seconds over which the arrivals of a replayed load are spread evenly."""
CPU_WINDOW = 3.0
"""Seconds that a recorded CPU use is the mean of (`spark.plant`)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the simulation: its value, and what of the recording it was made from."""

    name: str
    value: float
    unit: str
    source: str


class Notes:
    """What was found, and what could not be."""

    def __init__(self) -> None:
        self.constants: list[Constant] = []
        self.unknown: list[str] = []

    def found(self, name: str, value: float, unit: str, source: str) -> None:
        """A constant was estimated."""
        self.constants.append(Constant(name, value, unit, source))


@dataclass(frozen=True)
class Calibration:
    """What a recording says about the simulator's constants.

    origin: time of the recording at which the simulation begins, when the first host was asked for. constants: those
    estimated. unknown: what the recording could not say, left as assumed. in_peace: of the batches with records, the
    numbers (from 0) of those that the costs of batches and records are made from.
    """

    settings: Settings
    host_types: tuple[HostType, ...]
    loads: Mapping[str, Emissions]
    origin: float
    constants: tuple[Constant, ...]
    unknown: tuple[str, ...]
    in_peace: tuple[int, ...]


def calibrate(
    recording: Recorded,
    layout: Layout,
    host_types: Sequence[HostType],
    settings: Settings | None = None,
    *,
    batch_seconds: float | None = None,
) -> Calibration:
    """Constants from a recording of `layout`, a dataflow of one segment, on hosts of `host_types`.

    A batch is taken to last for a constant and for its records on the hosts as they were, as `microbatch` has it; both are
    fitted to the batches that ran in peace: no host was on its way, no task had just moved, and the workers were warm. By
    how much batches last longer while hosts start, and while a moved task loads its state, is what the other batches show
    beyond that, on average: it is their sum that queues. What a record and a batch work on the hosts' cores is fitted to
    their CPU use; that batches take longer for it than the cores leased would is put down to what these really gave. What a
    record costs is divided among the operators by their SERVICE_TIME. A host type starts and stops in the median of what
    its leases took.

    batch_seconds: what the run's batches were meant to last, which was also the least time from one to the next; without
    it the settings' own.

    Raises InputError for a dataflow of several segments, for a recording with fewer than FEWEST batches with records, or
    with no arrivals at a source.
    """
    base = settings or Settings()
    if len(layout.segments) != 1:
        raise InputError(
            f"dataflow {layout.graph.name!r} ran as {len(layout.segments)} queries: the simulator is calibrated with one"
        )
    if batch_seconds is not None:
        base = replace(base, batch_seconds=batch_seconds, batch_interval=batch_seconds)
    batches = [batch for batch in recording.batches if batch.records > 0]
    if len(batches) < FEWEST:
        raise InputError(f"a recording with {len(batches)} micro-batches is too short to calibrate the simulator with")
    origin = min((lease.since for lease in recording.hosts), default=0.0)
    notes = Notes()
    parts = _parts(recording, layout, notes)
    shares = {stage.name: sum(parts[o].share for o in stage.operators if o in parts) for stage in layout.stages}
    costs = _batch_costs(recording, layout, batches, shares, notes)
    services = dict(base.services)
    for name, part in parts.items():
        cost = costs.record * part.share / part.came if part.came > 0 else 0.0
        services[name] = base.service(name).costing(cost, part.selectivity)
        notes.found(f"a record at {name}", cost, "core-s", "its part of that from the source, by recorded service times")
        if part.selectivity is not None:
            notes.found(f"records out of {name}", part.selectivity, "a record in", "all it emitted over all it got")
    boost, hosts = _boost(recording, base.settling_batches)
    if hosts:
        notes.found(
            "cores of a host in its first batches", boost, "of its own", f"most CPU use seen, median of {hosts} hosts"
        )
    started = tuple(_host_type(recording, kind, notes) for kind in host_types)
    widths = [_first(recording.parallelism(stage.name)) for stage in layout.stages if stage.keyed]
    partitions = [int(width) for width in widths if width >= 1]
    found = replace(
        base,
        services=services,
        monitor=max(float(np.median(np.diff(recording.times))), 1e-3) if len(recording.times) > 1 else base.monitor,
        host_start_spread=0.0,
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
        _loads(recording, layout, batches, origin),
        origin,
        tuple(notes.constants),
        tuple(notes.unknown),
        costs.peace,
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """Of batches. fixed: s a batch. record: core-s a record from the source, as hosts' CPU shows it; work: core-s a batch,
    likewise. delivered: of the hosts' cores, what their tasks got. delay: s a host that starts. load: core-s a task that
    moved. ratios: what batches in peace
    lasted over what they should have, in their order."""

    fixed: float
    record: float
    work: float
    delivered: float
    delay: float
    load: float
    ratios: tuple[float, ...]
    peace: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """An operator's part in a record from the source: `share` of its cost, records that come of it, and out per one in."""

    share: float
    came: float
    selectivity: float | None


def _batch_costs(
    recording: Recorded, layout: Layout, batches: Sequence[MicroBatch], shares: Mapping[str, float], notes: Notes
) -> Costs:
    """`shares`: of a record's cost, by stage."""
    seen = circumstances_of(recording, layout, batches, shares)
    lasted = np.array([batch.seconds for batch in batches])
    burden = np.array([each.burden * batch.records for each, batch in zip(seen, batches, strict=True)])
    coming, moved = (np.array([getattr(each, name) for each in seen]) for name in ("coming", "moved"))
    quiet = (coming == 0) & (moved == 0)
    peace = quiet & np.array([each.warm for each in seen])
    for wider in (quiet, np.ones_like(quiet)):
        peace = peace if peace.sum() >= FEWEST else wider
    fixed, each = line_through(burden[peace], lasted[peace])
    expected = fixed + each * burden
    of = f"{peace.sum()} batches in peace"
    notes.found("a batch", fixed, "s", f"Theil-Sen line through {of}")
    ratios = (lasted / np.maximum(expected, 1e-9))[peace]
    notes.found(
        "a batch is off by",
        float(np.median(np.abs(ratios - 1))),
        "of its length, median",
        f"what {of} lasted beside that line",
    )
    work, record = _cpu_costs(recording, batches[int(np.argmax(peace))].start)
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
        notes.unknown.append("what hosts really gave their tasks: their CPU use is not recorded")
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
        notes.unknown.append("what a task that moves costs")
    return Costs(fixed, record, work, delivered, delay, load, tuple(ratios.tolist()), tuple(np.flatnonzero(peace).tolist()))


def _cpu_costs(recording: Recorded, since: float) -> tuple[float, float]:
    """(core-seconds a batch, core-seconds a record) that hosts worked from `since` on, while no host came; 0 if unknown."""
    starts, ends, records = (
        np.array([getattr(batch, name) for batch in recording.batches]) for name in ("start", "end", "records")
    )
    used = np.zeros(len(recording.times))
    for lease in recording.hosts:
        used += np.nan_to_num(recording.host(lease.host, Metric.CPU)) * lease.type.cores
    records_a_batch, cores_a_batch = [], []
    for time, now in zip(recording.times, used, strict=True):
        settled = [at for lease in recording.hosts if (at := lease.ready_at()) is not None and at < time]
        coming = any(state_at(lease, time) in COMING for lease in recording.hosts)
        if time - CPU_WINDOW < max([since, *(at + CPU_WINDOW for at in settled)]) or coming:
            continue
        within = np.minimum(ends, time) - np.maximum(starts, time - CPU_WINDOW)
        share = np.maximum(0.0, within) / np.maximum(ends - starts, 1e-9) / CPU_WINDOW
        rate = float(share[records > 0].sum())
        if rate > 0:
            records_a_batch.append(float((share * records).sum()) / rate)
            cores_a_batch.append(now / rate)
    if len(cores_a_batch) < FEWEST or not any(cores_a_batch):
        return 0.0, 0.0
    return line_through(np.array(records_a_batch), np.array(cores_a_batch))


def _boost(recording: Recorded, settling: int) -> tuple[float, int]:
    """(cores used over cores leased, at their most, median over hosts that came to a running load; number of these)."""
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


def _parts(recording: Recorded, layout: Layout, notes: Notes) -> dict[str, Part]:
    """Parts of the operators, those of the cost in proportion to what each worked: PROCESSED_RATE times SERVICE_TIME."""
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
            spent[operator.name] = came * float(np.median(each)) if each.size else 0.0
            selectivity = went / came if came > 0 and went > 0 else None
            parts[operator.name] = Part(0.0, came / taken if taken > 0 else 0.0, selectivity)
    whole = math.fsum(spent.values())
    return {name: replace(part, share=spent[name] / whole if whole > 0 else 1 / len(parts)) for name, part in parts.items()}


def _host_type(recording: Recorded, kind: HostType, notes: Notes) -> HostType:
    """The type with its times to start and stop as seen; hosts of the very start and the very end tell of neither."""
    first = min((batch.start for batch in recording.batches), default=0.0)
    leases = [lease for lease in recording.hosts if lease.type.name == kind.name]
    starts = [ready - lease.since for lease in leases if (ready := lease.ready_at()) is not None and lease.since > first]
    stops = [
        gone - asked
        for lease in leases
        for (asked, state), (gone, then) in pairwise(lease.history)
        if state is HostState.RELEASING and then is HostState.RELEASED and asked < recording.end
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


def _loads(recording: Recorded, layout: Layout, batches: Sequence[MicroBatch], origin: float) -> dict[str, Emissions]:
    """Arrivals of each source, seconds after `origin`.

    When the first and the last record of each batch were due is recorded; between these moments, behind the last one, and
    where they are not known (a source without a load of its own), records arrive as the arrival rate says.
    """
    clock = recording.times - origin
    found = {}
    for source in layout.graph.sources:
        rates = recording.operator(source.name, Metric.ARRIVAL_RATE)
        known = np.isfinite(rates)
        if not known.any():
            raise InputError(f"the recording shows no arrivals at source {source.name!r}")
        edges = np.arange(0.0, recording.end - origin + STEP, STEP)
        # A rate that never is quite 0 lets what arrived be told from the sum of the rates wherever a batch says so.
        rate = np.maximum(np.interp(edges, clock[known], rates[known]), 1e-9 * rates[known].max())
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
            # Clocks are read to the millisecond, so that a batch may seem to begin before the one before it ended.
            at = np.interp(np.maximum.accumulate(times), edges, summed)
            # What is due behind the last batch is what waits at the end.
            left = np.nan_to_num(recording.operator(source.name, Metric.BACKLOG))[-1]
            total = np.interp(summed, at, counted) + np.clip(summed - at[-1], 0.0, left)
        else:
            begins = clock[known][0] - float(np.median(np.diff(clock)))
            total = np.maximum(0.0, summed - np.interp(begins, edges, summed))
        counts = np.diff(np.floor(total + 1e-6).astype(np.int64))
        if not counts.sum():
            raise InputError(f"the recording shows no arrivals at source {source.name!r}")
        found[source.name] = Emissions(edges[:-1], counts, STEP)
    return found


def _first(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known[0]) if known.size else math.nan

"""Recordings of runs as JSON lines: a header, every observation, every decision, and the ending."""

import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from elastream.core.alarm import Alarm
from elastream.core.decision import Decision
from elastream.core.frames import Floats
from elastream.core.guarding import GuardDecision
from elastream.core.hosts import ACTIVE, HostState, HostType, Lease
from elastream.core.latency import Basis, weakest
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, MicroBatch, Observation
from elastream.core.wording import clock
from elastream.dataflow.operators import Kind
from elastream.dataflow.signals import SignalReading, Signals
from elastream.dataflow.stages import Layout
from elastream.errors import ElastreamError, EnvironmentProblem, InputError
from elastream.recording import form
from elastream.recording.directory import RunDirectory, create_private
from elastream.recording.formats import FORMAT, unmarked
from elastream.recording.observer import Ending, Header, Json, described_before, described_further
from elastream.recording.parts import Keep, entries_of, file_of, files_of, forget_parts, set_aside, whole_length
from elastream.recording.series import Series
from elastream.units import format_duration


class Entries:
    """Converts an observer's events to entries for `_write`.

    The header is written when the run has operators, and again, merged, when more come to run.
    """

    def __init__(self) -> None:
        self._header = Header("", "")
        self._layout: Layout | None = None
        self._hosts: frozenset[str] = frozenset()
        self._described = False
        self._last: Observation | None = None

    def started(self, header: Header) -> None:
        self._header = header
        if header.operators:
            self._describe(header)

    def observed(self, observation: Observation) -> None:
        layout, hosts = observation.context.layout, observation.leases.keys()
        if layout is not self._layout or not hosts <= self._hosts:
            self._layout, self._hosts = layout, frozenset(hosts)
            further = described_further(self._header, observation.context, observation.leases.values())
            if further != self._header and further.operators:
                self._describe(further)
            self._header = further
        if self._described:
            self._write(form.written_observation(observation, self._last))
            self._last = observation

    def decided(self, decision: Decision) -> None:
        if self._described:
            self._write({"kind": "decision", **decision.to_json()})

    def ended(self, ending: Ending) -> None:
        if not self._described:
            self._describe(self._header)
        self._write(form.written_ending(ending))

    def _describe(self, header: Header) -> None:
        self._header, self._described = header, True
        time = {"time": header.before["time"]} if header.before else {}
        self._write({"kind": "start", "format": FORMAT, **time, **asdict(header)})

    def _write(self, entry: Json) -> None:
        raise NotImplementedError


log = logging.getLogger(__name__)


class Collector(Entries):
    """An observer that collects the recording in memory, for simulated runs and live views."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[Json] = []

    def _write(self, entry: Json) -> None:
        self._entries.append(entry)

    @property
    def recording(self) -> "Recording":
        """The recording so far. Raises InputError before the start."""
        head = {"kind": "start", "format": FORMAT, **asdict(self._header)}
        begun = [] if self._described or not self._header.flow else [head]
        return Recording.of([*begun, *self._entries])


class Recorder(Entries):
    """An observer that writes every entry to a file of JSON lines, flushed line by line, unknown values as null.

    Args:
        path: File or folder.
        resumed: The file is that of an earlier driver and continues; its last line may be torn.
        keep: Retention of a long recording; None for all, in one file.

    Raises:
        EnvironmentProblem: If the file cannot be written.
    """

    def __init__(self, path: Path | str, *, resumed: bool = False, keep: Keep | None = None) -> None:
        super().__init__()
        self.path, self._keep = file_of(Path(path)), keep
        self._since: float | None = None  # when the file's first observation was made, seconds of the run
        self._before: Mapping[str, Any] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            *parts, _ = files_of(self.path)
            if resumed and self.path.exists():
                os.truncate(self.path, whole_length(self.path))
                self._before = Recording.outline(self.path).header.before if self.path.stat().st_size else {}
            for part in () if resumed else parts:
                part.unlink()
            self._open("a" if resumed else "w")
        except OSError as error:
            raise self._problem(error) from error

    def started(self, header: Header) -> None:
        super().started(replace(header, before=self._before))

    def observed(self, observation: Observation) -> None:
        if self._keep is not None and self._described:
            self._since = observation.time if self._since is None else self._since
            # A part that spans more than the retention could not be removed in time.
            if self._size >= self._limit or observation.time - self._since >= self._keep.seconds:
                self._begin_part(self._keep, observation.time)
        super().observed(observation)

    def ended(self, ending: Ending) -> None:
        super().ended(ending)
        self._file.close()

    def _begin_part(self, keep: Keep, now: float) -> None:
        try:
            before = keep.summed(Recording.outline(self.path, whole=True))
        except ElastreamError:
            # A part without totals must not be removed; the next part is another try.
            log.warning("the recording goes on in the same file", exc_info=True)
            self._limit, self._since = self._size + keep.part, now
            return
        try:
            self._file.close()
            set_aside(self.path, now)
            self._open("w")
            self._header, self._last, self._since = replace(self._header, before=before), None, now
            self._describe(self._header)
        except OSError as error:
            raise self._problem(error) from error
        try:
            forget_parts(self.path, now - keep.seconds)
        except OSError:  # such as a full disk: they are removed with the next part
            log.warning("earlier parts of the recording %s stay as they are", self.path, exc_info=True)

    def _open(self, mode: str) -> None:
        self._file = create_private(self.path).open(mode, encoding="utf-8")
        self._size = os.fstat(self._file.fileno()).st_size
        self._limit = 0 if self._keep is None else self._keep.part

    def _write(self, entry: Json) -> None:
        try:
            line = json.dumps(form.without_nan(entry), separators=(",", ":"), allow_nan=False) + "\n"
            self._size += len(line)
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise self._problem(error) from error

    def _problem(self, error: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(f"the recording {self.path} cannot be written: {error.strerror or error}")


@dataclass(frozen=True)
class Recording:
    """A recorded run. Arrays over time are float64 of shape (observations,), NaN if unknown.

    Observations older than the retention are missing; `header.before` has their totals.
    """

    header: Header  # description of the run
    series: Series = field(default_factory=Series, compare=False)  # its observations
    decisions: tuple[Decision, ...] = ()  # the last version of each round, in order
    ending: Ending | None = None  # None if the run was killed before its end

    @classmethod
    def read(cls, path: Path | str) -> "Recording":
        """Read a recording from a file or folder, without a torn last line. Raises InputError with file and line."""
        file = file_of(Path(path))
        while True:
            files = files_of(file)
            try:
                recording = cls.of(chain.from_iterable(map(entries_of, files)), str(file))
            except InputError:
                if [each.stem for each in files_of(file)] == [each.stem for each in files]:
                    raise
                continue  # a part was removed meanwhile
            if len(files_of(file)) <= len(files):
                return recording  # otherwise a new part was begun meanwhile

    @classmethod
    def outline(cls, path: Path | str, *, whole: bool = False) -> "Recording":
        """Read header and ending alone. Raises InputError as `read` does.

        whole: read all of its last file.
        """
        file = file_of(Path(path))
        left_out = () if whole else ('{"kind":"observation"', '{"kind":"decision"')
        return cls.of(entries_of(file, left_out), str(file))

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]], place: str = "the recording") -> "Recording":
        """Build a recording from `entries`, or raise InputError with `place` and line."""
        builder = RecordingBuilder(place)
        for number, entry in enumerate(entries, start=1):
            try:
                builder.add(entry)
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(f"{place}, line {number}: not an entry of a recording ({error})") from error
        if builder.header is None:
            raise InputError(f"{place} has no start entry: the run has not started yet, or the run's header is missing")
        return builder.recording

    @property
    def forgotten(self) -> float:
        """Seconds from the beginning of which only totals are left; 0 if all is there."""
        return float(self.header.before.get("time", 0.0))

    @cached_property
    def times(self) -> Floats:
        return np.array(self.series.times, dtype=np.float64)

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(operator["name"] for operator in self.header.operators)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(operator["name"] for operator in self.header.operators if operator["kind"] == Kind.SOURCE)

    def application(self, metric: Metric) -> Floats:
        return self.series.application.column(None, metric.value, len(self.times))

    def operator(self, name: str, metric: Metric) -> Floats:
        return self.series.operators.column(name, metric.value, len(self.times))

    def whole(self, metric: Metric) -> Floats:
        """Return `metric` of the dataflow, else the sum over its sources."""
        whole = self.application(metric)
        if not np.isnan(whole).all():
            return whole
        return sum((self.operator(name, metric) for name in self.sources), start=0 * self.times)

    def alternate(self, name: str, metric: Metric) -> Floats:
        """Return `metric` of one alternate, `"operator.alternate"`, over time; NaN until it has run."""
        return self.series.alternates.column(name, metric.value, len(self.times))

    def host(self, name: str, metric: Metric) -> Floats:
        """Return `metric` of one host over time; NaN while it is not leased."""
        return self.series.hosts.column(name, metric.value, len(self.times))

    def parallelism(self, operator: str) -> Floats:
        """Return the instances of `operator` over time: measured, else as composed for its stage."""
        instances = self.operator(operator, Metric.PARALLELISM)
        stage = next((s["name"] for s in self.header.stages if operator in s["operators"]), operator)
        for name in (operator, stage):
            instances = np.where(
                np.isnan(instances), self.series.composed.column(name, "parallelism", len(self.times)), instances
            )
        return instances

    def tasks(self, operator: str) -> tuple[dict[int, str], ...]:
        row = self.operators.index(operator)
        return tuple({index: host for (of, index), host in now.items() if of == row} for now in self.series.placed)

    def host_count(self) -> dict[HostState, Floats]:
        """Return the number of hosts in each paid state, over time."""
        return {state: np.array(self.series.states[state.value]) for state in HostState if state in ACTIVE}

    @property
    def leased(self) -> Floats:
        return np.asarray(sum(self.host_count().values(), start=np.zeros(len(self.times))))

    def cost(self) -> Floats:
        return self.application(Metric.COST)

    @cached_property
    def hosts(self) -> tuple[Lease, ...]:
        if self.ending is not None and self.ending.ledger:
            return self.ending.ledger
        types = form.host_types(self.header)
        leases = (form.read_lease(lease, types) for lease in self.series.leases.values())
        return tuple(sorted(leases, key=lambda lease: lease.since))

    @property
    def batches(self) -> tuple[MicroBatch, ...]:
        return tuple(self.series.batches)

    @cached_property
    def alarms(self) -> tuple[tuple[Alarm, float | None], ...]:
        """Every alarm with its last text and its end; None if it stood until the recording ended."""
        alarms: dict[tuple[str, float], tuple[Alarm, float | None]] = {}
        standing: set[tuple[str, float]] = set()
        for time, each in self.series.alarms:
            now = {(alarm.source, alarm.since): alarm for alarm in (Alarm(**fields) for fields in each)}
            alarms |= {key: (alarms[key][0], time) for key in standing - now.keys()}
            alarms |= {key: (alarm, None) for key, alarm in now.items()}
            standing = set(now)
        return tuple(alarms.values())

    @cached_property
    def latency_basis(self) -> Mapping[str, Basis]:
        """Least exact basis of latencies over the whole run, by source."""
        return weakest({source: Basis(value) for source, value in each.items()} for each in self.series.bases)

    def signal_rounds(self) -> Iterator[tuple[float, int, Signals]]:
        """Yield for each observation its time, the version of the guards in force, and the newest signal readings."""
        rows, versions = self.series.signals.rows(), iter(self.series.guards)
        row, version = next(rows, None), next(versions, None)
        now: dict[str, SignalReading] = {}
        in_force = 0
        for number, time in enumerate(self.series.times):
            while row is not None and row[0] <= number:
                _, name, value, at = row
                if at == at:
                    now[name] = SignalReading(value, at)
                else:
                    now.pop(name, None)
                row = next(rows, None)
            while version is not None and version[0] <= number:
                in_force, version = version[1], next(versions, None)
            yield time, in_force, dict(now)

    def signals_at(self, time: float) -> Signals:
        """Return the newest reading of each signal at the last observation by `time`."""
        rounds = takewhile(lambda each: each[0] <= time, self.signal_rounds())
        return next((signals for _, _, signals in deque(rounds, maxlen=1)), {})

    def standings_at(self, time: float) -> Mapping[str, GuardDecision]:
        standings: dict[str, GuardDecision] = {}
        for number, element, fields in self.series.standings:
            if self.series.times[number] > time:
                break
            if fields is None:
                standings.pop(element, None)
            else:
                standings[element] = form.read_standing(fields, standings.get(element))
        return standings

    def compositions_at(self, time: float) -> Mapping[str, Composition]:
        """Return the composition in force by query at the last observation by `time`; "" has the requested one."""
        rows = (row for row in self.series.compositions if self.series.times[row[0]] <= time)
        return {query: Composition(**fields) for _, query, fields in rows}

    def query_of(self, element: str) -> str:
        """Return the query (segment) in which an operator runs, or a choice decides."""
        operator = next((edge["source"] for edge in self.header.edges if edge.get("choice") == element), element)
        return next((stage["segment"] for stage in self.header.stages if operator in stage["operators"]), "")

    @property
    def host_types(self) -> tuple[HostType, ...]:
        return tuple(form.host_types(self.header).values())

    @property
    def end(self) -> float:
        """End of the run [s]; without an ending, the time of the last observation."""
        if self.ending is not None:
            return self.ending.time
        return float(self.times[-1]) if len(self.times) else 0.0


class RecordingBuilder:
    """A recording that is built entry by entry. place: its file, for errors.

    Attributes:
        header: None before the first entry.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self.header: Header | None = None
        self.series = Series()
        self.decisions: dict[int, Decision] = {}
        self.ending: Ending | None = None
        self._rounds = 0  # of earlier drivers: each counts from 1

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add an entry. Raises ValueError, TypeError or KeyError for a malformed one."""
        fields = dict(entry)
        match fields.pop("kind"):
            case "start":
                fields.pop("time", None)
                before, header = self.header, form.read_header(unmarked(fields, self._place))
                self.header = header if before is None else described_before(before, header)
                if before is not None and header.resumed[-1:] != before.resumed[-1:]:
                    self.ending, self._rounds = None, max(self.decisions, default=0)
            case "observation":
                self.series.add(fields)
            case "decision":
                decision = form.read_decision(fields)
                number = self._rounds + decision.round
                self.decisions[number] = replace(decision, round=number)
            case "end":
                self.ending = form.read_ending(fields, form.host_types(self.header))
            case unknown:
                raise ValueError(f"unknown kind {unknown!r}")

    @property
    def recording(self) -> Recording:
        return Recording(self.header or Header("", ""), self.series, tuple(self.decisions.values()), self.ending)


# Seconds without an observation until a run without an end counts as dead: an action may take so long.
SILENT_S = 120.0


def check_live(run: Path, recording: Recording, what: str) -> None:
    """Raise InputError, about `what` it cannot accept, unless the run in the folder `run` is live."""
    ending = recording.ending
    if ending is not None:
        why = f", {ending.reason}" if ending.reason else ""
        raise InputError(f"{run} has {ending.status} at {clock(ending.time)}{why}: {what} are for a run that goes on")
    if not run.is_dir():
        raise InputError(f"{run} is not a run's folder: {what} are given to the run, not to a recording of it")
    silent = datetime.now().timestamp() - RunDirectory(run).recording.stat().st_mtime
    if silent > SILENT_S:
        silence = format_duration(round(silent))
        raise InputError(f"{run} has recorded nothing for {silence}: it died without an end, or hangs")

"""The live page of a run: pieces of HTML, made from the recording as it grows."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elastream.control.scaling import hosts_after
from elastream.core.action import LeaseHost, MoveTask
from elastream.core.decision import EXPECTED_IN, EXPECTED_RATE, Decision, often_said
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.scaling import APPROVAL, rule_of
from elastream.core.wording import UNKNOWN, amount, clock, counted, duration_text, money, percent, quantity, rate_text
from elastream.dashboard.live import acted, alike, summary_of, worth_showing
from elastream.errors import ElastreamError
from elastream.recording.directory import RunDirectory
from elastream.recording.recorder import Recording, RecordingBuilder
from elastream.recording.request_log import Request, RequestLog
from elastream.recording.run_state import RunState, state_with
from elastream.recording.tail import Tail
from elastream.report.flow import flow_of_run
from elastream.report.page import Card, bar, costs_text
from elastream.report.summary import Summary, summarise
from elastream.report.tally import Totals, tally_of
from elastream.report.template import rendered
from elastream.report.timeline import timeline

# Entries that are read before the page is shown again.
READ, READ_CHARACTERS = 2_000, 2_000_000
# Parts of a run that can be shown (seconds); infinite for all of it.
SPANS = {"15 min": 900.0, "1 h": 3600.0, "6 h": 21_600.0, "all": math.inf}
# Decisions, ended leases and leases in all that are shown; a run may have thousands.
DECISIONS, ENDED, LANES = 40, 20, 1_200
# Leases from which they are drawn again only after so many seconds.
MANY, MANY_PACE_S = 200, 5.0
# Part of the shown time by which the axis reaches beyond now, if something is expected there.
MOST_AHEAD = 0.25
# Share of the shown decisions with a remark about a query from which it is a finding; batches that name the queries.
OFTEN, NEWEST_BATCHES = 0.25, 200
# Busy part of its instances from which an operator bounds the others.
BOUND = 0.7
LIVE = ("starting", "running", "paused")


@dataclass(frozen=True, slots=True)
class Lane:
    """A host: begin, readiness and end of its lease in percent of the shown time, and its figures."""

    host: str
    about: str
    state: str
    bar: tuple[float, float, float]
    figures: str
    drains: bool


@dataclass(frozen=True, slots=True)
class PendingLeases:
    """Leases that wait: their number, the hosts without them, and the cost of all (money/h)."""

    leases: int
    hosts: int
    hourly: float

    @property
    def text(self) -> str:
        return f"{counted(self.leases, 'host')} more, for {money(self.hourly)}/h in all"


class Feed:
    """A run in `root`. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        self.directory = RunDirectory(root)
        self.name = root.resolve().name
        self.state: RunState = state_with(self.directory, None)
        self.behind = True
        self._tail = Tail(root)
        self._totals: Totals | None = None
        self._shown: dict[str, Mapping[str, str]] = {}
        self._hosts: tuple[float, float, str] = (math.nan, 0.0, "")  # shown time, when they are drawn again, text

    def update(self) -> bool:
        """Read what is new; return True if it changes what is shown."""
        entries, before = self._tail.read(READ, READ_CHARACTERS), self.state
        self.behind = bool(entries) and self._tail.behind
        self.state = state_with(self.directory, self._tail.recording if self._tail.newest else None)
        if not entries and self.state.state == before.state:
            return False
        self._sum(entries)
        self._shown.clear()
        return True

    def pieces(self, span: str) -> Mapping[str, str]:
        """Return the pieces of the page by name. span: one of SPANS."""
        if span not in self._shown:
            self._shown[span] = dict(self._pieces(SPANS[span]))
        return self._shown[span]

    @property
    def max_hosts(self) -> int:
        return self._tail.recording.header.max_hosts

    @property
    def pending_leases(self) -> "PendingLeases | None":
        """Leases that wait for approval, or None."""
        recording = self._tail.recording
        last = recording.decisions[-1].proposals if recording.decisions and self.state.live else ()
        waiting = [each.action for each in last if rule_of(each.refused) == APPROVAL and isinstance(each.action, LeaseHost)]
        if not waiting:
            return None
        types = {kind.name: kind for kind in recording.host_types}
        granted = [each.action for each in recording.decisions[-1].outcomes if each.succeeded]
        hosts, every = (hosts_after(recording.hosts, actions, types) for actions in (granted, [*granted, *waiting]))
        return PendingLeases(len(waiting), len(hosts), 3600 * math.fsum(kind.price_rate for kind in every))

    @property
    def requests(self) -> Sequence[Request]:
        """Requests to the present driver."""
        lock = self.directory.lock
        since = lock.stat().st_mtime if lock.exists() else 0.0
        return [each for each in RequestLog(self.directory.requests).newer() if each.time >= since]

    @property
    def alternates(self) -> Mapping[str, Sequence[str]]:
        """Alternates by operator that has several."""
        operators = self._tail.recording.header.operators
        return {each["name"]: each["alternates"] for each in operators if len(each["alternates"]) > 1}

    @property
    def running_hosts(self) -> frozenset[str]:
        leases = self._tail.newest.get("leases", ())
        return frozenset(each["host"] for each in leases if each["state"] == HostState.RUNNING)

    def _sum(self, entries: Iterable[Mapping[str, Any]]) -> None:
        whole = self._tail.recording
        header = whole.header
        if self._totals is None:
            self._totals = Totals.of_json(header.before, header.target_latency)
        part = RecordingBuilder(self.name)
        part.header = header
        for entry in entries:
            if entry["kind"] in ("observation", "decision"):
                part.add(entry)
        added = part.recording
        if added.series.times or added.decisions:
            self._totals = tally_of(replace(added, header=replace(header, before=self._totals.to_json())))

    def _pieces(self, span: float) -> Iterator[tuple[str, str]]:
        recording, state = self._tail.recording, self.state
        if not len(recording.times):
            why = "Nothing is recorded yet." if state.live else "It ended before anything was recorded."
            yield "head", rendered("live_head.html.j2", state=state, name=self.name, why=why)
            return
        summary = summarise(recording, self._totals)
        end = float(recording.times[-1])
        begin = max(0.0, end - span) if math.isfinite(span) else 0.0
        ahead = min(_expected_in(recording.decisions), MOST_AHEAD * (end - begin)) if state.live else 0.0
        why = recording.ending.reason if recording.ending else ""
        why = why or ("The driver is gone, and wrote no end." if state.state == "died" else "")
        why = f"{why} Reading the recording: {clock(end)} so far.".strip() if self.behind else why
        yield "head", rendered("live_head.html.j2", state=state, name=self.name, why=why, header=recording.header, end=end)
        yield "answers", rendered("live_answers.html.j2", cards=list(_answers(recording, summary, state)))
        alarms = [alarm for alarm, cleared in recording.alarms if cleared is None and state.live]
        queries = {batch.segment for batch in recording.batches[-NEWEST_BATCHES:]}
        said = often_said([each for each in recording.decisions if each.time >= begin], queries)
        findings = [(text, share) for text, share in said.items() if share >= OFTEN]
        yield "alarms", rendered("live_alarms.html.j2", alarms=alarms, findings=findings)
        yield "held", rendered("live_held.html.j2", held=self.pending_leases)
        yield "alternates", self._requestable() if state.live else ""
        yield "flow", rendered("live_flow.html.j2", flow=self._flow(recording))
        yield "timeline", rendered("timeline.html.j2", timeline=timeline(recording, begin, ahead))
        if time.monotonic() >= self._hosts[1] or self._hosts[0] != span:
            lanes, left = self._lanes(recording, begin, end)
            text = rendered("live_hosts.html.j2", lanes=lanes, left=left, begin=begin, end=end)
            self._hosts = span, time.monotonic() + (MANY_PACE_S if len(lanes) > MANY else 0.0), text
        yield "hosts", self._hosts[2]
        yield "decisions", rendered("live_decisions.html.j2", decisions=list(_decisions(recording.decisions)))

    def _requestable(self) -> str:
        requests = self.requests
        chosen = {each.operator: each.alternate for each in requests if each.action == "alternate"}
        bounds = next((each.bounds for each in reversed(requests) if each.action == "bounds"), "")
        return rendered("live_alternates.html.j2", alternates=self.alternates, chosen=chosen, bounds=bounds)

    def _value(self, operator: str, metric: Metric) -> float:
        frame = self._tail.newest["operators"]
        values = frame["values"].get(metric.value)
        value = None if values is None or operator not in frame["ids"] else values[frame["ids"].index(operator)]
        return math.nan if value is None else float(value)

    def _flow(self, recording: Recording) -> Any:
        figures, busy = {}, {}
        for name in recording.operators:
            rate, waits = self._value(name, Metric.ARRIVAL_RATE), self._value(name, Metric.BACKLOG)
            rate = self._value(name, Metric.PROCESSED_RATE) if math.isnan(rate) else rate
            waiting = f"{amount(round(waits))} wait" if waits >= 1 else ""
            figures[name] = ", ".join(filter(None, [rate_text(rate), waiting]))
            busy[name] = self._value(name, Metric.BUSY_CORES) / max(1.0, self._value(name, Metric.PARALLELISM))
        measured = {name: each for name, each in busy.items() if not math.isnan(each)}
        most = max(measured, key=lambda name: measured[name], default="")
        late = float(recording.application(Metric.BACKLOG)[-1]) > 0
        bottleneck = most if most and measured[most] >= BOUND and late else ""
        requested = recording.compositions_at(recording.end).get("")
        alternates = {} if requested is None else dict(requested.alternates)
        running = {name: f"runs {alternates.get(name, names[0])}" for name, names in self.alternates.items()}
        return flow_of_run(recording.header).with_figures(figures, bottleneck, running)

    def _lanes(self, recording: Recording, begin: float, end: float) -> tuple[list[Lane], int]:
        def ended_at(lease: Lease) -> float:
            return math.inf if lease.until is None else lease.until

        leases = recording.hosts
        active = [lease for lease in leases if lease.until is None]
        ended = sorted((each for each in leases if each.until is not None and each.until >= begin), key=ended_at)
        chosen = [*active, *ended[-ENDED:]][:LANES]
        state, frame = self._state_of_hosts(), self._tail.newest["hosts"]
        rows = {host: row for row, host in enumerate(frame["ids"])}

        def value(host: str, metric: Metric) -> float:
            values, row = frame["values"].get(metric.value), rows.get(host)
            return math.nan if values is None or row is None or values[row] is None else float(values[row])

        lanes = []
        for lease in chosen:
            figures = ""
            if lease.until is None:
                tasks, cpu = value(lease.host, Metric.TASKS), value(lease.host, Metric.CPU)
                parts = [f"{tasks:.0f} tasks"] if tasks >= 0 else []
                parts += [f"{percent(cpu)} busy"] if cpu >= 0 else []
                size = state.get(lease.host, 0.0)
                figures = ", ".join([*parts, *([f"{quantity(Metric.STATE_SIZE, size)} state"] if size > 0 else [])])
            drains = lease.state is HostState.RUNNING and self.state.live
            lanes.append(Lane(lease.host, lease.type.name, lease.state.value, bar(lease, begin, end), figures, drains))
        return lanes, len(active) + len(ended) - len(chosen)

    def _state_of_hosts(self) -> dict[str, float]:
        tasks, hosts = self._tail.newest["tasks"], self._tail.newest["hosts"]["ids"]
        sizes = tasks.get("values", {}).get(Metric.STATE_SIZE.value, ())
        total: dict[str, float] = {}
        for row, size in zip(tasks["host"], sizes, strict=False):
            if row >= 0 and size is not None:
                total[hosts[row]] = total.get(hosts[row], 0.0) + float(size)
        return total


def _expected_in(decisions: Iterable[Decision]) -> float:
    last = next((each for each in reversed(tuple(decisions)) if EXPECTED_IN in each.predicted), None)
    return 0.0 if last is None else last.predicted[EXPECTED_IN]


def _answers(recording: Recording, summary: Summary, state: RunState) -> Iterator[Card]:
    """Yield the four answers: the service level, the cost, what was done last and why, and what comes next."""
    target, header = recording.header.target_latency, recording.header
    p99, now = float(recording.application(Metric.LATENCY_P99)[-1]), float(recording.times[-1])
    good = None if target is None or math.isnan(p99) else p99 <= target
    share = percent(summary.records_within_target)
    share = f"{percent(summary.within_target)} of the time" if share == UNKNOWN else share
    value = share if target is not None else duration_text(p99)
    text = f"p99 now {duration_text(p99)}"
    if target is not None:
        text += f", target {duration_text(target)}; {percent(summary.within_target)} of the time in time"
    yield Card(value, "Service level", text, good)
    own, _, per = costs_text(summary).partition(", ")
    others = "; ".join(str(each) for each in summary.fleets if not math.isnan(each.cost))
    yield Card(own, "Cost so far", others or per)
    done = next((each for each in reversed(recording.decisions) if each.outcomes), None)
    if done is None:
        yield Card("nothing", "Last action", "It has changed nothing yet.")
    else:
        ago = duration_text(max(0.0, now - done.time))
        acts = [each.action for each in done.outcomes if not isinstance(each.action, MoveTask)]
        kinds, moves = "; ".join(dict.fromkeys(each.describe() for each in acts)), len(done.outcomes) - len(acts)
        text = "; ".join(filter(None, [kinds, counted(moves, "task") + " moved" if moves else ""]))
        why = next((each.action.why for each in done.outcomes if each.action.why), "")
        yield Card(text, "Last action", f"{ago} ago" + (f": {why}" if why else ""))
    yield _next(recording, state, header.policy)


def _next(recording: Recording, state: RunState, policy: str) -> Card:
    last = recording.decisions[-1] if recording.decisions else None
    if not state.live or last is None:
        texts = {"finished": "The load is processed.", "died": "elastream run --resume continues it."}
        plan = "It plans when the first figures are there." if state.live else texts.get(state.state, "It has ended.")
        return Card("nothing", "Next", plan)
    if last.mode:
        return Card(last.mode, "Next", "It plans and records, and applies nothing.")
    hosts = f"{policy} wants {last.hosts:.3g} hosts" if last.hosts == last.hosts else f"{policy} proposes nothing more"
    rate = last.predicted.get(EXPECTED_RATE, math.nan)
    if rate == rate:
        within = duration_text(last.predicted.get(EXPECTED_IN, math.nan))
        return Card(rate_text(rate), "Next", f"expected in {within}; {hosts}")
    note = last.remarks
    return Card(f"{last.hosts:.3g} hosts" if last.hosts == last.hosts else "no change", "Next", note or hosts)


def _decisions(decisions: Iterable[Decision]) -> Iterator[tuple[str, str, bool]]:
    """Yield time, text and True for an action, of the latest decisions with news; the newest first."""
    shown: list[Decision] = []
    for each in reversed(tuple(decisions)):
        if not (worth_showing(each) or each.faults):
            continue
        if shown and not each.outcomes and alike(shown[-1], each):
            shown[-1] = each  # since when it is so
            continue
        shown.append(each)
        if len(shown) > DECISIONS:
            break
    for each in shown[:DECISIONS]:
        faults = "; ".join(fault.said for fault in each.faults)
        yield clock(each.time), faults or summary_of(each), acted(each)


def unreadable(root: Path, error: ElastreamError) -> str:
    """Return the head of a run that cannot be read."""
    return rendered("live_head.html.j2", state=None, name=root.name, why=str(error), when=time.strftime("%H:%M:%S"))

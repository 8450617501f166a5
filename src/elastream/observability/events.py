"""Events of a run's observations and decisions, each once while it repeats.

`core.event` defines the reasons. Nothing here decides anything.
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TypeAlias

from elastream.control.rollback import ROLLED_BACK
from elastream.core.action import CancelDrain, DrainHost, LeaseHost, ReleaseHost, Switch
from elastream.core.decision import Decision, Proposal
from elastream.core.event import Reason, RunEvent
from elastream.core.hosts import HostState, Lease
from elastream.core.observation import Observation
from elastream.core.scaling import rule_of
from elastream.core.wording import counted, gist
from elastream.errors import EnvironmentProblem
from elastream.policies.common.reach import HALF_HELP, NO_HELP
from elastream.recording.directory import create_private
from elastream.recording.observer import Ending, Header

log = logging.getLogger("elastream.events")

REPEAT_INTERVAL_S = 1800.0  # as Flink's `job.autoscaler.event.interval`
HISTORY_S = 86_400.0  # A run of months has thousands of host names, so counts of unsent events expire.
# each such event is another occurrence
ALWAYS_SENT = frozenset(
    {
        Reason.SCALED_UP,
        Reason.SCALED_DOWN,
        Reason.SWITCHED,
        Reason.ROLLED_BACK,
        Reason.PAUSED,
        Reason.UNPAUSED,
        Reason.HOST_LOST,
    }
)
# starts of refusals that prevent nothing wanted
HARMLESS_REFUSALS = ("observe only", "paused", "it is under way", "the plan has it", "it contradicts")
HOST_ACTIONS = (LeaseHost, DrainHost, ReleaseHost)  # actions that change the number of hosts
Sink: TypeAlias = Callable[[RunEvent], None]


class EventBook:
    """Turns observations and decisions into events; counts repetitions within REPEAT_INTERVAL_S instead of sending them."""

    def __init__(self) -> None:
        self._leases: Mapping[str, Lease] = {}
        self._left: set[str] = set()
        self._alarms: dict[str, str] = {}
        self._mode = ""
        self._history: dict[tuple[Reason, str], tuple[float, int]] = {}

    def observed(self, observation: Observation) -> list[RunEvent]:
        return list(self._new(observation.time, self._host_and_alarm_events(observation)))

    def decided(self, decision: Decision) -> list[RunEvent]:
        """Return events of a planning round; none if the decision repeats with its actual effect."""
        return [] if decision.actual else list(self._new(decision.time, self._round_events(decision)))

    def _host_and_alarm_events(self, observation: Observation) -> Iterator[tuple[Reason, str, str]]:
        leases = observation.leases
        for host, lease in self._leases.items():
            if host in leases or host in self._left or lease.state in (HostState.DRAINING, HostState.RELEASING):
                continue
            ready = lease.ready_at() is not None
            why = f": {lease.note}" if lease.note else ""
            yield (
                Reason.HOST_LOST,
                host,
                f"host {host} was lost" if ready else f"host {host} was requested and never came up{why}",
            )
        self._left &= leases.keys()
        self._leases = leases
        for lease in leases.values():
            if lease.refused:
                yield (
                    Reason.HOST_REFUSED,
                    "",
                    f"a request for {lease.host} ({lease.type.name}) is refused for now: {lease.note}",
                )
            elif lease.note and lease.there:
                yield Reason.HOST_RECALLED, lease.host, f"host {lease.host}: {lease.note}"
        alarms = {alarm.source: alarm.said for alarm in observation.alarms}
        for source in alarms.keys() - self._alarms.keys():
            yield Reason.ALARM_RAISED, source, alarms[source]
        for source in self._alarms.keys() - alarms.keys():
            yield Reason.ALARM_CLEARED, source, f"{source} recovered (was: {self._alarms[source]})"
        self._alarms = alarms

    def _round_events(self, decision: Decision) -> Iterator[tuple[Reason, str, str]]:
        if decision.mode != self._mode:
            if decision.mode == "paused":
                yield Reason.PAUSED, "", "paused: what is planned is recorded and not applied"
            elif self._mode == "paused":
                yield Reason.UNPAUSED, "", "what is planned is applied again"
            self._mode = decision.mode
        yield from self._action_events(decision)
        for proposal in decision.proposals:
            if proposal.refused and isinstance(proposal.action, HOST_ACTIONS):
                yield from _refusal_events(proposal)
        yield from _note_events(decision.note)
        for unknown in decision.lasting:
            yield Reason.METRICS_MISSING, "/".join((unknown.rows, unknown.row, unknown.metric)), str(unknown)
        for fault in decision.faults:
            yield Reason.FAULT, fault.source, fault.said + fault.place

    def _action_events(self, decision: Decision) -> Iterator[tuple[Reason, str, str]]:
        up = [each.action for each in decision.done if isinstance(each.action, LeaseHost | CancelDrain)]
        down, switched = [], []
        for outcome in decision.outcomes:
            action = outcome.action
            if outcome.succeeded and isinstance(action, DrainHost | ReleaseHost):
                if action.host not in self._left:
                    down.append(action)
                self._left.add(action.host)
            elif outcome.succeeded and isinstance(action, CancelDrain):
                self._left.discard(action.host)
            elif outcome.succeeded and isinstance(action, Switch):
                switched.append(action.describe())
            elif not outcome.succeeded and isinstance(action, HOST_ACTIONS):
                message = f"{action.describe()}: {outcome.reason}"
                yield Reason.SCALING_VETOED, _subject(outcome.reason), message
        for reason, actions, one, many in (
            (Reason.SCALED_UP, up, "comes", "come"),
            (Reason.SCALED_DOWN, down, "goes", "go"),
        ):
            if actions:
                verb = one if len(actions) == 1 else many
                hosts = ", ".join(each.host for each in actions)
                why = f": {actions[0].why}" if actions[0].why else ""
                yield reason, hosts, f"{counted(len(actions), 'host')} {verb} ({hosts}){why}"
        if switched:
            yield Reason.SWITCHED, "", "; ".join(switched)

    def _new(self, time: float, events: Iterable[tuple[Reason, str, str]]) -> Iterator[RunEvent]:
        for reason, about, message in events:
            if reason in ALWAYS_SENT:
                yield RunEvent(time, reason, message, about, since=time)
                continue
            at, count = self._history.get((reason, about), (-REPEAT_INTERVAL_S, 0))
            if time - at < REPEAT_INTERVAL_S:
                self._history[reason, about] = at, count + 1
                continue
            self._forget(time)
            self._history[reason, about] = time, 0
            yield RunEvent(time, reason, message, about, count + 1, at if count else time)

    def _forget(self, time: float) -> None:
        self._history = {
            key: (at, count)
            for key, (at, count) in self._history.items()
            if time - at < REPEAT_INTERVAL_S or (count and time - at < HISTORY_S)
        }


def _note_events(note: str) -> Iterator[tuple[Reason, str, str]]:
    for sentence in note.split("; "):
        if sentence.startswith((NO_HELP, HALF_HELP)):
            yield Reason.INEFFECTIVE_SCALING, "", sentence
        elif sentence.startswith(ROLLED_BACK):
            yield Reason.ROLLED_BACK, "", sentence.removeprefix(ROLLED_BACK)
        elif rule := rule_of(sentence):
            yield Reason.SCALING_LIMITED, rule, sentence


def _refusal_events(proposal: Proposal) -> Iterator[tuple[Reason, str, str]]:
    if rule := rule_of(proposal.refused):
        yield Reason.SCALING_LIMITED, rule, f"{proposal.refused} ({proposal.action.describe()})"
    elif not proposal.refused.startswith(HARMLESS_REFUSALS):
        yield Reason.SCALING_VETOED, _subject(proposal.refused), f"{proposal.action.describe()}: {proposal.refused}"


def _subject(reason: str) -> str:
    return gist(re.sub(r"\bh(?=\d)", "", reason))[:80]


class EventLog:
    """Observer that logs events ("elastream.events") and writes them as JSON lines.

    Args:
        path: File; `"-"` for standard error.

    Raises:
        EnvironmentProblem: `path` cannot be written.
    """

    def __init__(self, path: Path | str | None = None, sinks: Iterable[Sink] = (), logged: bool = True) -> None:
        self._book, self._sinks, self._logged = EventBook(), tuple(sinks), logged
        self._epoch = 0.0
        self._file: IO[str] | None = None
        if path == "-":
            self._file = sys.stderr
        elif path is not None:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._file = create_private(Path(path)).open("a", encoding="utf-8")
            except OSError as error:
                raise EnvironmentProblem(f"events cannot be written to {path}: {error.strerror or error}") from error

    def started(self, header: Header) -> None:
        self._epoch = header.started
        self._send(RunEvent(0.0, Reason.RUN_STARTED, f"{header.flow} runs with policy {header.policy}"))

    def observed(self, observation: Observation) -> None:
        for event in self._book.observed(observation):
            self._send(event)

    def decided(self, decision: Decision) -> None:
        for event in self._book.decided(decision):
            self._send(event)

    def ended(self, ending: Ending) -> None:
        reason = f": {ending.reason}" if ending.reason else ""
        self._send(RunEvent(ending.time, Reason.RUN_ENDED, f"{ending.status}{reason}"))
        if self._file is not None and self._file is not sys.stderr:
            self._file.close()

    def _send(self, event: RunEvent) -> None:
        if self._logged:
            log.log(
                logging.WARNING if event.type == "Warning" else logging.INFO, "%s: %s", event.reason.value, event.message
            )
        if self._file is not None:
            print(json.dumps(event.to_json(self._epoch)), file=self._file, flush=True)
        for sink in self._sinks:
            sink(event)

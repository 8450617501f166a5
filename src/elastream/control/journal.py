"""Life cycle of an action, and the journal written before it is tried.

After a crash the next controller proposes unfinished actions again.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from elastream.core.action import Action, from_json, to_json
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.hosts import LifecycleError
from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.lines import JournalProblem, Lines

UNWRITTEN_REASON = "the journal cannot be written"
# Source of the alarm about a journal that cannot be written.
JOURNAL_ALARM = "journal"

# Concluded actions for questions about the recent past. The recording has all of them.
KEPT_ACTIONS = 500
# An action has two or three lines, so most of a longer file is about forgotten actions.
LINES_PER_ACTION = 4


class ActionState(StrEnum):
    """State of an action; outcomes share values with `Status`."""

    # requested by a policy
    PLANNED = "planned"
    # accepted by arbitration
    GRANTED = "granted"
    # refused by arbitration or the plant, with a reason
    REFUSED = "refused"
    # passed to the plant, result unknown; on disk before the call
    TRIED = "tried"
    # in force
    DONE = "done"
    # in progress; an observation will show its end
    ACCEPTED = "accepted"
    # failed, or had no effect in time
    FAILED = "failed"
    # the controller died before it learned the outcome
    INTERRUPTED = "interrupted"
    # abandoned: replaced by another action, or obsolete after a restart
    DROPPED = "dropped"
    # done, and undone since
    UNDONE = "undone"


TRANSITIONS: Mapping[ActionState, Set[ActionState]] = {
    ActionState.PLANNED: {
        ActionState.GRANTED,  # no rule refuses it
        ActionState.REFUSED,  # a duplicate, a contradiction, out of bounds, backing off, or a dry run
    },
    ActionState.GRANTED: {ActionState.TRIED},  # its turn came
    ActionState.TRIED: {
        ActionState.DONE,  # the plant did it at once
        ActionState.ACCEPTED,  # the plant began it
        ActionState.REFUSED,  # the plant refuses it in its current state
        ActionState.FAILED,  # the plant could not do it
        ActionState.INTERRUPTED,  # found without an outcome after a restart
    },
    ActionState.ACCEPTED: {
        ActionState.DONE,  # an observation shows it
        ActionState.FAILED,  # its host died, or it did not show in time
        ActionState.DROPPED,  # a later action about the same thing was granted
        ActionState.INTERRUPTED,  # found under way after a restart
    },
    ActionState.INTERRUPTED: {
        ActionState.GRANTED,  # proposed again, and it still makes sense
        ActionState.DROPPED,  # proposed again, and it does not
    },
    ActionState.DONE: {
        ActionState.UNDONE,  # the objective became worse than predicted
    },
    ActionState.REFUSED: set(),
    ActionState.FAILED: set(),
    ActionState.DROPPED: set(),
    ActionState.UNDONE: set(),
}
# States of actions that nothing is awaited of.
CONCLUDED = frozenset(state for state, following in TRANSITIONS.items() if following <= {ActionState.UNDONE})


@dataclass(frozen=True, slots=True)
class Entry:
    number: int
    action: Action
    by: str
    state: ActionState = ActionState.PLANNED
    reason: str = ""
    history: tuple[tuple[float, ActionState], ...] = ()  # pairs of time and state, oldest first

    def to(self, state: ActionState, at: float, reason: str = "") -> "Entry":
        """Return the entry after a step to `state`, or raise LifecycleError."""
        if state not in TRANSITIONS[self.state]:
            story = ", ".join(f"{s} at {t:.1f} s" for t, s in self.history) or "planned"
            raise LifecycleError(
                f"'{self.action.describe()}' cannot go from {self.state} to {state} at {at:.1f} s (it was {story})"
            )
        return replace(self, state=state, reason=reason, history=(*self.history, (at, state)))


class Journal:
    """Granted actions: one JSON line per step, forced to disk.

    Args:
        path: None: in memory, for simulated time.

    Raises:
        EnvironmentProblem: The file cannot be written.
        InputError: A line is damaged, other than a torn last one.
    """

    def __init__(self, path: Path | str | None = None, *, capacity: int = KEPT_ACTIONS) -> None:
        self._capacity = capacity
        self._entries: dict[int, Entry] = {}
        self._unwritten: list[dict[str, Any]] = []
        self._lines: Lines | None = None
        if path is not None:
            self._lines = Lines(path, "the journal")
            self._take_over(self._lines)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    @property
    def unconcluded(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self._entries.values() if entry.state not in CONCLUDED)

    def entry(self, number: int) -> Entry:
        return self._entries[number]

    def grant(self, action: Action, by: str, at: float) -> Entry:
        entry = Entry(next(reversed(self._entries), 0) + 1, action, by, history=((at, ActionState.PLANNED),))
        entry = entry.to(ActionState.GRANTED, at)
        self._entries[entry.number] = entry
        if len(self._entries) >= 2 * self._capacity:
            self._forget()
        return entry

    def step(self, entry: Entry, state: ActionState, at: float, reason: str = "") -> Entry:
        moved = entry.to(state, at, reason)
        self._entries[moved.number] = moved
        if state is not ActionState.GRANTED:
            self._write(moved, at)
        return moved

    def drop_unconcluded(self, why: str) -> None:
        for entry in self.unconcluded:
            self.step(entry, ActionState.DROPPED, entry.history[-1][0], why)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def _forget(self) -> None:
        left = len(self._entries) - self._capacity
        for number in [each.number for each in self._entries.values() if each.state in CONCLUDED][:left]:
            del self._entries[number]
        if self._lines is not None and not self._unwritten and self._lines.count > LINES_PER_ACTION * self._capacity:
            written = [each for each in self._entries.values() if each.state is not ActionState.GRANTED]
            with contextlib.suppress(JournalProblem):  # a full disk: the file stays as it is, and long
                self._lines.replace(_line(each, each.history[-1][0]) for each in written)

    def _write(self, entry: Entry, at: float) -> None:
        if self._lines is not None:
            self._unwritten.append(_line(entry, at))
            self.flush()

    def flush(self) -> None:
        while self._lines is not None and self._unwritten:
            self._lines.append(self._unwritten[0])
            del self._unwritten[0]

    def _take_over(self, lines: Lines) -> None:
        for number, fields in enumerate(lines.read(), start=1):
            try:
                at, state = float(fields.pop("time")), ActionState(fields.pop("state"))
                key, by, reason = int(fields.pop("number")), str(fields.pop("by")), str(fields.pop("reason"))
                entry = self._entries.get(key) or Entry(key, from_json(fields), by)
                self._entries[key] = replace(entry, state=state, reason=reason, history=(*entry.history, (at, state)))
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(f"{lines.path}, line {number}: not an entry of a journal ({error})") from error
        if len(self._entries) >= 2 * self._capacity:
            self._forget()
        for entry in self.unconcluded:
            if entry.state is not ActionState.INTERRUPTED:
                at = entry.history[-1][0]
                self._entries[entry.number] = entry.to(
                    ActionState.INTERRUPTED, at, "the controller ended before its outcome"
                )


class JournalWriter:
    """Access of the loop to the journal; a full disk only freezes the plan.

    Attributes:
        left_over: An earlier controller's unfinished actions, until tried again.
    """

    def __init__(self, journal: Journal, alarms: Alarms, clock: Callable[[], float]) -> None:
        self._journal, self._alarms, self._clock = journal, alarms, clock
        self.left_over: dict[Action, Entry] = {entry.action: entry for entry in journal.unconcluded}

    def begin(self, proposals: Sequence[Proposal]) -> list[Entry]:
        """Return entries of `proposals` on disk; empty if the disk is full."""
        if not self.flush():
            return []
        entries = [self._granted(proposal) for proposal in proposals]
        written = [self._write(entry, ActionState.TRIED, "") for entry in entries]
        if all(written):
            return [self._journal.entry(entry.number) for entry in entries]
        for entry in entries:
            self.note(self._journal.entry(entry.number), ActionState.FAILED, UNWRITTEN_REASON)
        return []

    def note(self, entry: Entry, state: ActionState, reason: str = "") -> Entry:
        self._write(entry, state, reason)
        return self._journal.entry(entry.number)

    def note_undone(self, actions: Sequence[tuple[Action, str]]) -> None:
        for action, reason in actions:
            done = (each for each in reversed(self._journal.entries) if each.action == action)
            if (entry := next(done, None)) is not None and entry.state is ActionState.DONE:
                self.note(entry, ActionState.UNDONE, reason)

    def drop_left_over(self, reasons: Mapping[Action, str]) -> None:
        for action, entry in self.left_over.items():
            self.note(entry, ActionState.DROPPED, reasons[action])
        self.left_over.clear()

    def flush(self) -> bool:
        """Write pending lines; return True if none is left."""
        return self._written(self._journal.flush)

    def close(self) -> None:
        self._journal.close()

    def _granted(self, proposal: Proposal) -> Entry:
        entry, now = self.left_over.pop(proposal.action, None), self._clock()
        if entry is None:
            return self._journal.grant(proposal.action, proposal.by, now)
        return self._journal.step(entry, ActionState.GRANTED, now)

    def _write(self, entry: Entry, state: ActionState, reason: str) -> bool:
        return self._written(lambda: self._journal.step(entry, state, self._clock(), reason))

    def _written(self, write: Callable[[], object]) -> bool:
        try:
            write()
        except EnvironmentProblem as error:
            self._alarms.sound(JOURNAL_ALARM, f"{error}: no action is tried until it can be", error)
            return False
        self._alarms.clear(JOURNAL_ALARM)
        return True


def _line(entry: Entry, at: float) -> dict[str, Any]:
    line = {"number": entry.number, "time": at, "state": entry.state.value, "by": entry.by, "reason": entry.reason}
    return {**line, **to_json(entry.action)}

"""The lifecycle of an action, and its journal, a file that survives the controller: written before an action is tried.

A controller that died in the middle of an action cannot know whether it happened. Actions are idempotent, so the next one
reads the journal, proposes again what was never concluded, and drops what no longer makes sense.
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

UNWRITTEN = "the journal cannot be written"
SOURCE = "journal"
"""Source of the alarm about a journal that cannot be written."""

KEPT = 500
"""Concluded actions that are kept, for those who ask why something was done. The recording has all of its time."""
LONGEST = 4 * KEPT
"""Lines of the file after which it is written anew: an action has two or three, so most of it is about forgotten ones."""


class ActionState(StrEnum):
    """States of an action; an outcome is the state of the same value as its `Status`."""

    PLANNED = "planned"
    """A policy requested it."""
    GRANTED = "granted"
    """Arbitration accepted it."""
    REFUSED = "refused"
    """Arbitration, or the plant, refused it with a reason."""
    TRIED = "tried"
    """Handed to the plant, result unknown. Written to disk before the plant is called."""
    DONE = "done"
    """In force."""
    ACCEPTED = "accepted"
    """Under way; an observation will show its end."""
    FAILED = "failed"
    """Failed, or had no effect in time."""
    INTERRUPTED = "interrupted"
    """The controller died before it learned the outcome."""
    DROPPED = "dropped"
    """Abandoned: replaced by another action, or obsolete after a restart."""


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
    ActionState.REFUSED: set(),
    ActionState.DONE: set(),
    ActionState.FAILED: set(),
    ActionState.DROPPED: set(),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One action from the moment it was planned: its proposer, state and history.

    number: its number in the journal. reason: of the last step. history: (time, state), oldest first.
    """

    number: int
    action: Action
    by: str
    state: ActionState = ActionState.PLANNED
    reason: str = ""
    history: tuple[tuple[float, ActionState], ...] = ()

    def to(self, state: ActionState, at: float, reason: str = "") -> "Entry":
        """This entry after a step to `state`; raises LifecycleError where `TRANSITIONS` has no such edge."""
        if state not in TRANSITIONS[self.state]:
            story = ", ".join(f"{s} at {t:.1f} s" for t, s in self.history) or "planned"
            raise LifecycleError(
                f"'{self.action.describe()}' cannot go from {self.state} to {state} at {at:.1f} s (it was {story})"
            )
        return replace(self, state=state, reason=reason, history=(*self.history, (at, state)))


class Journal:
    """Actions that were granted, step by step, one JSON line a step, each forced to disk before it counts.

    With `path=None` it is kept in memory only: for simulated time, where no crash of the controller outlives the plant.
    An existing file is read first and continued. Of actions that are concluded the newest KEPT are kept. Raises
    EnvironmentProblem where it cannot be written: what could not be is kept, and written before the next line. Raises
    InputError, naming the line, where an existing one is damaged other than by a torn last line.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._entries: dict[int, Entry] = {}
        self._unwritten: list[dict[str, Any]] = []
        self._lines: Lines | None = None
        if path is not None:
            self._lines = Lines(path, "the journal")
            self._take_over(self._lines)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Actions in their current state, in the order of grants: those under way, and the newest KEPT."""
        return tuple(self._entries.values())

    @property
    def unconcluded(self) -> tuple[Entry, ...]:
        """Actions granted whose result is unknown."""
        return tuple(entry for entry in self._entries.values() if TRANSITIONS[entry.state])

    def entry(self, number: int) -> Entry:
        """An action in its current state, by its number."""
        return self._entries[number]

    def grant(self, action: Action, by: str, at: float) -> Entry:
        """Note that `action` may be tried. Nothing is written yet: a crash before it is tried changes nothing."""
        entry = Entry(next(reversed(self._entries), 0) + 1, action, by, history=((at, ActionState.PLANNED),))
        entry = entry.to(ActionState.GRANTED, at)
        self._entries[entry.number] = entry
        if len(self._entries) >= 2 * KEPT:
            self._forget()
        return entry

    def step(self, entry: Entry, state: ActionState, at: float, reason: str = "") -> Entry:
        """Take `entry` to `state` and force that to disk; returns the entry as it is now."""
        moved = entry.to(state, at, reason)
        self._entries[moved.number] = moved
        if state is not ActionState.GRANTED:
            self._write(moved, at)
        return moved

    def drop_unconcluded(self, why: str) -> None:
        """Drop what an earlier controller has left: it is not this one's to conclude."""
        for entry in self.unconcluded:
            self.step(entry, ActionState.DROPPED, entry.history[-1][0], why)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._lines is not None:
            self._lines.close()

    def _forget(self) -> None:
        """Forget the oldest concluded actions; their file is written anew once most of it is about forgotten ones."""
        left = len(self._entries) - KEPT
        for number in [each.number for each in self._entries.values() if not TRANSITIONS[each.state]][:left]:
            del self._entries[number]
        if self._lines is not None and not self._unwritten and self._lines.count > LONGEST:
            known = [each for each in self._entries.values() if each.state is not ActionState.GRANTED]
            with contextlib.suppress(JournalProblem):  # a full disk: the file stays as it is, and long
                self._lines.replace(_line(each, each.history[-1][0]) for each in known)

    def _write(self, entry: Entry, at: float) -> None:
        if self._lines is not None:
            self._unwritten.append(_line(entry, at))
            self.flush()

    def flush(self) -> None:
        """Write what could not be written so far."""
        while self._lines is not None and self._unwritten:
            self._lines.append(self._unwritten[0])
            del self._unwritten[0]

    def _take_over(self, lines: Lines) -> None:
        """Take over the entries of an earlier controller."""
        for number, fields in enumerate(lines.read(), start=1):
            try:
                at, state = float(fields.pop("time")), ActionState(fields.pop("state"))
                key, by, reason = int(fields.pop("number")), str(fields.pop("by")), str(fields.pop("reason"))
                known = self._entries.get(key) or Entry(key, from_json(fields), by)
                self._entries[key] = replace(known, state=state, reason=reason, history=(*known.history, (at, state)))
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(f"{lines.path}, line {number}: not an entry of a journal ({error})") from error
        if len(self._entries) >= 2 * KEPT:
            self._forget()
        for entry in self.unconcluded:
            if entry.state is not ActionState.INTERRUPTED:
                at = entry.history[-1][0]
                self._entries[entry.number] = entry.to(
                    ActionState.INTERRUPTED, at, "the controller ended before its outcome"
                )


class Journaling:
    """Writes `journal` for the loop. A disk without room freezes the plan, and nothing else.

    An action is tried only once the journal on disk says so. What has happened is noted in any case, and written when there
    is room again. An alarm stands meanwhile. clock: seconds of the run. left_over: what an earlier controller did not
    conclude, by action; taken out as it is tried again.
    """

    def __init__(self, journal: Journal, alarms: Alarms, clock: Callable[[], float]) -> None:
        self._journal, self._alarms, self._clock = journal, alarms, clock
        self.left_over: dict[Action, Entry] = {entry.action: entry for entry in journal.unconcluded}

    def begin(self, proposals: Sequence[Proposal]) -> list[Entry]:
        """Entries of actions that are about to be tried, on disk; none where they cannot be, and may not be tried."""
        if not self.flush():
            return []
        entries = [self._granted(proposal) for proposal in proposals]
        written = [self._write(entry, ActionState.TRIED, "") for entry in entries]
        if all(written):
            return [self._journal.entry(entry.number) for entry in entries]
        for entry in entries:
            self.note(self._journal.entry(entry.number), ActionState.FAILED, UNWRITTEN)
        return []

    def note(self, entry: Entry, state: ActionState, reason: str = "") -> Entry:
        """Take an entry to `state`, which has come about; returns it as it is now."""
        self._write(entry, state, reason)
        return self._journal.entry(entry.number)

    def drop_left_over(self, why: Callable[[Action], str]) -> None:
        """Drop what is left over and was not tried again."""
        for action, entry in self.left_over.items():
            self.note(entry, ActionState.DROPPED, why(action))
        self.left_over.clear()

    def flush(self) -> bool:
        """Write what could not be written so far; whether that is all."""
        return self._written(self._journal.flush)

    def close(self) -> None:
        """Close the journal."""
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
            self._alarms.sound(SOURCE, f"{error}: no action is tried until it can be", error)
            return False
        self._alarms.clear(SOURCE)
        return True


def _line(entry: Entry, at: float) -> dict[str, Any]:
    line = {"number": entry.number, "time": at, "state": entry.state.value, "by": entry.by, "reason": entry.reason}
    return {**line, **to_json(entry.action)}

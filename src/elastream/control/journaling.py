"""The journal as the control loop writes it: a disk without room freezes the plan, and nothing else.

An action is tried only once that it will be is on disk; what has happened is noted in any case, and written when there is
room again. An alarm stands meanwhile.
"""

from collections.abc import Callable, Sequence

from elastream.control.journal import ActionState, Entry, Journal
from elastream.core.action import Action
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.errors import EnvironmentProblem

UNWRITTEN = "the journal cannot be written"
SOURCE = "journal"


class Journaling:
    """Writes `journal`; what cannot be written sounds in `alarms`. clock: seconds of the run.

    left_over: what an earlier controller did not conclude, by action; taken out as it is tried again.
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

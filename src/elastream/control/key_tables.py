"""Requests the newest key tables: what programs and commands append to a run takes effect by the loop, as guards do.

A table names alternates, and guards say which of them may run: one that names another is not taken, and one in force goes.
"""

from collections.abc import Iterator, Sequence

from elastream.control.extension import LoopExtension
from elastream.core.action import Action, SetKeyTable
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.guarding import Standing
from elastream.core.observation import Observation
from elastream.dataflow.key_table import KeyTables
from elastream.errors import ElastreamError

BY = "key tables"
"""Who proposes, in the record of decisions, and the source of alarms."""


class KeyTabling(LoopExtension):
    """Proposes, round by round, what brings the newest tables of a run into force."""

    def __init__(self, tables: KeyTables) -> None:
        self._tables = tables
        self._named: dict[tuple[str, int], frozenset[str]] = {}

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> tuple[Proposal, ...]:
        """A switch to the newest version of each operator whose wanted composition has another.

        One that names an alternate which guards do not allow is refused, until they do; where one in force comes to name
        such, it goes: all keys then run the alternate of the whole operator, until guards allow the newest again. Where the
        tables cannot be read, an alarm sounds, and those in use stay.
        """
        try:
            found = tuple(
                proposal
                for operator, version in self._tables.newest().items()
                for proposal in self._of(operator, version, observation)
            )
        except ElastreamError as error:
            alarms.sound(BY, f"no new key table is found: {error}", error)
            return ()
        alarms.clear(BY)
        return found

    def _of(self, operator: str, newest: int, observation: Observation) -> Iterator[Proposal]:
        standing, in_force = observation.standings.get(operator), observation.composition.tables.get(operator, 0)
        refusal = self._refusal(operator, newest, standing)
        if in_force != newest:
            yield Proposal(SetKeyTable(operator, newest, f"version {newest} of its key table was appended"), BY, refusal)
        if refusal and in_force and (gone := self._refusal(operator, in_force, standing)):
            yield Proposal(SetKeyTable(operator, 0, gone), BY)

    def _refusal(self, operator: str, version: int, standing: Standing | None) -> str:
        if standing is None or not standing.allowed:
            return ""  # without guards all may run; where they allow none, arbitration says so
        if (operator, version) not in self._named:
            self._named[operator, version] = frozenset(self._tables.find(operator, version).rows.values())
        outside = sorted(self._named[operator, version] - set(standing.allowed))
        return f"its guards do not allow {', '.join(outside)}, which the table names" if outside else ""

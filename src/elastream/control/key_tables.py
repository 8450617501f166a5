"""Requests the newest key tables: what programs and commands append to a run takes effect by the loop, as guards do."""

from elastream.model.action import SetKeyTable
from elastream.model.alarms import Alarms
from elastream.model.decision import Proposal
from elastream.model.errors import ElastreamError
from elastream.model.guarding import Standing
from elastream.model.key_table import KeyTables
from elastream.model.observation import Observation

__all__ = ["BY", "KeyTabling"]

BY = "key tables"
"""Who proposes, in the record of decisions, and the source of alarms."""


class KeyTabling:
    """Proposes, round by round, what brings the newest tables of a run into force."""

    def __init__(self, tables: KeyTables) -> None:
        self._tables = tables
        self._named: dict[tuple[str, int], frozenset[str]] = {}

    def proposals(self, observation: Observation, alarms: Alarms) -> tuple[Proposal, ...]:
        """A switch to the newest version of each operator whose wanted composition has another.

        One that names an alternate which guards do not allow is refused, until they do. Where the tables cannot be read, an
        alarm sounds, and those in use stay.
        """
        wanted = observation.composition.tables
        try:
            found = tuple(
                Proposal(
                    SetKeyTable(operator, version, f"version {version} of its key table was appended"),
                    BY,
                    self._refusal(operator, version, observation.standings.get(operator)),
                )
                for operator, version in self._tables.newest().items()
                if wanted.get(operator, 0) != version
            )
        except ElastreamError as error:
            alarms.sound(BY, f"no new key table is found: {error}", error)
            return ()
        alarms.clear(BY)
        return found

    def _refusal(self, operator: str, version: int, standing: Standing | None) -> str:
        if standing is None or not standing.allowed:
            return ""  # without guards all may run; where they allow none, arbitration says so
        if (operator, version) not in self._named:
            self._named[operator, version] = frozenset(self._tables.find(operator, version).rows.values())
        outside = sorted(self._named[operator, version] - set(standing.allowed))
        return f"its guards do not allow {', '.join(outside)}, which the table names" if outside else ""

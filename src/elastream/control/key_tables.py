"""Requests the newest key tables: what programs and commands append to a run takes effect by the loop, as guards do."""

from elastream.model.action import SetKeyTable
from elastream.model.alarms import Alarms
from elastream.model.decision import Proposal
from elastream.model.errors import ElastreamError
from elastream.model.key_table import KeyTables
from elastream.model.observation import Observation

__all__ = ["BY", "KeyTabling"]

BY = "key tables"
"""Who proposes, in the record of decisions, and the source of alarms."""


class KeyTabling:
    """Proposes, round by round, what brings the newest tables of a run into force."""

    def __init__(self, tables: KeyTables) -> None:
        self._tables = tables

    def proposals(self, observation: Observation, alarms: Alarms) -> tuple[Proposal, ...]:
        """A switch to the newest version of each operator whose wanted composition has another.

        Where the tables cannot be read, an alarm sounds, and those in use stay.
        """
        try:
            newest = self._tables.newest()
        except ElastreamError as error:
            alarms.sound(BY, f"no new key table is found: {error}", error)
            return ()
        alarms.clear(BY)
        wanted = observation.composition.tables
        return tuple(
            Proposal(SetKeyTable(operator, version, f"version {version} of its key table was appended"), BY)
            for operator, version in newest.items()
            if wanted.get(operator, 0) != version
        )

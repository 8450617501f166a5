"""Requests the newest key tables: what programs and commands append to a run takes effect by the loop, as guards do."""

from collections.abc import Mapping

from elastream.model.action import SetKeyTable
from elastream.model.decision import Proposal
from elastream.model.observation import Observation

__all__ = ["BY", "proposals"]

BY = "key tables"
"""Who proposes, in the record of decisions."""


def proposals(newest: Mapping[str, int], observation: Observation) -> tuple[Proposal, ...]:
    """Switches to the newest version of each operator whose wanted composition has another. newest: by operator."""
    wanted = observation.composition.tables
    return tuple(
        Proposal(SetKeyTable(operator, version, f"version {version} of its key table was appended"), BY)
        for operator, version in newest.items()
        if wanted.get(operator, 0) != version
    )

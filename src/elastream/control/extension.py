"""Seam for features in every round of the loop, such as guards and key tables."""

from collections.abc import Sequence

from elastream.core.action import Action
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.observation import Observation


class LoopExtension:
    """Feature in every round; does nothing by default.

    A round calls `observed`, `urgent`, and `proposals` if it plans. Faults sound in `alarms` and are never raised.
    """

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        """Return the observation for policy and observers."""
        return observation

    def urgent(self, observation: Observation) -> bool:
        """Return True if planning cannot wait until due."""
        return False

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        """Return actions to try besides the `planned` ones."""
        return ()

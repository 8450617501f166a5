"""The seam for features that take part in every round of the loop, such as guards and key tables."""

from collections.abc import Sequence

from elastream.core.action import Action
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.observation import Observation


class LoopExtension:
    """Feature that takes part in the rounds of a run. The defaults do nothing.

    A round calls `observed`, then `urgent`, and `proposals` if it plans. `urgent` may make it plan before it is due. An
    extension sounds its faults in `alarms` and raises nothing.
    """

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        """Return the observation for the policy and the observers."""
        return observation

    def urgent(self, observation: Observation) -> bool:
        """Return True if a planning round cannot wait until it is due."""
        return False

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        """Return actions to try besides those that the policy has `planned`."""
        return ()

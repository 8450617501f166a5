"""The seam for features that take part in every round of the loop, such as guards and key tables."""

from collections.abc import Sequence

from elastream.core.action import Action
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.observation import Observation


class LoopExtension:
    """A feature that takes part in the rounds of a run. A subclass overrides what it needs; the defaults do nothing.

    A round calls `observed`, then `urgent`, then `proposals` if it plans. `urgent` may make it plan before it is due. An
    extension sounds its faults in `alarms` and raises nothing.
    """

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        """Return what the policy and the observers see of `observation`."""
        return observation

    def urgent(self, observation: Observation) -> bool:
        """Return True if a planning round cannot wait until it is due."""
        return False

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        """Return actions to try beside those that the policy has `planned`."""
        return ()

"""Actions that lead from the plan in force to a wanted one."""

from elastream.model.action import Action
from elastream.model.observation import Observation
from elastream.planning.scheduling.problem import Deployment, Problem

__all__ = ["enacted"]


def enacted(
    observation: Observation, problem: Problem, wanted: Deployment, *, pace: float, why: str = ""
) -> tuple[Action, ...]:
    """Actions that make the observed plan into `wanted`; none where it is already, or is on its way.

    Hosts of `wanted` with a name are those leased; one without is leased now, whatever its `since`: leave out what is not due
    yet. A leased host that is not wanted goes when what is paid of it ends before the next round, `pace` seconds later (4.8.2);
    until then it stays, empty. why: what is said of each action.
    """
    raise NotImplementedError

"""Hosts by need, tasks by load: what Autopilot does for queries that it did not write.

Nothing of such a query can be switched or widened. What is left is where its state partitions lie, and how many hosts there
are to lie on.
"""

from dataclasses import dataclass, field

from elastream.model.action import Action, DrainHost, MoveTask
from elastream.model.observation import Observation
from elastream.model.plant import Plan
from elastream.planning.algorithms.placement import balance_by_load
from elastream.planning.policies.threshold import Threshold

__all__ = ["ByLoad"]


@dataclass(frozen=True)
class ByLoad:
    """Hosts as `Threshold` has them, where the plant can lease any; tasks where `balance_by_load` puts them.

    hosts: how many hosts the load needs, judged over longer times than where every second is watched. gain: fraction of an
    operator's highest load a core that moves must take off it for any to be made. worth: cores that they must free on the
    fullest host, so that what is idle stays where it is: a move costs its batch some tens of milliseconds, once.
    """

    hosts: Threshold = field(default_factory=lambda: Threshold(window=30.0, settle=60.0, cool_down=60.0))
    gain: float = 0.03
    worth: float = 0.02

    @property
    def name(self) -> str:
        return "by load"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Hosts, then moves; no moves in a round that drains a host, which moves what it holds."""
        if not observation.context.host_types:
            return Plan(tuple(self._moves(observation)))
        hosts, _ = self.hosts.scale(observation)
        drains = any(isinstance(action, DrainHost) for action in hosts)
        actions: list[Action] = hosts if drains else [*hosts, *self._moves(observation)]
        return Plan(tuple(actions), predicted=self.hosts.predict(observation, actions))

    def _moves(self, observation: Observation) -> list[MoveTask]:
        return balance_by_load(observation, gain=self.gain, worth=self.worth)

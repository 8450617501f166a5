"""Autopilot's policy for foreign queries: leases hosts by need and places tasks by load.

Such a query's operators cannot be switched or scaled; the policy controls the placement of state partitions and the number
of hosts.
"""

from dataclasses import dataclass
from typing import ClassVar

from elastream.core.action import Action, DrainHost, MoveTask
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.policies.common.placement import balance_by_load
from elastream.policies.threshold import Threshold

HOSTS = Threshold(window=30.0, settle=60.0, cool_down=60.0)


@dataclass(frozen=True)
class ByLoad(Policy):
    """Hosts by `Threshold`, if the plant can lease any; tasks by `balance_by_load`.

    hosts: the policy for hosts, with longer windows than for runs with fine-grained metrics. gain: least fraction by which
    moves must lower an operator's highest load per core. worth: least number of cores that they must free on the fullest
    host, so that idle tasks are not moved: a move delays its batch once, by some tens of milliseconds.
    """

    hosts: Threshold = HOSTS
    gain: float = 0.03
    worth: float = 0.02
    name: ClassVar = "by load"

    @property
    def default_window(self) -> bool:
        """Whether nobody said for how long hosts that are not needed are kept."""
        return self.hosts.default_window or self.hosts.settle == HOSTS.settle

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Host actions, then moves; no moves in a round that drains a host, because the drain moves tasks itself."""
        if not observation.context.host_types:
            return Plan(tuple(self._moves(observation)))
        scaled = self.hosts.scale(observation, memory)
        actions: list[Action] = list(scaled.hosts)
        if not any(isinstance(action, DrainHost) for action in actions):
            actions += self._moves(observation)
        return Plan(tuple(actions), scaled.seen, scaled.predicted, scaled.remarks, (), scaled.unknown, scaled.recommended)

    def _moves(self, observation: Observation) -> list[MoveTask]:
        return balance_by_load(observation, gain=self.gain, worth=self.worth)

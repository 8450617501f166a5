"""Autopilot's policy for foreign queries, whose operators cannot be switched or scaled."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from elastream.core.action import CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.policies.common.placement import balance_by_load


def _horizon() -> Policy:
    # Imported late: an Autopilot that only moves tasks needs few of the modules that this import loads.
    from elastream.policies.horizon.policy import Horizon

    return Horizon()


@dataclass(frozen=True)
class ByLoad(Policy):
    """Policy that moves tasks by `balance_by_load`, and lets another policy scale hosts if the plant can lease any.

    Args:
        hosts: Policy for hosts; default `Horizon`.
        gain: Least part by which moves must lower an operator's highest load per core.
        worth: Least cores that moves must free on the fullest host.
    """

    hosts: Policy = field(default_factory=_horizon)
    gain: float = 0.03
    worth: float = 0.02
    name: ClassVar = "by load"

    @property
    def default_window(self) -> bool:
        return self.hosts.default_window

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Plan host actions, then moves of tasks. A drain moves tasks itself, so no moves are planned beside it."""
        if not observation.context.host_types:
            return Plan(tuple(self._moves(observation)))
        sizing = self.hosts.plan(observation, memory)
        changes = [each for each in sizing.actions if isinstance(each, LeaseHost | DrainHost | CancelDrain | ReleaseHost)]
        drains = any(isinstance(action, DrainHost) for action in changes)
        return replace(sizing, actions=(*changes, *(() if drains else self._moves(observation))))

    def _moves(self, observation: Observation) -> list[MoveTask]:
        return balance_by_load(observation, gain=self.gain, worth=self.worth)

"""A cluster of fixed size: the baseline for elasticity."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from elastream.model.action import Action, LeaseHost, SetParallelism
from elastream.model.observation import Observation
from elastream.model.plant import Plan
from elastream.planning.algorithms.placement import balance

__all__ = ["Static", "missing_hosts"]


@dataclass(frozen=True)
class Static:
    """A fixed number of hosts, leased at the start and replaced when lost, and a fixed parallelism.

    host_type: type to lease; None: the provider's first. parallelism: instances by operator; others are not changed. Tasks
    are spread over the hosts when these are up, and then stay.
    """

    hosts: int
    parallelism: Mapping[str, int] = field(default_factory=dict)
    host_type: str | None = None
    name: ClassVar = "static"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Lease missing hosts, set differing parallelism, and spread tasks once no host is starting."""
        actions = missing_hosts(observation, self.hosts, self.host_type)
        actions += [
            SetParallelism(operator, instances, why="fixed")
            for operator, instances in self.parallelism.items()
            if observation.composition.parallelism.get(operator) != instances
        ]
        return Plan(tuple(actions if observation.coming else [*actions, *balance(observation)]))


def missing_hosts(observation: Observation, hosts: int, host_type: str | None = None) -> list[Action]:
    """Leases for the hosts missing of `hosts`; host_type: None: the provider's first type."""
    kind = host_type or next(iter(observation.context.host_types))
    missing = hosts - len(observation.usable) - len(observation.coming)
    return [LeaseHost(observation.host_name(n), kind, why=f"{hosts} hosts at all times") for n in range(missing)]

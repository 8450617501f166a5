"""The cluster sized once and for all: what elasticity is compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastream.model.action import Action, LeaseHost, SetParallelism
from elastream.model.observation import Observation
from elastream.model.plant import Plan
from elastream.planning.algorithms.placement import balance

__all__ = ["Static", "missing_hosts"]


@dataclass(frozen=True)
class Static:
    """`hosts` hosts at all times, leased at the start and replaced when lost, and a fixed parallelism.

    host_type: which; the first of the provider where it is not given. parallelism: instances by operator; operators that
    are not named are left alone. Tasks are spread over the hosts as these come up, and then stay where they are.
    """

    hosts: int
    parallelism: Mapping[str, int] = field(default_factory=dict)
    host_type: str | None = None

    @property
    def name(self) -> str:
        return "static"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Lease what is missing, set what differs, and spread tasks once no host is coming."""
        actions = missing_hosts(observation, self.hosts, self.host_type)
        actions += [
            SetParallelism(operator, instances, why="fixed")
            for operator, instances in self.parallelism.items()
            if observation.composition.parallelism.get(operator) != instances
        ]
        return Plan(tuple(actions if observation.coming else [*actions, *balance(observation)]))


def missing_hosts(observation: Observation, hosts: int, host_type: str | None = None) -> list[Action]:
    """Leases of what is missing of `hosts` hosts; of the provider's first type where none is given."""
    kind = host_type or next(iter(observation.context.host_types))
    missing = hosts - len(observation.usable) - len(observation.coming)
    return [LeaseHost(observation.host_name(n), kind, why=f"{hosts} hosts at all times") for n in range(missing)]

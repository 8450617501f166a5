"""A policy with the memory of one run, as the loop keeps it: for tests that ask a policy round by round."""

from collections.abc import Iterable, Iterator
from typing import Any

from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.simulator import SimulatedPlant


class OneRun:
    """Gives `policy` back what it remembered."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.memory: Any = None

    def plan(self, observation: Observation) -> Plan:
        plan = self.policy.plan(observation, self.memory)
        self.memory = plan.memory
        return plan


def driven(plant: SimulatedPlant, policy: Policy, times: Iterable[float]) -> Iterator[tuple[Observation, Plan]]:
    """Yield the observation and the plan of each round at `times`, then carry the plan out."""
    run = OneRun(policy)
    for time in times:
        plant.advance(float(time))
        observation = plant.observe()
        plan = run.plan(observation)
        yield observation, plan
        for action in plan.actions:
            assert plant.apply(action).succeeded, action

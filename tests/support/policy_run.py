"""A policy with the memory of one run, as the loop keeps it: for tests that ask a policy round by round."""

from typing import Any

from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy


class OneRun:
    """Gives `policy` back what it remembered."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.memory: Any = None

    def plan(self, observation: Observation) -> Plan:
        plan = self.policy.plan(observation, self.memory)
        self.memory = plan.memory
        return plan

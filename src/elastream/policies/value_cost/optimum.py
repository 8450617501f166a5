"""What the searches that can prove something return: a plan, and how much better another could be.

`exhaustive` and `proven` decide the same question in two ways.
"""

import math
from dataclasses import dataclass

from elastream.policies.value_cost.problem import Deployment, Score


@dataclass(frozen=True)
class Optimum:
    """The best plan found. deployment, score: None where there is none. bound: no plan that reaches the throughput has a
    higher profit; -inf: none reaches it; inf: nothing is known of others. optimal: whether the bound proves the plan to be
    the best, or that there is none. seconds: it took. looked_at: partial plans that were looked at one by one."""

    deployment: Deployment | None
    score: Score | None
    bound: float
    optimal: bool
    seconds: float
    looked_at: int = 0

    @property
    def profit(self) -> float:
        """Profit of the plan; -inf without one."""
        return -math.inf if self.score is None else self.score.profit

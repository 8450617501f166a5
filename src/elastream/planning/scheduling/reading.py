"""Reads the problem, the plan in force and its conditions from an observation; what is not known is named, never guessed."""

from dataclasses import dataclass

from elastream.model.decision import Unknown
from elastream.model.observation import Observation
from elastream.planning.algorithms.choosing import Costs
from elastream.planning.scheduling.problem import Conditions, Deployment, Goal, Problem

__all__ = ["Read", "read"]


@dataclass(frozen=True)
class Read:
    """What an observation says. unknown: metrics without which nothing can be planned; then the plan in force stays.

    costs: what alternates have cost so far, to be kept in the policy's memory and given to `read` in its next round.
    """

    problem: Problem
    deployment: Deployment
    conditions: Conditions
    unknown: tuple[Unknown, ...]
    costs: Costs


def read(observation: Observation, goal: Goal, seconds: float, costs: Costs | None = None, began: float = 0.0) -> Read:
    """The problem of an observation, the plan in force, and the conditions of one instant of `seconds` that lasts.

    costs: those of an earlier round. began: when the period of the goal began.
    """
    raise NotImplementedError

"""A planning round of the policy `threshold`: the rate expected when hosts asked for now work, and what is kept for it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from elastream.model.action import Action, CancelDrain, DrainHost, ReleaseHost
from elastream.model.cloud import HostType
from elastream.model.decision import Unknown
from elastream.model.observation import Observation
from elastream.model.units import format_duration, format_rate
from elastream.planning.algorithms.line import CERTAIN
from elastream.planning.algorithms.load import WITHIN, LoadFigures
from elastream.planning.algorithms.measures import capacity, tasks_on
from elastream.planning.algorithms.seen import Seen

__all__ = ["Scaled", "SizingRound", "SizingSettings"]

SETTLE = 1.0
"""Starts of a host for which the need must have been low before hosts go: keeping an idle host for so long costs as much as
starting it anew, the break-even of what may be needed again at any time. HPA's window of 300 s has the same purpose."""
LEAST_SETTLE = 10.0
"""Seconds that it is at least: several batches, of which single ones are slow or quick by chance."""
PACE = 2.0
"""Seconds from one round to the next, until two rounds were seen."""
REMEMBERED = 120.0
"""Seconds of samples that are kept at least."""


class SizingSettings(Protocol):
    """The settings of `Threshold` by which a round goes."""

    @property
    def scale_out(self) -> float: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def spare(self) -> int: ...
    @property
    def settle(self) -> float | None: ...
    @property
    def cool_down(self) -> float: ...
    @property
    def window(self) -> float: ...
    @property
    def host_type(self) -> str | None: ...
    @property
    def max_parallelism(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Scaled:
    """What `Threshold.scale` answers; apart, all actions are in `hosts`, in the order in which they must be done.

    recommended: hosts that are needed now (`Plan.hosts`), NaN where that is unknown.
    """

    hosts: Sequence[Action]
    parallelism: Sequence[Action]
    seen: Seen
    predicted: Mapping[str, float]
    unknown: tuple[Unknown, ...]
    remarks: tuple[str, ...] = ()
    recommended: float = math.nan


class SizingRound:
    """One planning round: the rate that hosts are sized for, and what both ways of sizing share."""

    def __init__(self, policy: SizingSettings, observation: Observation, before: Seen | None) -> None:
        self.policy, self.observation, self.before = policy, observation, before
        self.kind = self._kind()
        self.pace = PACE if before is None else max(observation.time - float(before.times[-1]), 0.0)
        self.horizon = self.kind.start + self.pace
        rules = observation.context.scaling  # the user's, in place of the policy's own
        self.settle = max(LEAST_SETTLE, SETTLE * self.kind.start) if policy.settle is None else policy.settle
        if rules.stabilization_down is not None:
            self.settle = 0.0  # arbitration has the window, over what is recommended
        keep = max(3 * self.horizon, 2 * (observation.context.target_latency or 0.0), self.settle, REMEMBERED)
        self.seen = Seen.after(before, observation, keep, policy.cool_down)
        self.load = LoadFigures(observation, self.seen, policy.window, self.pace)
        self.forecast = self.load.expected(self.horizon)
        if not math.isnan(self.forecast.level):
            self.seen = self.seen.surprised(observation.time, self.forecast, self.horizon, self.pace)
        self.most = policy.scale_out * (1 + (policy.tolerance if rules.tolerance is None else 0.0))
        self.catch_up = rules.catch_up

    @cached_property
    def rate(self) -> float:
        """Records/s that the hosts are sized for."""
        return max(self.forecast.level, self.forecast.expected)

    @cached_property
    def upper(self) -> float:
        """Records/s that the hosts must still be able to process when full."""
        again = self.seen.surprises.upper(self.rate, self.horizon, self.pace)
        # What of a jump waits until hosts asked for then work is in time, if it is no more than this allows.
        allowed = WITHIN * (self.observation.context.target_latency or 0.0)
        return max(self.rate + CERTAIN * self.forecast.error, again * self.horizon / max(self.horizon + allowed, 1e-9))

    @cached_property
    def later(self) -> float:
        """Records/s that hosts are kept for: a host that goes must not be missed before it could have settled."""
        return max(self.rate, self.forecast.level + self.forecast.slope * (self.horizon + self.settle))

    @property
    def _said(self) -> str:
        """The rate, for people."""
        ahead = f" expected in {format_duration(round(self.horizon))}" if self.rate > self.forecast.level else ""
        return f"{format_rate(self.rate)}{ahead}"

    def _emptied(self, actions: Sequence[Action] = ()) -> list[Action]:
        """Releases of draining hosts without tasks, but of those that `actions` keep."""
        return [
            ReleaseHost(host, why="it holds no more tasks")
            for host in self.observation.draining
            if not tasks_on(self.observation, host) and CancelDrain(host) not in actions
        ]

    def _predicted(self, actions: Sequence[Action], base: float) -> Mapping[str, float]:
        """Usable hosts after `actions`, and busy cores if the load goes on: no more than the usable hosts have."""
        observation = self.observation
        gone = {action.host for action in actions if isinstance(action, DrainHost | ReleaseHost)}
        drained = len(gone & set(observation.usable))
        kept = sum(isinstance(action, CancelDrain) for action in actions)
        cores = capacity(observation, observation.usable)
        busy = math.nan if math.isnan(base) else cores if self.load.late else min(base, cores)
        return {"hosts_usable": float(len(observation.usable) - drained + kept), "busy_cores": busy}

    def _kind(self) -> HostType:
        types = self.observation.context.host_types
        if self.policy.host_type is not None:
            return types[self.policy.host_type]
        return min(types.values(), key=lambda t: (t.price / t.billing.unit / (t.cores * t.speed), t.cores))

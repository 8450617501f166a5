"""Events of a run by fixed reasons, as Kubernetes and Flink's autoscaler have them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Why there is an event. Their names are fixed: alerts and searches rest on them."""

    SCALED_UP = "ScaledUp"
    """Hosts were leased, or a drain was cancelled."""
    SCALED_DOWN = "ScaledDown"
    """Hosts are given back."""
    SCALING_LIMITED = "ScalingLimited"
    """One of the user's rules refused hosts to come or to go; the message begins with the rule's name."""
    SCALING_VETOED = "ScalingVetoed"
    """Hosts should have come or gone, and something else refused it: the plant, a batch that hangs, an earlier failure."""
    INEFFECTIVE_SCALING = "IneffectiveScaling"
    """Hosts that came brought less than half of what they promised."""
    METRICS_MISSING = "MetricsMissing"
    """The policy has lacked a metric for rounds, and leaves something undone for it."""
    HOST_LOST = "HostLost"
    """A host failed, or was requested and never came."""
    HOST_REFUSED = "HostRefused"
    """The provider refuses a request for now."""
    SWITCHED = "Switched"
    """Alternates, branches or key tables changed."""
    ALARM_RAISED = "AlarmRaised"
    """A fault stands that a person must see."""
    ALARM_CLEARED = "AlarmCleared"
    """It stands no longer."""
    FAULT = "Fault"
    """Something raised, and the run goes on."""
    PAUSED = "Paused"
    """The controller was paused: it plans, and applies nothing."""
    UNPAUSED = "Unpaused"
    """It applies again what it plans."""
    RUN_STARTED = "RunStarted"
    """A run, or Autopilot, began."""
    RUN_ENDED = "RunEnded"
    """It ended."""


WARNINGS = frozenset(
    {
        Reason.SCALING_VETOED,
        Reason.INEFFECTIVE_SCALING,
        Reason.METRICS_MISSING,
        Reason.HOST_LOST,
        Reason.HOST_REFUSED,
        Reason.ALARM_RAISED,
        Reason.FAULT,
    }
)
WARNING_RULES = frozenset({"max_hosts", "budget"})
"""Rules whose refusals are warnings: what they keep away is needed. Those of other rules are what the rules are for."""


def types_of(reason: Reason) -> tuple[str, ...]:
    """The types that events of `reason` may have, the usual one first."""
    usual = "Warning" if reason in WARNINGS else "Normal"
    return (usual, "Warning") if reason is Reason.SCALING_LIMITED else (usual,)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened at `time`, seconds of the run.

    about: a host, a rule or a source; may be empty. count: how often it happened since `since`, also
    unsent.
    """

    time: float
    reason: Reason
    message: str
    about: str = ""
    count: int = 1
    since: float = 0.0

    @property
    def type(self) -> str:
        """`"Normal"` or `"Warning"`, as in Kubernetes."""
        limited = self.reason is Reason.SCALING_LIMITED and self.about in WARNING_RULES
        return "Warning" if limited else types_of(self.reason)[0]

    def to_json(self, epoch: float = 0.0) -> Mapping[str, Any]:
        """JSON-ready. epoch: seconds since 1970 at time 0 of the run."""
        return {
            "timestamp": datetime.fromtimestamp(epoch + self.time, UTC).isoformat(timespec="milliseconds"),
            "type": self.type,
            "reason": self.reason.value,
            "message": self.message,
            "about": self.about,
            "count": self.count,
            "seconds": round(self.time, 3),
        }

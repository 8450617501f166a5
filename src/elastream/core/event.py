"""Events of a run by fixed reasons, as in Kubernetes and Flink's autoscaler."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Reason of an event. Names are stable, because alerts and searches rely on them."""

    SCALED_UP = "ScaledUp"
    """Hosts were leased, or a drain was cancelled."""
    SCALED_DOWN = "ScaledDown"
    """Hosts are being released."""
    SCALING_LIMITED = "ScalingLimited"
    """A rule of the user refused hosts to come or go; the message begins with its name."""
    SCALING_VETOED = "ScalingVetoed"
    """Something else refused hosts to come or go: the plant, a hanging batch, an earlier failure."""
    INEFFECTIVE_SCALING = "IneffectiveScaling"
    """New hosts brought less than half of the expected improvement."""
    METRICS_MISSING = "MetricsMissing"
    """The policy has lacked a metric for rounds, and skips a part of its decision."""
    HOST_LOST = "HostLost"
    """A host failed, or was requested and never came."""
    HOST_REFUSED = "HostRefused"
    """The provider refuses a request for now."""
    SWITCHED = "Switched"
    """Alternates, branches or key tables changed."""
    ALARM_RAISED = "AlarmRaised"
    """A fault needs attention."""
    ALARM_CLEARED = "AlarmCleared"
    """The fault is over."""
    FAULT = "Fault"
    """Something raised an exception, and the run goes on."""
    PAUSED = "Paused"
    """The controller was paused: it plans but applies nothing."""
    UNPAUSED = "Unpaused"
    """The controller applies its plans again."""
    RUN_STARTED = "RunStarted"
    """A run, or Autopilot, began."""
    RUN_ENDED = "RunEnded"
    """A run, or Autopilot, ended."""


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
# Refusals by these rules are warnings: the hosts are needed. Refusals by other rules are their purpose.
WARNING_RULES = frozenset({"max_hosts", "budget"})


def types_of(reason: Reason) -> tuple[str, ...]:
    """Return the possible types of events of `reason`, the usual one first."""
    usual = "Warning" if reason in WARNINGS else "Normal"
    return (usual, "Warning") if reason is Reason.SCALING_LIMITED else (usual,)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run.

    Attributes:
        time: Time (seconds of the run).
        about: A host, rule or source; may be empty.
        count: Occurrences since `since`, unsent ones included.
        since: Time of the first occurrence counted (seconds of the run).
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
        """Return the event JSON-ready. `epoch`: seconds since 1970 at time 0 of the run."""
        return {
            "timestamp": datetime.fromtimestamp(epoch + self.time, UTC).isoformat(timespec="milliseconds"),
            "type": self.type,
            "reason": self.reason.value,
            "message": self.message,
            "about": self.about,
            "count": self.count,
            "seconds": round(self.time, 3),
        }

"""Events of a run by fixed reasons, as in Kubernetes and Flink's autoscaler."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Reason of an event. Names are stable."""

    # hosts leased, or a drain cancelled
    SCALED_UP = "ScaledUp"
    # hosts being released
    SCALED_DOWN = "ScaledDown"
    # a user's rule limits the hosts; the message begins with its name
    SCALING_LIMITED = "ScalingLimited"
    # the plant, a hanging batch or an earlier failure prevents scaling
    SCALING_VETOED = "ScalingVetoed"
    # new hosts brought less than half of the expected improvement
    INEFFECTIVE_SCALING = "IneffectiveScaling"
    # a decision was worse than predicted, and is undone
    ROLLED_BACK = "RolledBack"
    # the policy has lacked a metric for rounds, and skips a part of its decision
    METRICS_MISSING = "MetricsMissing"
    # a host failed, or never came
    HOST_LOST = "HostLost"
    # a host is taken away, or its owner wants it back
    HOST_RECALLED = "HostRecalled"
    # the provider refuses a request for now
    HOST_REFUSED = "HostRefused"
    # alternates, branches or key tables changed
    SWITCHED = "Switched"
    ALARM_RAISED = "AlarmRaised"
    ALARM_CLEARED = "AlarmCleared"
    # an exception that the run survived
    FAULT = "Fault"
    # the controller plans but applies nothing
    PAUSED = "Paused"
    UNPAUSED = "Unpaused"
    # start of a run, or of Autopilot
    RUN_STARTED = "RunStarted"
    # end of a run, or of Autopilot
    RUN_ENDED = "RunEnded"


WARNINGS = frozenset(
    {
        Reason.SCALING_VETOED,
        Reason.INEFFECTIVE_SCALING,
        Reason.ROLLED_BACK,
        Reason.METRICS_MISSING,
        Reason.HOST_LOST,
        Reason.HOST_RECALLED,
        Reason.HOST_REFUSED,
        Reason.ALARM_RAISED,
        Reason.FAULT,
    }
)
# Refusals by these rules are warnings: the hosts are needed. Refusals by other rules are their purpose.
WARNING_RULES = frozenset({"max_hosts", "budget", "approve"})


def types_of(reason: Reason) -> tuple[str, ...]:
    usual = "Warning" if reason in WARNINGS else "Normal"
    return (usual, "Warning") if reason is Reason.SCALING_LIMITED else (usual,)


@dataclass(frozen=True, slots=True)
class RunEvent:
    time: float
    reason: Reason
    message: str
    about: str = ""  # host, rule or source; may be empty
    count: int = 1  # occurrences since `since`, unsent ones included
    since: float = 0.0  # first occurrence counted (seconds of the run)

    @property
    def type(self) -> str:
        """Return `"Normal"` or `"Warning"`, as in Kubernetes."""
        limited = self.reason is Reason.SCALING_LIMITED and self.about in WARNING_RULES
        return "Warning" if limited else types_of(self.reason)[0]

    def to_json(self, epoch: float = 0.0) -> Mapping[str, Any]:
        """Return the event JSON-ready. `epoch`: time 0 of the run, in seconds since 1970."""
        return {
            "timestamp": datetime.fromtimestamp(epoch + self.time, UTC).isoformat(timespec="milliseconds"),
            "type": self.type,
            "reason": self.reason.value,
            "message": self.message,
            "about": self.about,
            "count": self.count,
            "seconds": round(self.time, 3),
        }

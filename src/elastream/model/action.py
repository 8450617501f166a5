"""The closed set of things a plan can ask of a plant.

Every action is absolute, not relative ("three instances", not "one more"), so that doing it twice is doing it once: a
restarted controller may replay its journal. `why` is for people and does not take part in equality.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

__all__ = [
    "Action",
    "CancelDrain",
    "DrainHost",
    "LeaseHost",
    "MoveTask",
    "Outcome",
    "ReleaseHost",
    "RenewHost",
    "SetParallelism",
    "Status",
    "SwitchAlternate",
    "SwitchEdge",
    "TaskId",
    "describe",
    "from_json",
    "to_json",
]


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One instance of an operator: on Spark a state partition of its stage, in the simulator an operator instance."""

    operator: str
    index: int

    def __str__(self) -> str:
        return f"{self.operator}#{self.index}"


@dataclass(frozen=True, slots=True)
class SwitchAlternate:
    """Run another implementation of an operator from the next batch on."""

    operator: str
    alternate: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SwitchEdge:
    """Let `target` be the one selected edge of the choice called `choice`."""

    choice: str
    target: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SetParallelism:
    """Run `operator` (or the stage it leads) with `instances` instances.

    `on` names the hosts for instances that are added, in order; where it is short the plant chooses. `without` names
    the instances to remove; where it is short the plant removes those of highest index.
    """

    operator: str
    instances: int
    on: tuple[str, ...] = ()
    without: tuple[TaskId, ...] = ()
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class MoveTask:
    """Let `task` run on `host` from the next batch on; its state goes with it."""

    task: TaskId
    host: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LeaseHost:
    """Lease a host of `type` in `region` under the name `host`; a name already leased is not leased again."""

    host: str
    type: str
    region: str = "local"
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class RenewHost:
    """Keep `host` for another billing time unit. Leases go on by themselves; this records that it was meant."""

    host: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DrainHost:
    """Give `host` nothing new and move what it holds elsewhere."""

    host: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Let a draining `host` take tasks again."""

    host: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ReleaseHost:
    """Give `host` back. Refused while it is the only one that could hold its tasks."""

    host: str
    why: str = field(default="", compare=False)


Action: TypeAlias = (
    SwitchAlternate | SwitchEdge | SetParallelism | MoveTask | LeaseHost | RenewHost | DrainHost | CancelDrain | ReleaseHost
)

KINDS: Mapping[str, type[Action]] = {
    kind.__name__: kind
    for kind in (
        SwitchAlternate, SwitchEdge, SetParallelism, MoveTask, LeaseHost, RenewHost, DrainHost, CancelDrain, ReleaseHost,
    )
}  # fmt: skip


class Status(StrEnum):
    """How an action went."""

    DONE = "done"
    """In force now, or already was."""
    ACCEPTED = "accepted"
    """Under way; a later observation shows its end."""
    REFUSED = "refused"
    """Not tried: it made no sense as things stand."""
    FAILED = "failed"
    """Tried, and it did not work; nothing was left half-done."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an action; `reason` is one sentence where it was not simply done."""

    action: Action
    status: Status
    reason: str = ""

    @property
    def succeeded(self) -> bool:
        """Done or under way."""
        return self.status in (Status.DONE, Status.ACCEPTED)


def describe(action: Action) -> str:
    """The action in a few words for a person: `"lease h3 (small)"`."""
    match action:
        case SwitchAlternate(operator, alternate):
            return f"run {operator} as {alternate}"
        case SwitchEdge(choice, target):
            return f"send {choice} to {target}"
        case SetParallelism(operator, instances):
            return f"{operator} x {instances}"
        case MoveTask(task, host):
            return f"move {task} to {host}"
        case LeaseHost(host, kind):
            return f"lease {host} ({kind})"
        case RenewHost(host):
            return f"renew {host}"
        case DrainHost(host):
            return f"drain {host}"
        case CancelDrain(host):
            return f"keep {host} after all"
        case ReleaseHost(host):
            return f"release {host}"


def to_json(action: Action) -> dict[str, Any]:
    """The action as a JSON-ready dict; `from_json` is its inverse."""
    return {"action": type(action).__name__, **asdict(action)}


def from_json(data: Mapping[str, Any]) -> Action:
    """The action that `to_json` wrote; raises ValueError for a kind outside the closed set."""
    fields = dict(data)
    name = fields.pop("action", None)
    if name not in KINDS:
        raise ValueError(f"{name!r} is not an action")
    if "task" in fields:
        fields["task"] = TaskId(**fields["task"])
    if "without" in fields:
        fields["without"] = tuple(TaskId(**task) for task in fields["without"])
    if "on" in fields:
        fields["on"] = tuple(fields["on"])
    return KINDS[name](**fields)

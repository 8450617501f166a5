"""The closed set of actions that a policy can request from a plant.

Every action is absolute ("three instances", not "one more") and therefore idempotent, so that a restarted controller may
replay its journal. `why` is for readers and is ignored in comparisons.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One instance of an operator: on Spark a state partition of its stage, in the simulator an operator instance."""

    operator: str
    index: int

    def __str__(self) -> str:
        return f"{self.operator}#{self.index}"


@dataclass(frozen=True, slots=True)
class SwitchAlternate:
    """Execute another alternate of an operator from the next batch on."""

    operator: str
    alternate: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SwitchEdge:
    """Select the edge to `target` in the choice named `choice`."""

    choice: str
    target: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SetKeyTable:
    """Choose the alternate of `operator` for each key by version `table` of its key table; 0: one for all keys."""

    operator: str
    table: int
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SetParallelism:
    """Run `operator` (or the stage it leads) with `instances` instances.

    on: hosts for added instances, in order; the plant chooses for the others. without: instances to remove; for the others
    the plant removes those with the highest index.
    """

    operator: str
    instances: int
    on: tuple[str, ...] = ()
    without: tuple[TaskId, ...] = ()
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SetTokens:
    """Have the keys of `operator` belong to hosts as a ring of these `tokens` says: (host, token in [0, 1)) each.

    Hosts that it does not name hold none of its state partitions; the state of what changes hands moves with it, as one
    version of the plan. See `elastream.core.ring`.
    """

    operator: str
    tokens: tuple[tuple[str, float], ...]
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class MoveTask:
    """Run `task` on `host` from the next batch on; its state moves with it."""

    task: TaskId
    host: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LeaseHost:
    """Lease a host of `type` in `region` under the name `host`; no effect if that name is already leased."""

    host: str
    type: str
    region: str = "local"
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class RenewHost:
    """Keep `host` for another billing time unit. Leases continue without it; it records the decision."""

    host: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DrainHost:
    """Place no new tasks on `host`, and move its tasks to other hosts."""

    host: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Return a draining `host` to service."""

    host: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ReleaseHost:
    """End the lease of `host`. Refused while no other host has room for its tasks."""

    host: str
    why: str = field(default="", compare=False)


Switch: TypeAlias = SwitchAlternate | SwitchEdge | SetKeyTable
"""What chooses among the variants of a dataflow; all switches of one plan take effect as one composition."""

Action: TypeAlias = (
    Switch | SetParallelism | SetTokens | MoveTask | LeaseHost | RenewHost | DrainHost | CancelDrain | ReleaseHost
)

KINDS: Mapping[str, type[Action]] = {
    kind.__name__: kind
    for kind in (
        SwitchAlternate, SwitchEdge, SetKeyTable, SetParallelism, SetTokens, MoveTask, LeaseHost, RenewHost, DrainHost,
        CancelDrain, ReleaseHost,
    )
}  # fmt: skip


class Status(StrEnum):
    """Result of applying an action."""

    DONE = "done"
    """In effect now, possibly already before."""
    ACCEPTED = "accepted"
    """In progress; a later observation shows its completion."""
    REFUSED = "refused"
    """Not tried: not possible in the current state."""
    FAILED = "failed"
    """Tried without success; nothing was left half-done."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an action; reason: one sentence unless it was simply done."""

    action: Action
    status: Status
    reason: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether the action is done or in progress."""
        return self.status in (Status.DONE, Status.ACCEPTED)


def describe(action: Action) -> str:
    """The action as short text: `"lease h3 (small)"`."""
    match action:
        case SwitchAlternate(operator, alternate):
            return f"run {operator} as {alternate}"
        case SwitchEdge(choice, target):
            return f"send {choice} to {target}"
        case SetKeyTable(operator, table):
            return f"choose {operator} by key table {table}" if table else f"run {operator} the same for all keys"
        case SetParallelism(operator, instances):
            return f"{operator} x {instances}"
        case SetTokens(operator, tokens):
            return f"ring of {operator}: " + ", ".join(f"{host} {token:.4g}" for host, token in tokens)
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
    """Read an action written by `to_json`. Raises ValueError for an unknown kind."""
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
    if "tokens" in fields:
        fields["tokens"] = tuple((host, token) for host, token in fields["tokens"])
    return KINDS[name](**fields)

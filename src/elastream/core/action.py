"""Closed set of actions, each with its rules.

Actions are absolute ("three instances", not "one more"), so a restarted controller may repeat them. Comparisons ignore
`why`. A new action needs a class here, an entry of `KINDS`, and a handler in each plant.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Any, ClassVar, TypeAlias, TypeVar

from elastream.core.guarding import GuardDecision
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Context, Observation
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import Layout
from elastream.errors import InputError

# A thing that actions change, such as ("host", "h1").
Key: TypeAlias = tuple[Hashable, ...]
A = TypeVar("A", bound="Action")


class Effect(Enum):
    """Kind of change, for people."""

    HOST_ADDED = "host added"
    HOST_REMOVED = "host removed"
    HOST_KEPT = "host kept"
    TASKS_MOVED = "tasks moved"
    DATAFLOW_CHANGED = "dataflow changed"


class Status(StrEnum):
    """Result of applying an action.

    Attributes:
        DONE: In effect now, possibly before as well.
        ACCEPTED: In progress; a later observation shows its completion.
        REFUSED: Not tried: impossible in the current state.
        FAILED: Tried without success; nothing is half-done.
    """

    DONE = "done"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an action.

    Attributes:
        reason: One sentence, unless simply done.
    """

    action: "Action"
    status: Status
    reason: str = ""

    @property
    def succeeded(self) -> bool:
        return self.status in (Status.DONE, Status.ACCEPTED)


class Action(ABC):
    """Action with its rules. Subclasses override rules whose defaults do not fit.

    Attributes:
        follows: Actions on the same subject that may precede this one in a plan.
        relieves: True if it can shorten the wait of late records.
        awaits_hosts: True if hosts of `onto` may still be starting.
    """

    __slots__ = ()
    effect: ClassVar[Effect] = Effect.DATAFLOW_CHANGED
    follows: ClassVar[frozenset[str]] = frozenset()
    relieves: ClassVar[bool] = True
    awaits_hosts: ClassVar[bool] = False

    @property
    @abstractmethod
    def why(self) -> str:
        """Return the reason, for people."""

    @property
    def kind(self) -> str:
        """Return the class name."""
        return type(self).__name__

    @property
    @abstractmethod
    def subject(self) -> Key:
        """Return what the action changes; different actions on one subject contradict each other."""

    @abstractmethod
    def describe(self) -> str:
        """Return the action as text: `"lease h3 (small)"`."""

    @abstractmethod
    def in_force(self, observation: Observation) -> bool:
        """Return True if `observation` shows its effect."""

    @property
    def onto(self) -> tuple[str, ...]:
        """Return the hosts on which it places tasks."""
        return ()

    @property
    def fails_without(self) -> tuple[str, ...]:
        """Return the hosts whose loss makes it fail once accepted."""
        return ()

    @property
    def failure_key(self) -> Hashable:
        return self

    def claims(self) -> Iterable[Key]:
        """Return keys that reserve this action against later ones, besides subject and hosts."""
        return ()

    def contradicts(self) -> Iterable[Key]:
        """Return keys of earlier actions that this one contradicts, besides its subject."""
        return ()

    def unsupported(self, context: Context) -> str:
        """Return why no plant can do it in `context`, or ""."""
        return ""

    def missing(self, observation: Observation) -> str:
        """Return which of its hosts is not leased, or ""."""
        return ""

    def forbidden(self, standings: Mapping[str, GuardDecision]) -> str:
        """Return why guards forbid it, or "". `standings`: decisions by element."""
        return ""

    def already_in_force(self, observation: Observation) -> str:
        """Return why it would change nothing now, or ""."""
        return ""

    def is_waiting(self, observation: Observation) -> bool:
        """Return True if it takes effect later, however late, such as with the next batch."""
        return False

    def start_time(self, context: Context) -> float:
        """Return its expected duration (seconds), 0 if unknown."""
        return 0.0

    def progress(self, observation: Observation, before: Mapping[str, Lease]) -> Outcome | None:
        """Return DONE if an accepted action is in force, FAILED if it cannot be, None if in progress.

        Args:
            before: Leases of the last observation, which distinguish a lost host from one that never came.
        """
        if self.in_force(observation):
            return Outcome(self, Status.DONE)
        for host in self.fails_without:
            if host not in observation.leases:
                return Outcome(self, Status.FAILED, _lost(host, before.get(host)))
        return None


def _lost(host: str, last: Lease | None) -> str:
    if last is None or last.state is not HostState.REQUESTED:
        return f"host {host} was lost" if last is not None else f"host {host} is not leased"
    return f"host {host} was requested and never came up" + (f": {last.note}" if last.note else "")


# -- switches: all of one plan take effect as one composition ----------------------------------------------------------


class Switch(Action):
    """Selection of a dataflow's variants. All switches of a plan form one composition."""

    __slots__ = ()

    @property
    @abstractmethod
    def element(self) -> str:
        """Return the operator or choice, as guards name it."""

    @abstractmethod
    def refusal(self, graph: Graph) -> str:
        """Return why `graph` has nothing to select, or ""."""

    @abstractmethod
    def part_of(self, composition: Composition) -> bool:
        """Return True if `composition` has the switch."""

    @abstractmethod
    def onto_composition(self, composition: Composition) -> Composition:
        """Return `composition` with the switch and an unchanged version."""

    @abstractmethod
    def segments(self, layout: Layout) -> frozenset[str]:
        """Return the queries that run the operator or feed the choice."""

    def unsupported(self, context: Context) -> str:
        return self.refusal(context.graph)

    def already_in_force(self, observation: Observation) -> str:
        return "it is running already" if self.part_of(observation.composition) else ""

    def in_force(self, observation: Observation) -> bool:
        """Return True if the last committed batch of each of its queries ran under the switch.

        Plants that report no effective composition switch at once.
        """
        if not observation.effective:
            return self.part_of(observation.composition)
        layout = observation.context.layout
        if self.refusal(layout.graph):
            return False
        compositions = [observation.effective.get(query) for query in self.segments(layout)]
        return all(each is not None and self.part_of(each) for each in compositions)

    def is_waiting(self, observation: Observation) -> bool:
        """Return True while requested: an idle query has no batch, which is no failure."""
        return self.part_of(observation.composition)

    def progress(self, observation: Observation, before: Mapping[str, Lease]) -> Outcome | None:
        return Outcome(self, Status.DONE) if observation.effective and self.in_force(observation) else None


@dataclass(frozen=True, slots=True)
class SwitchAlternate(Switch):
    """Run another alternate of an operator from the next batch on."""

    operator: str
    alternate: str
    why: str = field(default="", compare=False)

    @property
    def subject(self) -> Key:
        return ("alternate", self.operator)

    @property
    def element(self) -> str:
        return self.operator

    def describe(self) -> str:
        return f"run {self.operator} as {self.alternate}"

    def refusal(self, graph: Graph) -> str:
        if self.operator not in graph.by_name:
            return f"there is no operator {self.operator!r}"
        names = [each.name for each in graph.by_name[self.operator].alternates]
        if self.alternate in names:
            return ""
        return f"operator {self.operator!r} has no alternate {self.alternate!r} (it has: {', '.join(names) or 'none'})"

    def part_of(self, composition: Composition) -> bool:
        return composition.alternates.get(self.operator) == self.alternate

    def onto_composition(self, composition: Composition) -> Composition:
        return replace(composition, alternates={**composition.alternates, self.operator: self.alternate})

    def segments(self, layout: Layout) -> frozenset[str]:
        return frozenset({layout.stage_of[self.operator].segment})

    def forbidden(self, standings: Mapping[str, GuardDecision]) -> str:
        return standings[self.operator].refusal(self.alternate) if self.operator in standings else ""


@dataclass(frozen=True, slots=True)
class SwitchEdge(Switch):
    """Send a choice's records to the branch of `target` from the next batch on."""

    choice: str
    target: str
    why: str = field(default="", compare=False)

    @property
    def subject(self) -> Key:
        return ("choice", self.choice)

    @property
    def element(self) -> str:
        return self.choice

    def describe(self) -> str:
        return f"send {self.choice} to {self.target}"

    def refusal(self, graph: Graph) -> str:
        if self.choice not in graph.choices:
            return f"there is no choice {self.choice!r} (there are: {', '.join(graph.choices) or 'none'})"
        targets = graph.choices[self.choice]
        if self.target in targets:
            return ""
        return f"choice {self.choice!r} has no target {self.target!r} (it has: {', '.join(targets)})"

    def part_of(self, composition: Composition) -> bool:
        return composition.choices.get(self.choice) == self.target

    def onto_composition(self, composition: Composition) -> Composition:
        return replace(composition, choices={**composition.choices, self.choice: self.target})

    def segments(self, layout: Layout) -> frozenset[str]:
        return frozenset(layout.stage_of[edge.source].segment for edge in layout.graph.edges if edge.choice == self.choice)

    def forbidden(self, standings: Mapping[str, GuardDecision]) -> str:
        return standings[self.choice].refusal(self.target) if self.choice in standings else ""

    def already_in_force(self, observation: Observation) -> str:
        return "records go there already" if self.part_of(observation.composition) else ""


@dataclass(frozen=True, slots=True)
class SetKeyTable(Switch):
    """Select an operator's alternate for each key by a key table.

    Attributes:
        table: Version of the table. 0: one alternate for all keys.
    """

    operator: str
    table: int
    why: str = field(default="", compare=False)

    @property
    def subject(self) -> Key:
        return ("key table", self.operator)

    @property
    def element(self) -> str:
        return self.operator

    def describe(self) -> str:
        if not self.table:
            return f"run {self.operator} the same for all keys"
        return f"choose {self.operator} by key table {self.table}"

    def refusal(self, graph: Graph) -> str:
        if self.operator not in graph.by_name:
            return f"there is no operator {self.operator!r}"
        if not graph.by_name[self.operator].selects:
            return f"operator {self.operator!r} does not choose its alternate by key"
        return "" if self.table >= 0 else f"there is no version {self.table} of a key table; 0 is none"

    def part_of(self, composition: Composition) -> bool:
        return composition.tables.get(self.operator, 0) == self.table

    def onto_composition(self, composition: Composition) -> Composition:
        if self.part_of(composition):
            return composition  # no table and version 0 are the same
        return replace(composition, tables={**composition.tables, self.operator: self.table})

    def segments(self, layout: Layout) -> frozenset[str]:
        return frozenset({layout.stage_of[self.operator].segment})

    def forbidden(self, standings: Mapping[str, GuardDecision]) -> str:
        standing = standings.get(self.operator)
        return "" if standing is None or standing.allowed else standing.why


@dataclass(frozen=True, slots=True)
class UpdateCode(Switch):
    """Run a version of the operators' code, with its alternates, from the next batch on (`elastream update`)."""

    version: int
    operators: tuple[str, ...]
    why: str = field(default="", compare=False)

    @property
    def subject(self) -> Key:
        return ("code",)

    @property
    def element(self) -> str:
        return ""  # guards name alternates, not their code

    def describe(self) -> str:
        return f"run version {self.version} of the code of {', '.join(self.operators)}"

    def refusal(self, graph: Graph) -> str:
        missing = [each for each in self.operators if each not in graph.by_name]
        return f"there is no operator {missing[0]!r}" if missing else ""

    def part_of(self, composition: Composition) -> bool:
        return composition.code_version >= self.version

    def onto_composition(self, composition: Composition) -> Composition:
        if self.part_of(composition):
            return composition
        return replace(composition, code={**composition.code, **dict.fromkeys(self.operators, self.version)})

    def segments(self, layout: Layout) -> frozenset[str]:
        return frozenset(layout.stage_of[each].segment for each in self.operators)


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetParallelism(Action):
    """Set the number of instances of an operator, or of the stage that it leads.

    Attributes:
        instances: At least 1.
        on: Hosts for added instances, in order; the plant places the others.
        without: Instances to remove; the plant removes others from the highest index down.
    """

    awaits_hosts: ClassVar[bool] = True

    operator: str
    instances: int
    on: tuple[str, ...] = ()
    without: tuple[TaskId, ...] = ()
    why: str = field(default="", compare=False)

    @property
    def subject(self) -> Key:
        return ("parallelism", self.operator)

    @property
    def onto(self) -> tuple[str, ...]:
        return self.on

    def claims(self) -> Iterable[Key]:
        return [("removed task", task) for task in self.without]

    def contradicts(self) -> Iterable[Key]:
        return [("task", task) for task in self.without]

    def describe(self) -> str:
        return f"{self.operator} x {self.instances}"

    def unsupported(self, context: Context) -> str:
        if self.operator not in context.graph.by_name:
            return f"there is no operator {self.operator}"
        if self.operator not in context.scalable:
            return f"the parallelism of {self.operator} cannot be changed"
        return "" if self.instances >= 1 else f"{self.instances} instances: an operator needs at least one"

    def already_in_force(self, observation: Observation) -> str:
        same = self.in_force(observation) and not self.on and not self.without
        return "it has that parallelism already" if same else ""

    def in_force(self, observation: Observation) -> bool:
        composed = observation.composition.parallelism.get(self.operator, math.nan)
        measured = observation.operators.value(self.operator, Metric.PARALLELISM)
        return (measured if math.isnan(composed) else composed) == self.instances


@dataclass(frozen=True, slots=True)
class SetTokens(Action):
    """Assign an operator's keys to hosts by a ring of tokens (`elastream.core.ring`).

    Other hosts then hold none of its state partitions. State moves with its keys, as one version.

    Attributes:
        tokens: Pairs of host and token in [0, 1).
    """

    effect: ClassVar[Effect] = Effect.TASKS_MOVED

    operator: str
    tokens: tuple[tuple[str, float], ...]
    why: str = field(default="", compare=False)

    @property
    def subject(self) -> Key:
        return ("ring", self.operator)

    @property
    def onto(self) -> tuple[str, ...]:
        return tuple(host for host, _ in self.tokens)

    @property
    def fails_without(self) -> tuple[str, ...]:
        return self.onto

    def contradicts(self) -> Iterable[Key]:
        return [("moves", self.operator)]

    def describe(self) -> str:
        return f"ring of {self.operator}: " + ", ".join(f"{host} {token:.4g}" for host, token in self.tokens)

    def unsupported(self, context: Context) -> str:
        return self.refusal(context.partitions)

    def refusal(self, partitions: Mapping[str, int]) -> str:
        """Return why no plant can do it with any hosts, or "". `partitions`: by operator."""
        if self.operator not in partitions:
            return f"{self.operator!r} has no state partitions that a ring of hosts could divide"
        if twice := sorted({host for host in self.onto if self.onto.count(host) > 1}):
            return f"host {twice[0]!r} has two tokens on the ring of {self.operator}"
        try:
            Ring(dict(self.tokens))
        except InputError as error:
            return f"the ring of {self.operator}: {error}"
        return ""

    def already_in_force(self, observation: Observation) -> str:
        ring = observation.rings.get(self.operator)
        return "it has those tokens already" if ring is not None and ring.tokens == dict(self.tokens) else ""

    def in_force(self, observation: Observation) -> bool:
        return observation.follows(self.operator, Ring(dict(self.tokens)))


@dataclass(frozen=True, slots=True)
class MoveTask(Action):
    """Run a task on another host from the next batch on, with its state."""

    effect: ClassVar[Effect] = Effect.TASKS_MOVED
    relieves: ClassVar[bool] = False

    task: TaskId
    host: str
    why: str = field(default="", compare=False)

    @property
    def subject(self) -> Key:
        return ("task", self.task)

    @property
    def onto(self) -> tuple[str, ...]:
        return (self.host,)

    @property
    def fails_without(self) -> tuple[str, ...]:
        return (self.host,)

    def claims(self) -> Iterable[Key]:
        return [("moves", self.task.operator)]

    def contradicts(self) -> Iterable[Key]:
        return [("removed task", self.task), ("ring", self.task.operator)]

    def describe(self) -> str:
        return f"move {self.task} to {self.host}"

    def unsupported(self, context: Context) -> str:
        operator = self.task.operator
        return "" if operator in context.graph.by_name else f"there is no operator {operator}"

    def in_force(self, observation: Observation) -> bool:
        row = observation.tasks.rows.get(str(self.task))
        at = -1 if row is None else int(observation.tasks.host[row])
        return at >= 0 and observation.hosts.ids[at] == self.host


@dataclass(frozen=True, slots=True)
class Repartition(Action):
    """Give the state of all keyed operators `partitions` partitions. The queries stop meanwhile.

    Attributes:
        requested: Epoch seconds of a person's request; 0 without.
    """

    relieves: ClassVar[bool] = False

    partitions: int
    why: str = field(default="", compare=False)
    requested: float = 0.0

    @property
    def subject(self) -> Key:
        return ("width",)

    def describe(self) -> str:
        return f"repartition the state to {self.partitions}"

    def unsupported(self, context: Context) -> str:
        if self.partitions < 1:
            return f"{self.partitions} state partitions: at least 1 is needed"
        return "" if context.partitions else "there is no state to repartition"

    def in_force(self, observation: Observation) -> bool:
        counts = observation.context.partitions.values()
        return bool(counts) and all(count == self.partitions for count in counts)

    def already_in_force(self, observation: Observation) -> str:
        return f"the state has {self.partitions} partitions already" if self.in_force(observation) else ""


# -- hosts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostAction(Action):
    """Action on the lease of one host."""

    host: str

    @property
    def subject(self) -> Key:
        return ("host", self.host)

    def missing(self, observation: Observation) -> str:
        return "" if self.host in observation.leases else f"host {self.host} is not leased"

    def state(self, observation: Observation) -> HostState | None:
        lease = observation.leases.get(self.host)
        return None if lease is None else lease.state

    def unless(self, observation: Observation, expected: HostState) -> str:
        """Return a sentence if the host's state is not `expected`, or ""."""
        state = self.state(observation)
        return "" if state is expected else f"host {self.host} is {state}, not {expected}"


@dataclass(frozen=True, slots=True)
class LeaseHost(HostAction):
    """Lease a host of `type`, unless one of that name is leased."""

    effect: ClassVar[Effect] = Effect.HOST_ADDED

    type: str
    region: str = "local"
    why: str = field(default="", compare=False)

    @property
    def fails_without(self) -> tuple[str, ...]:
        return (self.host,)

    @property
    def failure_key(self) -> Hashable:
        return ("lease", self.type, self.region)  # each attempt names another host

    def describe(self) -> str:
        return f"lease {self.host} ({self.type})"

    def unsupported(self, context: Context) -> str:
        return "" if self.type in context.host_types else f"there is no host type {self.type}"

    def missing(self, observation: Observation) -> str:
        return ""

    def already_in_force(self, observation: Observation) -> str:
        return f"host {self.host} is leased already" if self.host in observation.leases else ""

    def in_force(self, observation: Observation) -> bool:
        return self.state(observation) in (HostState.RUNNING, HostState.DRAINING)

    def start_time(self, context: Context) -> float:
        return context.host_types[self.type].start


@dataclass(frozen=True, slots=True)
class RenewHost(HostAction):
    """Record that a host stays for another billing time unit. Leases continue without it."""

    effect: ClassVar[Effect] = Effect.HOST_KEPT
    follows: ClassVar[frozenset[str]] = frozenset({"CancelDrain"})
    relieves: ClassVar[bool] = False

    why: str = field(default="", compare=False)

    @property
    def fails_without(self) -> tuple[str, ...]:
        return (self.host,)

    def describe(self) -> str:
        return f"renew {self.host}"

    def in_force(self, observation: Observation) -> bool:
        return self.host in observation.leases


@dataclass(frozen=True, slots=True)
class DrainHost(HostAction):
    """Move a host's tasks away and place no new ones."""

    effect: ClassVar[Effect] = Effect.HOST_REMOVED

    why: str = field(default="", compare=False)

    def contradicts(self) -> Iterable[Key]:
        return [("onto", self.host)]

    def describe(self) -> str:
        return f"drain {self.host}"

    def already_in_force(self, observation: Observation) -> str:
        return self.unless(observation, HostState.RUNNING)

    def in_force(self, observation: Observation) -> bool:
        return self.state(observation) in (None, HostState.DRAINING, HostState.RELEASING)


@dataclass(frozen=True, slots=True)
class CancelDrain(HostAction):
    """Return a draining host to service."""

    effect: ClassVar[Effect] = Effect.HOST_KEPT
    follows: ClassVar[frozenset[str]] = frozenset({"RenewHost"})

    why: str = field(default="", compare=False)

    @property
    def fails_without(self) -> tuple[str, ...]:
        return (self.host,)

    def describe(self) -> str:
        return f"keep {self.host} after all"

    def already_in_force(self, observation: Observation) -> str:
        return self.unless(observation, HostState.DRAINING)

    def in_force(self, observation: Observation) -> bool:
        return self.state(observation) is HostState.RUNNING


@dataclass(frozen=True, slots=True)
class ReleaseHost(HostAction):
    """End a host's lease. Refused while no other host has room for its tasks."""

    effect: ClassVar[Effect] = Effect.HOST_REMOVED
    follows: ClassVar[frozenset[str]] = frozenset({"DrainHost"})

    why: str = field(default="", compare=False)

    def contradicts(self) -> Iterable[Key]:
        return [("onto", self.host)]

    def describe(self) -> str:
        return f"release {self.host}"

    def already_in_force(self, observation: Observation) -> str:
        leaving = self.state(observation) is HostState.RELEASING
        return f"host {self.host} is leaving already" if leaving else ""

    def in_force(self, observation: Observation) -> bool:
        return self.host not in observation.leases

    def is_waiting(self, observation: Observation) -> bool:
        """Return True while the host waits for work of others, or for work without a known end."""
        return self.host in observation.occupied or self.host in observation.pinned


KINDS: Mapping[str, type[Action]] = {
    kind.__name__: kind
    for kind in (
        SwitchAlternate, SwitchEdge, SetKeyTable, UpdateCode, SetParallelism, SetTokens, MoveTask, Repartition, LeaseHost,
        RenewHost, DrainHost, CancelDrain, ReleaseHost,
    )
}  # fmt: skip


# -- handlers ----------------------------------------------------------------------------------------------------------


class ActionTable:
    """Actions that a plant can do, with handlers."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[Any], Outcome]] = {}
        self._refused: dict[str, str] = {}

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self._handlers)

    def on(self, kind: type[A], handler: Callable[[A], Outcome]) -> None:
        self._handlers[kind.__name__] = handler

    def answer(self, kind: type[A], handler: Callable[[A], tuple[Status, str]]) -> None:
        """As `on`, but `handler` returns status and reason."""
        self.on(kind, lambda action: Outcome(action, *handler(action)))

    def refuse(self, kind: type[Action], why: str) -> None:
        self._handlers.pop(kind.__name__, None)
        self._refused[kind.__name__] = why

    def apply(self, action: Action) -> Outcome:
        """Do `action`; refuse it without handler."""
        if (handler := self._handlers.get(action.kind)) is not None:
            return handler(action)
        return Outcome(action, Status.REFUSED, self._refused.get(action.kind, f"this plant has no {action.kind}"))


# -- values and JSON ---------------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_token(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and _is_number(value[1])


def _is_task(value: Any) -> bool:
    return isinstance(value, TaskId) and isinstance(value.operator, str) and isinstance(value.index, int)


@dataclass(frozen=True, slots=True)
class _Form:
    fits: Callable[[Any], bool]
    expected: str
    read: Callable[[Any], Any] = lambda value: value


def _all(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(fits, value))


_FORMS: Mapping[Any, _Form] = {
    str: _Form(lambda value: isinstance(value, str), "a text"),
    int: _Form(lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    float: _Form(_is_number, "a number"),
    TaskId: _Form(_is_task, "a TaskId of a text and a whole number", lambda value: TaskId(**value)),
    tuple[str, ...]: _Form(_all(lambda value: isinstance(value, str)), "a tuple of texts", tuple),
    tuple[TaskId, ...]: _Form(
        _all(lambda value: isinstance(value, TaskId)),
        "a tuple of TaskIds",
        lambda value: tuple(TaskId(**task) for task in value),
    ),
    tuple[tuple[str, float], ...]: _Form(
        _all(_is_token), "a tuple of pairs of a text and a number", lambda value: tuple((host, at) for host, at in value)
    ),
}
_FIELDS: Mapping[type[Action], Mapping[str, _Form]] = {
    kind: {each.name: _FORMS[each.type] for each in fields(kind)}  # type: ignore[arg-type]
    for kind in KINDS.values()
}


def malformed(value: object) -> str:
    """Return why `value` is not a well-formed action, or "".

    A malformed one, such as a list for a tuple, would fail much later.
    """
    if type(value) not in _FIELDS:
        return ", which is not an action"
    for name, form in _FIELDS[type(value)].items():  # type: ignore[index]
        if not form.fits(part := getattr(value, name)):
            text = repr(part)
            return f": field {name!r} is {text if len(text) <= 80 else text[:77] + '...'}, not {form.expected}"
    return ""


def to_json(action: Action) -> dict[str, Any]:
    return {"action": action.kind, **asdict(action)}  # type: ignore[call-overload]


def from_json(data: Mapping[str, Any]) -> Action:
    """Return the action of a dict from `to_json`. Raises ValueError for an unknown kind."""
    values = dict(data)
    name = values.pop("action", None)
    if name not in KINDS:
        raise ValueError(f"{name!r} is not an action")
    kind = KINDS[name]
    forms = _FIELDS[kind]
    return kind(**{key: forms[key].read(value) if key in forms else value for key, value in values.items()})

"""The seams of control: `Plant` is observed and acted upon, `Policy` plans, `Clock` gives the time.

Spark and the simulator implement `Plant`; `tests/conformance` checks both.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import getattr_static
from typing import Any, Protocol

from elastream.core.action import Action, Outcome, Switch
from elastream.core.decision import Proposal, Unknown
from elastream.core.hosts import Lease
from elastream.core.members import Members
from elastream.core.metrics import Needs
from elastream.core.observation import Context, Observation
from elastream.core.overridable import overridable
from elastream.core.prospect import Prospect
from elastream.errors import DataflowError, InputError

# Members of policies by their former names.
FORMER_NAMES = {"unfit": "unsupported_reason", "exchanges": "wants_traffic"}


class Clock(Protocol):
    """Time as seconds since the run began."""

    def now(self) -> float:
        """Return the seconds since the run began."""
        ...

    def sleep_until(self, time: float) -> None:
        """Return at `time`, or at once if it has passed. A simulated clock advances here."""
        ...


class Plant(Protocol):
    """Controlled system: a dataflow on leased hosts.

    Contract, checked by the conformance tests: `apply` never raises for an action of the closed set, but refuses it or
    fails with a reason. Applying an action twice equals applying it once. The next observation shows a DONE action, a later
    one an ACCEPTED action. Unmeasured values are unknown, never zero. Every host with a task is leased and paid.
    """

    @property
    def context(self) -> Context:
        """The dataflow, the hosts that can be leased, and the goals.

        If it changes during a run, because queries come and go, it is a new value, and observations carry the one they were
        made under.
        """
        ...

    @property
    def clock(self) -> Clock:
        """Clock of its observations."""
        ...

    @property
    def finished(self) -> bool:
        """True if the load is processed to its end, or the run failed."""
        ...

    @property
    def ledger(self) -> Sequence[Lease]:
        """Every lease of the run in the order of requests, ended ones included: the basis of the bill."""
        ...

    def observe(self) -> Observation:
        """Return the current observation. Changes nothing, and is cheap enough for every second."""
        ...

    def apply(self, action: Action) -> Outcome:
        """Do one action, or return why not."""
        ...

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Do all possible `switches` as one new composition, so that no batch sees only some of them.

        Returns an outcome for each. `apply` of a single switch is equivalent. An accepted switch is in force once a batch
        under it was committed.
        """
        ...

    def incidents(self) -> Sequence[str]:
        """Return sentences about events since the last call that no observation shows.

        An example is a lost executor whose host stays.
        """
        ...

    def close(self) -> None:
        """Stop everything and release every host. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Result of a policy.

    Attributes:
        actions: Actions in the order in which to apply them.
        memory: Value passed to the policy in its next round. The policy must not modify it later.
        predicted: Figures that the policy expects at the next round, by name.
        remarks: Sentences for people that no action expresses.
        refused: Proposals of one part of the policy that another part refused; recorded, never applied.
        unknown: Metrics, unknown in the observation, that kept the policy from a decision.
        hosts: Hosts that the load needs now, as a fraction, regardless of leases. None: derived from the actions.
    """

    actions: tuple[Action, ...] = ()
    memory: Any = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    refused: tuple[Proposal, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    hosts: float | None = None


class Policy(ABC):
    """Decision rule from an observation to a plan.

    A policy holds settings only: equal observations and memories give equal plans. It has no clock, does no I/O, and seeds
    its random numbers. One object may serve several runs at a time; what it must remember of a run is the plan's memory.
    Only `plan` is required.
    """

    __slots__ = ()

    @overridable
    def name(self) -> str:
        """Name for people, by default the class name."""
        return type(self).__name__

    @abstractmethod
    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Return the plan for an observation.

        Args:
            observation: The current observation.
            memory: Memory of this policy's last plan in the run; None in the first round.
        """

    def unsupported_reason(self, context: Context) -> str | None:
        """Return why the policy cannot work in `context`, in one sentence, or None. Called once, before a run."""
        return None

    def prepared(self, prospect: Prospect) -> "Policy":
        """Return the policy for a simulated run, with sizes or an oracle filled in from `prospect`.

        Raises:
            InputError: The load cannot be summed up.
        """
        return self

    @overridable
    def needs(self) -> Needs:
        """Metrics without which the policy cannot decide. `elastream check` warns if a dataflow lacks them."""
        return frozenset()

    @overridable
    def wants_traffic(self) -> bool:
        """True if the policy reads the traffic between tasks. Measuring it costs a call per observation and query."""
        return False

    @overridable
    def default_window(self) -> bool:
        """True if the window for unneeded hosts was left at its default, so that the cloud's window applies."""
        return False

    @overridable
    def partitions_a_host(self) -> int | None:
        """Number of state partitions for each host; None: no preference."""
        return None


class SupportsPlan(Protocol):
    """Object that plans without being a `Policy`."""

    @property
    def name(self) -> str:
        """Name for people."""
        ...

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Return the plan for an observation."""
        ...


POLICY_MEMBERS: Members = {"name": str, "plan": 2}
"""What an object must have to be a policy."""


class PlainPolicy(Policy):
    """Policy around an object that has `name` and `plan` but is no `Policy`."""

    def __init__(self, own: SupportsPlan) -> None:
        self.own = own

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.own.name

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Return the object's plan."""
        return self.own.plan(observation, memory)


def as_policy(planner: Policy | SupportsPlan) -> Policy:
    """Return an object as a `Policy`. Every entry point calls it once.

    Raises:
        InputError: The object has optional members of `Policy` without being one; they would be ignored.
    """
    if isinstance(planner, Policy):
        return planner
    names = {
        name: name for name in vars(Policy) if not name.startswith("_") and name not in ("name", "plan")
    } | FORMER_NAMES
    if ignored := [name for name in names if getattr_static(planner, name, None) is not None]:
        kind, former = type(planner).__name__, ignored[0]
        raise InputError(
            f"{kind} has {former!r}: derive the class from elastream's Policy, where it is called {names[former]!r}",
            ("policy",),
        )
    return PlainPolicy(planner)


def check_supported(policy: Policy | None, context: Context) -> None:
    """Raise DataflowError with the policy's reason if it cannot work in `context`. Called once, before a run."""
    if policy is not None and (reason := policy.unsupported_reason(context)):
        raise DataflowError(f"policy {policy.name}: {reason}", ("policy",))

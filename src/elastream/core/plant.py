"""The one seam: a Plant is observed and acted upon, a Policy plans, a Clock passes.

Spark and the simulator both implement `Plant`; `tests/conformance` holds them to the same behaviour.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import getattr_static
from typing import Any, Protocol

from elastream.core.action import Action, Outcome, Switch
from elastream.core.decision import Proposal, Unknown
from elastream.core.hosts import Lease
from elastream.core.metrics import Needs
from elastream.core.observation import Context, Observation
from elastream.core.overridable import overridable
from elastream.core.prospect import Prospect
from elastream.errors import DataflowError, InputError

FORMER = {"unfit": "unsupported_reason", "exchanges": "wants_traffic"}
"""Optional members of policies by their former names."""


class Clock(Protocol):
    """Time as seconds since the run began."""

    def now(self) -> float:
        """Seconds since the run began."""
        ...

    def sleep_until(self, time: float) -> None:
        """Return at `time`, or at once where it has passed. On a simulated clock this is what makes time pass."""
        ...


class Plant(Protocol):
    """A controlled system (control theory's word): a dataflow running on leased hosts.

    The contract, held by the conformance tests: `apply` never raises for an action of the closed set - what cannot be
    done is REFUSED or FAILED with a reason; applying the same action twice is applying it once; after DONE the next
    observation shows it, after ACCEPTED a later one does; what was not measured is unknown, never zero; every host
    that holds a task is leased and paid.
    """

    @property
    def context(self) -> Context:
        """The dataflow, what can be leased, and what is wanted.

        Where it may change while a run lasts (queries come and go), a changed context is another value, and each
        observation carries the one that it was made under.
        """
        ...

    @property
    def clock(self) -> Clock:
        """The time that its observations are stamped with."""
        ...

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do: the load has ended and all of it is processed, or the run failed."""
        ...

    @property
    def ledger(self) -> Sequence[Lease]:
        """Every lease of the run in the order of their requests, ended ones included: what the bill is made from."""
        ...

    def observe(self) -> Observation:
        """What is known now. Changes nothing, and is cheap enough to call every second."""
        ...

    def apply(self, action: Action) -> Outcome:
        """Do one action, or say why not."""
        ...

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Do all of these that are possible as one new composition, so that no batch sees a part of them; an outcome each.

        `apply` of a single one is the same as this with that one. An accepted switch is in force once a batch that ran
        under it was committed.
        """
        ...

    def incidents(self) -> Sequence[str]:
        """Return sentences about what happened since the last call and no observation shows; the next round records them.

        An example is the loss of an executor whose host stays.
        """
        ...

    def close(self) -> None:
        """Stop everything and release every host; may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy answers.

    actions: in the order in which they should be done. memory: given back to the policy in its next round; any value, of
    which the policy must not change a part later. predicted: values by name that the policy expects at the next round.
    remarks: sentences for people that no action says. refused: what one part of the policy proposed and another refused,
    each with `by` and `refused`; recorded and never acted on. unknown: metrics for want of which the policy did not decide
    something, only those that are unknown in the observation that it was given: nothing is left undone silently.
    hosts: how many the load needs now, parts of one included, whatever is paid or under way; None where the policy does not
    say: then its actions do.
    """

    actions: tuple[Action, ...] = ()
    memory: Any = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    refused: tuple[Proposal, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    hosts: float | None = None


class Policy(ABC):
    """A decision rule: an observation in, a plan out.

    A policy holds settings only: the same observation and memory give the same plan. It has no clock, does no I/O, and
    seeds its random numbers. One object may serve many runs at a time; it returns what it must remember of a run as the
    plan's memory. `plan` is required; all other members have defaults.
    """

    __slots__ = ()

    @overridable
    def name(self) -> str:
        """The name for people; by default that of the class."""
        return type(self).__name__

    @abstractmethod
    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Return the plan for this observation.

        Args:
            observation: The current observation.
            memory: Memory of this policy's last plan in the same run; None in the first round.
        """

    def unsupported_reason(self, context: Context) -> str | None:
        """Return why the policy cannot work in `context`, in one sentence, or None. Asked once, before a run."""
        return None

    def prepared(self, prospect: Prospect) -> "Policy":
        """Return the policy for a simulated run that is known in advance, such as with sizes or an oracle filled in.

        Raises:
            InputError: The load cannot be summed up.
        """
        return self

    @overridable
    def needs(self) -> Needs:
        """Metrics without which the policy cannot decide. `elastream check` warns of those that a dataflow lacks."""
        return frozenset()

    @overridable
    def wants_traffic(self) -> bool:
        """Whether the policy reads how much tasks send each other. Measuring it costs a call per look and query."""
        return False

    @overridable
    def default_window(self) -> bool:
        """Whether the time for which unneeded hosts are kept is nobody's choice, so that the cloud's takes its place."""
        return False

    @overridable
    def partitions_a_host(self) -> int | None:
        """State partitions that the policy wants for each host; None: no wish."""
        return None


class SupportsPlan(Protocol):
    """An object that plans without being a `Policy`."""

    @property
    def name(self) -> str:
        """The name for people."""
        ...

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Return the plan for this observation."""
        ...


class PlainPolicy(Policy):
    """A policy around an object that has `name` and `plan` and is no `Policy`. All other members have their defaults."""

    def __init__(self, own: SupportsPlan) -> None:
        self.own = own

    @property
    def name(self) -> str:
        """The object's name."""
        return self.own.name

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Return the object's plan."""
        return self.own.plan(observation, memory)


def as_policy(given: Policy | SupportsPlan) -> Policy:
    """Return `given` as a policy. Every entrance calls it once, so that all behind it may use each member.

    Raises:
        InputError: `given` has optional members of `Policy` and is not derived from it: they would be ignored.
    """
    if isinstance(given, Policy):
        return given
    names = {name: name for name in vars(Policy) if not name.startswith("_") and name not in ("name", "plan")} | FORMER
    if ignored := [name for name in names if getattr_static(given, name, None) is not None]:
        kind, former = type(given).__name__, ignored[0]
        raise InputError(
            f"{kind} has {former!r}: derive the class from elastream's Policy, where it is called {names[former]!r}",
            ("policy",),
        )
    return PlainPolicy(given)


def refuse_unsupported(policy: Policy | None, context: Context) -> None:
    """Raise DataflowError with the policy's own words if it cannot work in `context`. Called once, before a run."""
    if policy is not None and (reason := policy.unsupported_reason(context)):
        raise DataflowError(f"policy {policy.name}: {reason}", ("policy",))

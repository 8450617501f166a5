"""Seams of control: `Plant` is observed and acted upon, `Policy` plans, `Clock` gives the time.

Spark and the simulator implement `Plant`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import getattr_static
from typing import Any, Protocol

from elastream.core.action import Action, Outcome, Switch
from elastream.core.decision import Proposal, Unknown
from elastream.core.frames import Floats
from elastream.core.hosts import HostType, Lease
from elastream.core.members import Members, overridable
from elastream.core.metrics import Needs
from elastream.core.observation import Context, Observation
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.stages import Layout
from elastream.errors import DataflowError, InputError

# Factors over times (seconds) on the speed of a host or the bandwidth of a link "h1>h2"; NaN where unknown.
Variation = Callable[[str, Floats], Floats]


@dataclass(frozen=True)
class Prospect:
    """Simulated run before its start, for policies that prepare with its sizes or an oracle."""

    layout: Layout
    host_types: Sequence[HostType]
    loads: Mapping[str, ArrivalPattern]
    seconds: float | None = None  # length; None: that of the loads
    window: float | None = None  # averaging window of a peak (seconds)
    # measured core-seconds per record and selectivity by operator, or None
    costs: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    speeds: Variation | None = None  # variation of host speeds, or None
    bandwidths: Variation | None = None  # variation of link bandwidths, or None


# Members of policies by their former names.
FORMER_NAMES = {"unfit": "unsupported_reason", "exchanges": "wants_traffic"}


class Clock(Protocol):
    """Time as seconds since the run began."""

    def now(self) -> float:
        """Return the seconds since the run began."""

    def sleep_until(self, time: float) -> None:
        """Return at `time`, or at once if it has passed. A simulated clock advances here."""


class Plant(Protocol):
    """Controlled system: a dataflow on leased hosts. The conformance tests check the contract.

    `apply` never raises for an action of the closed set, but refuses it or fails with a reason; twice equals once. The next
    observation shows a DONE action, a later one an ACCEPTED action. Unmeasured values are unknown, never zero. Every host
    with a task is leased and paid.
    """

    @property
    def context(self) -> Context:
        """Return the dataflow, the hosts that can be leased, and the goals; a new value when queries come or go."""

    @property
    def clock(self) -> Clock:
        """Return the clock of its observations."""

    @property
    def finished(self) -> bool:
        """Return True if the load is processed to its end, or the run failed."""

    @property
    def ledger(self) -> Sequence[Lease]:
        """Return every lease of the run in the order of requests, also ended ones: the basis of the bill."""

    def observe(self) -> Observation:
        """Return the current observation, without changes and fast enough for every second."""

    def apply(self, action: Action) -> Outcome:
        """Do one action, or return why not."""

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Apply the possible ones of `switches` together; return an outcome for each.

        Every batch sees all of them or none. A switch is in force once such a batch is committed.
        """

    def incidents(self) -> Sequence[str]:
        """Return sentences about new events that no observation shows, such as a lost executor."""

    def close(self) -> None:
        """Stop everything and release every host. May be called twice."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Result of a policy.

    Attributes:
        actions: Actions in the order of application.
        memory: Value for the policy's next round, never modified later.
        predicted: Figures that the policy expects at the next round, by name.
        remarks: Sentences for people that no action expresses.
        refused: Proposals that another part of the policy refused; recorded, never applied.
        unknown: Unknown metrics that prevented a decision.
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
    """Decision rule from an observation to a plan. Only `plan` is required.

    Equal observations and memories give equal plans: a policy holds settings only, has no clock, does no I/O, and seeds its
    random numbers. One object may serve several runs.
    """

    __slots__ = ()

    @overridable
    def name(self) -> str:
        """Return the name for people, by default the class name."""
        return type(self).__name__

    @abstractmethod
    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Return the plan. `memory` is that of this policy's last plan in the run; None in the first round."""

    def unsupported_reason(self, context: Context) -> str | None:
        """Return why the policy cannot work in `context`, in one sentence, or None. Called once, before a run."""
        return None

    def prepared(self, prospect: Prospect) -> "Policy":
        """Return the policy for a simulated run, with sizes or an oracle from `prospect`.

        Raises:
            InputError: The load has no sum.
        """
        return self

    @overridable
    def needs(self) -> Needs:
        """Return the metrics it cannot decide without; `elastream check` compares them with the dataflow."""
        return frozenset()

    @overridable
    def wants_traffic(self) -> bool:
        """Return True if it reads the traffic between tasks, which costs a call per observation and query."""
        return False

    @overridable
    def places_stateless(self) -> bool:
        """Return True if it places tasks without state, too."""
        return False

    @overridable
    def default_window(self) -> bool:
        """Return True if the window for unneeded hosts is the default, so that the cloud's applies."""
        return False

    @overridable
    def partitions_a_host(self) -> int | None:
        """Return the number of state partitions for each host; None: no preference."""
        return None


class SupportsPlan(Protocol):
    """Object that plans without being a `Policy`."""

    @property
    def name(self) -> str:
        """Return the name for people."""

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Return the plan for an observation."""


POLICY_MEMBERS: Members = {"name": str, "plan": 2}


class PlainPolicy(Policy):
    def __init__(self, own: SupportsPlan) -> None:
        self.own = own

    @property
    def name(self) -> str:
        return self.own.name

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        return self.own.plan(observation, memory)


def as_policy(planner: Policy | SupportsPlan) -> Policy:
    """Return an object as a `Policy`.

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
    if policy is not None and (reason := policy.unsupported_reason(context)):
        raise DataflowError(f"policy {policy.name}: {reason}", ("policy",))

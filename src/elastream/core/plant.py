"""The one seam: a Plant is observed and acted upon, a Policy plans, a Clock passes.

Spark and the simulator both implement `Plant`; `tests/conformance` holds them to the same behaviour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from elastream.core.action import Action, Outcome, Switch
from elastream.core.decision import Proposal, Unknown
from elastream.core.hosts import Lease
from elastream.core.observation import Context, Observation
from elastream.errors import DataflowError


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

    A plant to which something happens that no observation shows, such as the loss of an executor whose host stays, has a
    method `told() -> Sequence[str]`: sentences about it since it was asked last, which the next round is recorded with.
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


class Policy(Protocol):
    """Decides. A value that holds settings only: the same observation and memory give the same plan.

    No clock, no I/O, seeded randomness only. One policy object may serve many runs at a time; what it must remember of one
    run it returns as the plan's memory and is given again.

    A policy that cannot work with some dataflows, hosts or service levels has a method `unfit(context: Context) -> str`:
    one sentence that says what it lacks and what would be right, or an empty text. See `refuse_unfit`.

    One that takes something from a run to come (the sizes of `static:peak`, what an oracle tells) has a method
    `prepared(prospect: Prospect) -> Policy`: the policy for that run. See `elastream.core.prospect`.

    One that keeps hosts which it no longer needs for some time has a property `default_window: bool`: whether that time is
    nobody's choice, so that the cloud's takes its place. See `elastream.control.scaling.with_window`.
    """

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """The plan for this observation. memory: of this policy's last plan of the same run, None in the first round."""
        ...


def refuse_unfit(policy: Policy | None, context: Context) -> None:
    """Raise DataflowError with a policy's own words where it cannot work with `context`; asked once, before a run."""
    unfit = getattr(policy, "unfit", None)
    if policy is not None and unfit is not None and (sentence := unfit(context)):
        raise DataflowError(f"policy {policy.name}: {sentence}", ("policy",))

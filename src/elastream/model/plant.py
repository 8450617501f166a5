"""The one seam: a Plant is observed and acted upon, a Policy plans, a Clock passes.

Spark and the simulator both implement `Plant`; `tests/conformance` holds them to the same behaviour.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from elastream.model.action import Action, Outcome
from elastream.model.cloud import Lease
from elastream.model.decision import Report
from elastream.model.observation import Context, Observation

__all__ = ["Clock", "Plant", "Policy", "Predictive", "Reporting"]


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
        """What does not change while the run lasts."""
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
        """Every lease of the run in the order they were asked for, ended ones too: what the bill is made from."""
        ...

    def observe(self) -> Observation:
        """What is known now. Cheap enough to call every second."""
        ...

    def apply(self, action: Action) -> Outcome:
        """Do one action, or say why not."""
        ...

    def close(self) -> None:
        """Stop everything and release every host; may be called twice."""
        ...


class Policy(Protocol):
    """Decides. Pure: the same observation gives the same actions; no clock, no I/O, seeded randomness only."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def plan(self, observation: Observation) -> Sequence[Action]:
        """Actions that this observation calls for, in the order in which they should be done."""
        ...


@runtime_checkable
class Predictive(Protocol):
    """A policy that can also say what it expects of its plan."""

    def predict(self, observation: Observation, actions: Sequence[Action]) -> Mapping[str, float]:
        """Expected values by name at the next round, for the decision record."""
        ...


@runtime_checkable
class Reporting(Protocol):
    """A policy that also tells what was refused inside it, and what a person should know though no action says it."""

    def report(self, observation: Observation, actions: Sequence[Action]) -> Report:
        """About the plan `actions` for this observation, for the decision record. Asked once a round, after `plan`."""
        ...

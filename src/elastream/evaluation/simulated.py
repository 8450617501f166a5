"""Run of a policy on a simulated plant, in the loop of live runs.

Faults are raised: figures of a policy that failed in some rounds are meaningless.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from elastream.control.extension import KeyTableExtension, LoopExtension
from elastream.control.guarding import GuardExtension
from elastream.control.loop import Loop
from elastream.core.decision import Decision, Unknown, longest_lacked
from elastream.core.observation import Observation
from elastream.core.plant import Plant, Policy
from elastream.core.scaling import NO_RULES, ScalingRules, rule_of
from elastream.core.wording import gist
from elastream.errors import ElastreamError
from elastream.guards.document import GuardDocument
from elastream.guards.pollers import ReadOnce
from elastream.recording.guard_log import GuardLog
from elastream.recording.observer import Ending, Header
from elastream.simulator import Result, SimulatedPlant
from elastream.simulator.plant import Advancing

# share of rounds from which on a remark characterises a run
OFTEN = 0.1


@dataclass(frozen=True)
class SimulatedRun:
    """Result of a run with every round's decision."""

    result: Result
    decisions: tuple[Decision, ...]

    @property
    def refused(self) -> int:
        """Return how many actions were refused or failed."""
        return sum(
            sum(bool(proposal.refused) and proposal.by == decision.policy for proposal in decision.proposals)
            + sum(not outcome.succeeded for outcome in decision.outcomes)
            for decision in self.decisions
        )

    @property
    def lacked(self) -> tuple[Unknown, ...]:
        """Return missing metrics, each with its longest gap."""
        return longest_lacked(self.decisions)

    @property
    def remarked(self) -> str:
        """Return the most frequent remark or refusal, figures aside, if in `OFTEN` of the rounds, else ""."""
        counts, last = Counter[str](), dict[str, str]()
        for decision in self.decisions:
            refused = (each.refused for each in decision.proposals if rule_of(each.refused))
            texts = {gist(each): each for each in (*decision.note.split("; "), *refused) if each}
            counts.update(texts.keys())
            last |= texts
        most = counts.most_common(1)
        return last[most[0][0]] if most and most[0][1] >= OFTEN * len(self.decisions) else ""


def simulated(
    plant: SimulatedPlant,
    policy: Policy,
    *,
    period: float,
    until: float,
    look: Callable[[Observation], None] = lambda _: None,
    guards: GuardDocument | None = None,
    scaling: ScalingRules = NO_RULES,
) -> SimulatedRun:
    """Let `policy` plan every `period` seconds; close the plant at `until`.

    Args:
        look: Receives every observation, once a period.
        guards: In force throughout; external signals keep their initial values.
        scaling: Rules for the number of hosts.
    """
    plant.advance(plant.time + period)
    versions, outside = GuardLog(), ReadOnce(plant.clock.now)
    if guards is not None:
        outside.follow(guards.signals)
        versions.append(guards.text, guards.path, "simulate")
    decisions = steered(
        plant, policy, period=period, until=until, look=look,
        extensions=(GuardExtension(versions, outside), KeyTableExtension(plant.network.tables)),
        scaling=scaling,
    )  # fmt: skip
    return SimulatedRun(plant.result(), decisions)


class SteeredPlant(Plant, Advancing, Protocol):
    """Plant whose time advances on request."""


def steered(
    plant: SteeredPlant,
    policy: Policy,
    *,
    period: float,
    until: float,
    look: Callable[[Observation], None] = lambda _: None,
    extensions: Sequence[LoopExtension] = (),
    scaling: ScalingRules = NO_RULES,
) -> tuple[Decision, ...]:
    """Run `policy` on any plant in simulated time; return every round's decision."""
    watch = _Watch(look)
    limit = until - plant.time
    loop = Loop(
        plant, policy, monitor=period, period=period, observers=[watch], limit=limit, to_the_limit=True,
        extensions=extensions, scaling=scaling,
    )  # fmt: skip
    watch.stop = loop.stop
    with _unlogged():
        ending = loop.run()
    if watch.broken is not None:
        raise watch.broken
    if ending.status == "failed":
        raise ElastreamError(ending.reason)
    for decision in watch.decisions.values():
        for fault in decision.faults:
            error = ElastreamError(f"at {decision.time:g} s of the simulated run: {fault.said}{fault.place}")
            error.add_note(fault.traceback)
            raise error
    return tuple(watch.decisions.values())


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silence the loop's fault log: the raised error reports it."""
    of_loop = logging.getLogger(Loop.__module__)
    before, of_loop.disabled = of_loop.disabled, True
    try:
        yield
    finally:
        of_loop.disabled = before


class _Watch:
    """Collects decisions and stops the run at its first fault."""

    def __init__(self, look: Callable[[Observation], None]) -> None:
        self._look = look
        self.stop: Callable[[], None] = lambda: None
        self.decisions: dict[int, Decision] = {}
        self.broken: Exception | None = None

    def started(self, header: Header) -> None: ...

    def observed(self, observation: Observation) -> None:
        try:
            self._look(observation)
        except Exception as error:
            self.broken = error
            raise

    def decided(self, decision: Decision) -> None:
        self.decisions[decision.round] = decision
        if decision.faults:
            self.stop()

    def ended(self, ending: Ending) -> None: ...

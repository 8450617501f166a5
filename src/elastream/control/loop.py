"""The one loop: monitor, analyse, plan, execute, and write down why.

What is decided is the policy's (and local proposers'), what may be tried is arbitration's, what is tried again is safety's;
this only keeps time, keeps the order journal - plant - journal, and keeps going when one of them fails.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from elastream.control.arbitration import arbitrate, subject
from elastream.control.journal import OUTCOMES, ActionState, Entry, Journal
from elastream.control.progress import progress
from elastream.control.safety import BackOff, check_plan
from elastream.model.action import Action, LeaseHost, Outcome, Status, describe
from elastream.model.decision import Decision, Proposal, Report
from elastream.model.errors import ElastreamError
from elastream.model.observation import Observation
from elastream.model.plant import Clock, Plant, Policy, Predictive, Reporting
from elastream.planning.algorithms.measures import seen
from elastream.recording.observer import Ending, Header, Observer, describe_run

__all__ = ["Loop", "Manager", "Proposer"]

BLIND_LIMIT = 10
"""Failed observations in a row after which the run is ended as failed: nobody is steering any more."""
LOUD = 3
"""Failed plans in a row after which every further decision says how many there were."""
PATIENCE = 120.0
"""Seconds for an accepted action to come into force; a lease has three times the start-up time of its type if longer."""


class Proposer(Protocol):
    """A local manager, of one operator or one region: proposes on a period of its own, and decides nothing (E2DF)."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def period(self) -> float:
        """Seconds between two proposals; its latest ones are put forward in each planning round."""
        ...

    def propose(self, observation: Observation) -> Sequence[Action]:
        """Actions that it would like. Pure, as a policy is."""
        ...


@runtime_checkable
class Manager(Protocol):
    """A policy that also has a say on what local proposers put forward, before arbitration."""

    def review(self, observation: Observation, proposals: Sequence[Proposal]) -> Sequence[Proposal]:
        """The same proposals, `refused` filled in for those that it does not grant."""
        ...


class Loop:
    """Runs `policy` against `plant` until the load is done, the limit is reached, or someone stops it.

    monitor, period: seconds between observations and between planning rounds. Rounds that come due while an earlier one
    still runs are skipped. observers: told of everything; one that raises is told no more. observe_only: everything is
    decided and recorded, nothing is done. limit: seconds after which the run is stopped. proposers: local managers.
    header: what observers are told at the start. facts: called when the plant is closed, for the ending's further figures.
    """

    def __init__(
        self,
        plant: Plant,
        policy: Policy,
        *,
        monitor: float = 1.0,
        period: float = 2.0,
        observers: Iterable[Observer] = (),
        journal: Journal | None = None,
        observe_only: bool = False,
        clock: Clock | None = None,
        limit: float | None = None,
        proposers: Sequence[Proposer] = (),
        header: Header | None = None,
        facts: Callable[[], Mapping[str, float | str]] = dict,
    ) -> None:
        self._plant = plant
        self._policy = policy
        self._monitor = monitor
        self._period = max(period, monitor)
        self._observers = list(observers)
        self._journal = Journal() if journal is None else journal
        self._observe_only = observe_only
        self._clock = plant.clock if clock is None else clock
        self._limit = math.inf if limit is None else limit
        self._proposers = tuple(proposers)
        self._header = header or describe_run(plant.context, policy=policy.name, plant="simulated", started=0.0)
        self._facts = facts
        self._stopped = ""
        self._round = 0
        self._last: Decision | None = None
        self._notes: list[str] = []
        self._blind = 0
        self._failed_plans = 0
        self._backoff = BackOff()
        self._under_way: dict[Action, Entry] = {}
        self._left_over = {entry.action: entry for entry in self._journal.unconcluded}
        self._local: dict[str, tuple[Proposal, ...]] = {}
        self._due = {proposer.name: -math.inf for proposer in self._proposers}

    def stop(self, reason: str = "it was asked to stop") -> None:
        """End the run within a monitoring period; safe in a signal handler and from another thread."""
        self._stopped = reason

    def run(self) -> Ending:
        """Run to the end, close the plant, and say how it ended.

        An ElastreamError of the plant or the journal ends the run as failed with that sentence as its reason, an interrupt
        from the keyboard ends it as stopped. Anything else is a fault of ours: the plant is closed, and it is raised.
        """
        status, reason = "failed", ""
        self._tell("started", self._header)
        try:
            status, reason = self._cycle()
        except KeyboardInterrupt:
            status, reason = "stopped", "it was interrupted"
        except ElastreamError as error:
            reason = str(error)
        except BaseException:
            self._plant.close()
            raise
        ended = self._clock.now()
        facts: Mapping[str, float | str] = {}
        try:
            self._plant.close()
            facts = dict(self._facts())
        except ElastreamError as error:
            status, reason = "failed", reason or str(error)
        self._journal.close()
        ending = Ending(status, ended, reason, tuple(self._plant.ledger), facts)
        self._tell("ended", ending)
        return ending

    def _cycle(self) -> tuple[str, str]:
        start = self._clock.now()
        monitor_at = plan_at = start
        end = start + self._limit
        while True:
            observation = self._observe()
            if observation is not None:
                self._follow(observation)
                self._ask_local(observation)
                if self._clock.now() >= plan_at and not self._stopped:
                    self._plan(observation)
                    plan_at = self._next(plan_at, self._period, "planning rounds")
            if self._plant.finished or self._stopped or self._clock.now() >= end:
                break
            monitor_at = self._next(monitor_at, self._monitor, "observations")
            self._clock.sleep_until(min(monitor_at, end))
        if observation is not None:
            self._complete(observation)
        if self._plant.finished:
            return "finished", ""
        return "stopped", self._stopped or f"its limit of {self._limit:g} s was reached"

    def _next(self, due: float, every: float, what: str) -> float:
        """The first multiple of `every` behind `due` that is not past; those missed are skipped, not queued, and noted."""
        ahead = max(1, math.ceil((self._clock.now() - due) / every - 1e-9))
        if ahead > 1:
            self._notes.append(f"{ahead - 1} {what} were skipped: the last took too long")
        return due + ahead * every

    def _observe(self) -> Observation | None:
        try:
            observation = self._plant.observe()
        except ElastreamError:
            raise
        except Exception as error:
            self._blind += 1
            self._notes.append(f"observation failed: {_said(error)}")
            if self._blind >= BLIND_LIMIT:
                raise ElastreamError(f"{self._blind} observations in a row failed, the last with {_said(error)}") from error
            return None
        self._blind = 0
        self._tell("observed", observation)
        return observation

    def _follow(self, observation: Observation) -> None:
        """Conclude accepted actions that have come into force, never will, or took too long."""
        now = self._clock.now()
        for action, entry in list(self._under_way.items()):
            outcome = progress(action, observation)
            since = entry.history[-1][0]
            if outcome is None and now - since > (patience := self._patience(action)):
                outcome = Outcome(action, Status.FAILED, f"it did not come into force within {patience:.0f} s")
            if outcome is not None:
                del self._under_way[action]
                self._journal.step(entry, OUTCOMES[outcome.status], now, outcome.reason)
                if outcome.status is Status.FAILED:
                    self._notes.append(f"{describe(action)} failed: {outcome.reason}")
                self._learn(outcome, now)

    def _patience(self, action: Action) -> float:
        if isinstance(action, LeaseHost):
            return max(PATIENCE, 3 * self._plant.context.host_types[action.type].start)
        return PATIENCE

    def _ask_local(self, observation: Observation) -> None:
        for proposer in self._proposers:
            if self._clock.now() < self._due[proposer.name]:
                continue
            self._due[proposer.name] = self._clock.now() + proposer.period
            try:
                actions = check_plan(proposer.propose(observation))
            except Exception as error:
                self._notes.append(f"{proposer.name} failed: {_said(error)}")
                actions = ()
            self._local[proposer.name] = tuple(Proposal(action, proposer.name) for action in actions)

    def _plan(self, observation: Observation) -> None:
        self._complete(observation)
        began = self._clock.now()
        actions = self._ask_policy(observation)
        predicted = self._predict(observation, actions)
        report = self._report(observation, actions)
        self._notes += report.remarks
        proposals = [Proposal(action, self._policy.name) for action in actions]
        proposals += [replace(p, refused=p.refused or "it was not granted") for p in report.proposals]
        proposals += self._review(observation, [p for each in self._local.values() for p in each])
        proposals += [Proposal(action, "journal") for action in self._left_over]
        took = self._clock.now() - began
        waiting = [replace(p, refused=p.refused or self._backoff.refusal(p.action, began)) for p in proposals]
        decided = arbitrate(waiting, observation, self._under_way)
        if self._observe_only:
            decided = tuple(replace(p, refused=p.refused or "observe only") for p in decided)
        outcomes = tuple(self._try(p) for p in decided if not p.refused)
        self._drop_left_over(decided)
        self._round += 1
        self._local.clear()
        self._last = Decision(
            self._round,
            observation.time,
            self._policy.name,
            seen(observation),
            decided,
            outcomes,
            predicted,
            seconds=took,
            note="; ".join(self._notes),
        )
        self._notes.clear()
        self._tell("decided", self._last)

    def _ask_policy(self, observation: Observation) -> tuple[Action, ...]:
        try:
            actions = check_plan(self._policy.plan(observation))
        except Exception as error:
            self._failed_plans += 1
            self._notes.append(f"{self._policy.name} failed, nothing of it was applied: {_said(error)}")
            if self._failed_plans >= LOUD:
                self._notes.append(f"NOBODY DECIDES: {self._policy.name} has failed {self._failed_plans} times in a row")
            return ()
        self._failed_plans = 0
        return actions

    def _predict(self, observation: Observation, actions: Sequence[Action]) -> dict[str, float]:
        if not isinstance(self._policy, Predictive):
            return {}
        try:
            return {name: float(value) for name, value in self._policy.predict(observation, actions).items()}
        except Exception as error:
            self._notes.append(f"the prediction of {self._policy.name} failed: {_said(error)}")
            return {}

    def _report(self, observation: Observation, actions: Sequence[Action]) -> Report:
        if not isinstance(self._policy, Reporting):
            return Report()
        try:
            return self._policy.report(observation, actions)
        except Exception as error:
            self._notes.append(f"the report of {self._policy.name} failed: {_said(error)}")
            return Report()

    def _review(self, observation: Observation, proposals: list[Proposal]) -> list[Proposal]:
        if not proposals or not isinstance(self._policy, Manager):
            return proposals
        try:
            return list(self._policy.review(observation, proposals))
        except Exception as error:
            self._notes.append(f"{self._policy.name} failed to review what was proposed: {_said(error)}")
            return [replace(p, refused="it was not reviewed") for p in proposals]

    def _try(self, proposal: Proposal) -> Outcome:
        """Journal, plant, journal. An action that the plant accepts overtakes earlier ones about the same thing."""
        action, now = proposal.action, self._clock.now()
        entry = self._left_over.pop(action, None)
        if entry is None:
            entry = self._journal.grant(action, proposal.by, now)
        else:
            entry = self._journal.step(entry, ActionState.GRANTED, now)
        entry = self._journal.step(entry, ActionState.TRIED, now)
        try:
            outcome = self._plant.apply(action)
        except ElastreamError as error:
            outcome = Outcome(action, Status.FAILED, str(error))
        except Exception as error:
            outcome = Outcome(action, Status.FAILED, _said(error))
        now = self._clock.now()
        entry = self._journal.step(entry, OUTCOMES[outcome.status], now, outcome.reason)
        if outcome.succeeded:
            for other in [other for other in self._under_way if subject(other) == subject(action)]:
                overtaken = self._under_way.pop(other)
                self._journal.step(overtaken, ActionState.DROPPED, now, f"overtaken by '{describe(action)}'")
        if outcome.status is Status.ACCEPTED:
            self._under_way[action] = entry
        self._learn(outcome, now)
        return outcome

    def _learn(self, outcome: Outcome, now: float) -> None:
        if outcome.status is Status.FAILED:
            self._backoff.failed(outcome.action, now, outcome.reason)
        elif outcome.status is Status.DONE:
            self._backoff.succeeded(outcome.action)

    def _drop_left_over(self, decided: Sequence[Proposal]) -> None:
        """What an earlier controller left undone is proposed once, in the first round; what was refused is dropped."""
        reasons = {proposal.action: proposal.refused for proposal in decided}
        for action, entry in self._left_over.items():
            self._journal.step(entry, ActionState.DROPPED, self._clock.now(), reasons[action])
        self._left_over.clear()

    def _complete(self, observation: Observation) -> None:
        """Fill in what became of the last decision."""
        if self._last is not None and observation.time > self._last.time:
            now = seen(observation)
            missing = {name: math.nan for name in self._last.predicted if name not in now}
            self._tell("decided", self._last.with_actual({**now, **missing}))
            self._last = None

    def _tell(self, event: str, what: object) -> None:
        for observer in tuple(self._observers):
            try:
                getattr(observer, event)(what)
            except Exception as error:
                self._observers.remove(observer)
                self._notes.append(f"{type(observer).__name__} is told no more, it failed: {_said(error)}")


def _said(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, ElastreamError) else f"{type(error).__name__}: {text}"

"""The control loop of live, simulated and compared runs: monitor, analyse, plan, execute, record (MAPE-K).

The policy plans, arbitration and back-off refuse actions, and the plant applies the rest; this module keeps the time, the
order journal - plant - journal and the policy's memory, and continues when one of them fails.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastream.control.arbitration import BackOff, Lacked, arbitrate, bound, checked, unanswered
from elastream.control.extension import LoopExtension
from elastream.control.journal import UNWRITTEN, ActionState, Entry, Journal, Journaling
from elastream.control.scaling import Scaling
from elastream.core.action import Action, Outcome, Status, Switch
from elastream.core.alarm import Alarms
from elastream.core.decision import Decision, Fault, Proposal
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, Lease
from elastream.core.observation import Observation
from elastream.core.plant import Clock, Plan, Plant, Policy
from elastream.core.scaling import NO_RULES, ScalingRules
from elastream.core.wording import counted
from elastream.errors import ElastreamError, in_one_line
from elastream.policies.common.measures import seen
from elastream.recording.observer import LIMITED, Ending, Header, Observer, describe_run
from elastream.units import ROUNDING

log = logging.getLogger(__name__)

BLIND = "observation"
"""Source of the alarm about a plant that cannot be observed."""
BLIND_LIMIT = 10
"""Failed observations in a row that raise an alarm: the run goes on as it was planned last."""
ROUND = "controller"
"""Source of the alarm about a round that failed."""
ALARMING = 3
"""Failed plans in a row that raise an alarm."""
LEFT = 30.0
"""Seconds for which ever more records are late before it is said that the policy proposes nothing: it may look for longer
than a round, and what it did last takes effect."""
PATIENCE = 120.0
"""Seconds for an accepted action to come into force; a lease has three times the start-up time of its type if longer."""


@dataclass(frozen=True, slots=True)
class _Late:
    """Records are late and nothing is done about it. since: begin of a while, seconds. fewest: that waited in it; before:
    in the one before. longest: seconds of the longest micro-batch. grows: whether the last while had more than that before.
    """

    since: float
    fewest: float
    longest: float = 0.0
    before: float = math.inf
    grows: bool = False


class Loop:
    """Runs `policy` against `plant` until the load is done, the limit is reached, or `stop` is called.

    monitor, period: seconds between observations and between planning rounds. Rounds that come due while an earlier one
    still runs are skipped; none is begun once the limit is reached; where an extension finds it urgent, one is held at
    once. observers: receive every event; one that raises receives no more, and an alarm sounds. observe_only: actions are
    planned and recorded, not applied; so they are in rounds in which `paused` says so. limit: seconds after which the run
    is stopped. to_the_limit: whether it goes on until then where the load is done before. header: what observers receive at
    the start. extensions: what else takes part in each round, in this order. scaling: the user's rules for the
    number of hosts. facts: called when the plant is closed, for the ending's further figures.
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
        paused: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        limit: float | None = None,
        to_the_limit: bool = False,
        header: Header | None = None,
        extensions: Sequence[LoopExtension] = (),
        scaling: ScalingRules = NO_RULES,
        facts: Callable[[], Mapping[str, float | str]] = dict,
    ) -> None:
        self._plant = plant
        self._policy = policy
        self._monitor = monitor
        self._period = max(period, monitor)
        self._observers = list(observers)
        self._observe_only, self._paused = observe_only, paused
        self._clock = plant.clock if clock is None else clock
        self._limit = math.inf if limit is None else limit
        self._to_the_limit = to_the_limit
        self._header = header or describe_run(plant.context, policy=policy.name, plant="simulated", started=0.0)
        self._extensions = tuple(extensions)
        self._facts = facts
        self._stopped = ""
        self._round = 0
        self._last: Decision | None = None
        self._memory: Any = None
        self._figured: tuple[Observation, dict[str, float]] | None = None
        self._notes: list[str] = []
        self._late: _Late | None = None
        self._faults: list[Fault] = []
        self._lacked = Lacked()
        self._alarms = Alarms(self._clock.now)
        self._scaling = Scaling(scaling, self._header.started)
        self._blind = 0
        self._leases: Mapping[str, Lease] = {}
        self._failed_plans = 0
        self._logged = ""
        self._backoff = BackOff()
        self._under_way: dict[Action, Entry] = {}
        self._journal = Journaling(Journal() if journal is None else journal, self._alarms, self._clock.now)

    def stop(self, reason: str = "stopped on request") -> None:
        """End the run within a monitoring period; safe in a signal handler and from another thread."""
        self._stopped = reason

    def run(self) -> Ending:
        """Run to the end, close the plant, and return how it ended.

        What runs does not end because its controller cannot see, plan or write: the plan then stays as it is, an alarm
        stands, and the next round tries again. An ElastreamError of `plant.finished`, as a query has failed, ends the run
        as failed with that sentence as its reason, an interrupt from the keyboard ends it as stopped. An exception of the
        clock is a bug: observers receive a failed ending, and the exception is raised.
        """
        status, reason = "failed", ""
        bug: Exception | None = None
        self._emit(lambda each: each.started(self._header))
        try:
            status, reason = self._cycle()
        except KeyboardInterrupt:
            status, reason = "stopped", "interrupted from the keyboard"
        except Exception as error:
            log.error("run failed: %s", error, exc_info=error)
            reason = in_one_line(error)
            bug = None if isinstance(error, ElastreamError) else error
        except BaseException:
            self._plant.close()
            raise
        ended = self._clock.now()
        facts: Mapping[str, float | str] = {}
        try:
            self._plant.close()
            facts = dict(self._facts())
        except Exception as error:
            log.error("plant failed to close: %s", error, exc_info=error)
            status, reason = "failed", reason or in_one_line(error)
            bug = bug or (None if isinstance(error, ElastreamError) else error)
        self._journal.close()
        ending = Ending(status, ended, reason, tuple(self._plant.ledger), facts)
        self._emit(lambda each: each.ended(ending))
        if bug is not None:
            raise bug
        return ending

    def _cycle(self) -> tuple[str, str]:
        start = self._clock.now()
        monitor_at = plan_at = start
        end = start + self._limit
        while True:
            observation = self._observe()
            over = self._finished or bool(self._stopped) or self._clock.now() >= end
            if observation is not None:
                due = self._clock.now() >= plan_at
                self._hold_round(observation, plans=(due or self._urgent(observation)) and not over)
                if due and not over:
                    plan_at = self._next(plan_at, self._period, "planning round")
            if over:
                break
            monitor_at = self._next(monitor_at, self._monitor, "observation")
            self._clock.sleep_until(min(monitor_at, end))
        if observation is not None:
            self._complete(observation)
        if self._finished:
            return "finished", ""
        return "stopped", self._stopped or f"{LIMITED} {self._limit:g} s was reached"

    def _hold_round(self, observation: Observation, plans: bool) -> None:
        """Conclude what is under way, and plan; a fault of either freezes the plan until the next round."""
        try:
            self._follow(observation)
            if plans:
                self._plan(observation)
        except Exception as error:
            said = f"the controller failed, what runs goes on as planned last: {in_one_line(error)}"
            self._fault(ROUND, said, error)
            self._alarms.sound(ROUND, said, error)
        else:
            if plans:
                self._alarms.clear(ROUND)

    @property
    def _finished(self) -> bool:
        return not self._to_the_limit and self._plant.finished

    def _urgent(self, observation: Observation) -> bool:
        return any(extension.urgent(observation) for extension in self._extensions)

    def _next(self, due: float, every: float, what: str) -> float:
        """The first multiple of `every` behind `due` that is not past; missed ones are skipped, not queued, and noted."""
        ahead = max(1, math.ceil((self._clock.now() - due) / every - ROUNDING))
        if ahead > 1:
            self._notes.append(f"{counted(ahead - 1, what)} skipped: the last took too long")
        return due + ahead * every

    def _observe(self) -> Observation | None:
        """Return what the plant observes under rules and extensions; None if the plant fails to observe."""
        try:
            observation = self._plant.observe()
        except Exception as error:
            self._blind += 1
            said = in_one_line(error)
            self._fault("plant", f"observation failed: {said}", error)
            if self._blind == BLIND_LIMIT:
                said = f"{BLIND_LIMIT} observations in a row failed, what runs goes on as planned last: {said}"
                self._alarms.sound(BLIND, said, error)
            if self._blind >= BLIND_LIMIT:
                unseen = self._unseen()
                self._emit(lambda each: each.observed(unseen))
            return None
        if self._blind:
            self._blind = 0
            self._alarms.clear(BLIND)
        observation = self._scaling.bounded(observation)
        for extension in self._extensions:
            observation = extension.observed(observation, self._alarms)
        if standing := self._alarms.standing:
            observation = replace(observation, alarms=(*observation.alarms, *standing))
        self._emit(lambda each: each.observed(observation))
        return observation

    def _unseen(self) -> Observation:
        """Return what observers see while the plant cannot be observed: the newest leases, and the alarms."""
        context = self._plant.context
        nothing = Frame(tuple(context.graph.by_name))
        return Observation(
            self._clock.now(), context, nothing, leases=self._leases, alarms=self._alarms.standing, next_host=1
        )

    def _follow(self, observation: Observation) -> None:
        """Conclude accepted actions that are in force, cannot come into force, or took too long."""
        now, lost = self._clock.now(), self._lost(observation)
        self._journal.flush()
        for action, entry in list(self._under_way.items()):
            outcome = action.progress(observation, self._leases)
            if outcome is not None and outcome.status is Status.FAILED:
                reasons = [lost.pop(host) for host in action.fails_without if host in lost]
                outcome = replace(outcome, reason=reasons[0]) if reasons else outcome
            since = entry.history[-1][0]
            waits = action.awaits_batch(observation)
            if outcome is None and not waits and now - since > (patience := self._patience(action)):
                outcome = Outcome(action, Status.FAILED, f"it did not come into force within {patience:.0f} s")
            if outcome is not None:
                del self._under_way[action]
                self._journal.note(entry, ActionState(outcome.status.value), outcome.reason)
                if outcome.status is Status.FAILED:
                    self._notes.append(f"{action.describe()} failed: {outcome.reason}")
                self._learn(outcome, now)
        self._notes += lost.values()
        self._notes += self._plant.incidents()
        self._leases = observation.leases

    def _lost(self, observation: Observation) -> dict[str, str]:
        """That a host which was on its way or at work is lost, and why, without what its log says of it; by host."""
        gone = self._leases.keys() - observation.leases.keys()
        gone = {host for host in gone if self._leases[host].state is not HostState.REQUESTED}
        lost = (each for each in self._plant.ledger if each.host in gone and each.state is HostState.LOST) if gone else ()
        return {
            each.host: ": ".join(filter(None, (f"host {each.host} was lost", each.note.split("; ")[0]))) for each in lost
        }

    def _left_late(self, observation: Observation, plan: Plan) -> str:
        """That ever more records are late, and the policy has neither done nor said anything about it for LEFT seconds.

        Even the fewest that waited in a while are then more than in the one before, as what waits rises and falls with
        batches.
        """
        late, waits, now = unanswered(observation, plan), observation.backlog, observation.time
        if not late or observation.coming or any(action.relieves for action in self._under_way):
            self._late = None
            return ""
        seen = self._late or _Late(now, waits)
        longest = max([seen.longest, *(batch.seconds for batch in observation.batches)])
        seen = replace(seen, fewest=min(seen.fewest, waits), longest=longest)
        if now - seen.since >= max(LEFT / 2, 2 * longest):
            seen = _Late(now, waits, longest, seen.fewest, grows=seen.fewest > seen.before)
        self._late = seen
        return f"{late}: {self._policy.name} proposes nothing" if seen.grows else ""

    def _patience(self, action: Action) -> float:
        return max(PATIENCE, 3 * action.start_time(self._plant.context))

    def _plan(self, observation: Observation) -> None:
        self._complete(observation)
        began = self._clock.now()
        plan = self._ask(observation)
        took = self._clock.now() - began
        left = self._left_late(observation, plan)
        limited = "" if self._failed_plans else bound(observation, plan) or left
        proposals = [Proposal(action, self._policy.name) for action in plan.actions]
        proposals += [replace(p, refused=p.refused or "it was not granted") for p in plan.refused]
        for extension in self._extensions:
            proposals += extension.proposals(observation, plan.actions, self._alarms)
        proposals += [Proposal(action, "journal") for action in self._journal.left_over]
        vital = not observation.working and not observation.coming  # without a host nothing else gets on
        waiting = [replace(p, refused=p.refused or self._backoff.refusal(p.action, began, vital=vital)) for p in proposals]
        first = not self._round
        limits = self._scaling.limits(plan.actions, plan.hosts, observation, first)
        decided = arbitrate(waiting, observation, self._under_way, first, limits)
        mode = "observe only" if self._observe_only else "paused" if self._paused() else ""
        if mode:
            decided = tuple(replace(p, refused=p.refused or mode) for p in decided)
        outcomes = self._carry_out([p for p in decided if not p.refused])
        self._scaling.done(outcomes, observation, self._clock.now())
        self._drop_left_over(decided)
        self._round += 1
        decision = Decision(
            self._round,
            observation.time,
            self._policy.name,
            self._figures(observation),
            decided,
            outcomes,
            {name: float(value) for name, value in plan.predicted.items()},
            seconds=took,
            note="; ".join(filter(None, [*self._notes, *plan.remarks, limited, *map(str, observation.implausible)])),
            faults=tuple(self._faults),
            unknown=self._lacked.after(plan.unknown, observation.time),
            guards=observation.guards,
            hosts=self._scaling.recommended,
            mode=mode,
        )
        self._notes.clear()
        self._faults.clear()
        self._last = decision
        self._emit(lambda each: each.decided(decision))

    def _ask(self, observation: Observation) -> Plan:
        """The policy's plan; if the policy fails, one without actions, and its memory is unchanged."""
        source = f"policy {self._policy.name}"
        try:
            plan = checked(self._policy.plan(observation, self._memory))
        except Exception as error:
            self._failed_plans += 1
            self._fault(source, f"{source} failed, none of its actions was tried: {in_one_line(error)}", error)
            if self._failed_plans >= ALARMING:
                self._notes.append(f"{source} failed {self._failed_plans} times in a row; no new actions")
                # The same text while the alarm is active: metrics have a series for each text.
                self._alarms.sound(source, f"{source} failed {ALARMING} times in a row; no new actions", error)
            return Plan()
        if self._failed_plans:
            self._failed_plans = 0
            self._alarms.clear(source)
        self._memory = plan.memory
        return plan

    def _carry_out(self, granted: Sequence[Proposal]) -> tuple[Outcome, ...]:
        """Do all in this order, all switches together where the first of them stands: they are one composition."""
        switches = [each for each in granted if isinstance(each.action, Switch)]
        outcomes: list[Outcome] = []
        for proposal in granted:
            if not isinstance(proposal.action, Switch):
                outcomes += self._try([proposal])
            elif proposal is switches[0]:
                outcomes += self._try(switches)
        return tuple(outcomes)

    def _try(self, proposals: Sequence[Proposal]) -> list[Outcome]:
        """Journal one action, or all switches of a plan; apply; journal what came of each."""
        actions = [proposal.action for proposal in proposals]
        entries = self._journal.begin(proposals)
        if not entries:
            return [Outcome(action, Status.FAILED, UNWRITTEN) for action in actions]
        try:
            switches = [action for action in actions if isinstance(action, Switch)]
            outcomes = list(self._plant.switch(switches)) if switches else [self._plant.apply(actions[0])]
            if [outcome.action for outcome in outcomes] != actions:
                raise TypeError(f"{counted(len(outcomes), 'outcome')} of {counted(len(actions), 'action')}")
        except Exception as error:
            outcomes = [Outcome(action, Status.FAILED, in_one_line(error)) for action in actions]
            said = f"{' and '.join(each.describe() for each in actions)} raised {in_one_line(error)}"
            self._fault("plant", said, error, noted=False)
        now = self._clock.now()
        for entry, outcome in zip(entries, outcomes, strict=True):
            self._tell(entry, outcome, now)
        return outcomes

    def _tell(self, entry: Entry, outcome: Outcome, now: float) -> None:
        """Journal what came of an action. One that was accepted is under way, in place of earlier ones on its subject."""
        action = outcome.action
        entry = self._journal.note(entry, ActionState(outcome.status.value), outcome.reason)
        if outcome.succeeded:
            for other in [other for other in self._under_way if other.subject == action.subject]:
                overtaken = self._under_way.pop(other)
                self._journal.note(overtaken, ActionState.DROPPED, f"overtaken by '{action.describe()}'")
        if outcome.status is Status.ACCEPTED:
            self._under_way[action] = entry
        self._learn(outcome, now)

    def _learn(self, outcome: Outcome, now: float) -> None:
        if outcome.status is Status.FAILED:
            self._backoff.failed(outcome.action, now, outcome.reason)
        elif outcome.status is Status.DONE:
            self._backoff.succeeded(outcome.action)

    def _drop_left_over(self, decided: Sequence[Proposal]) -> None:
        """Drop an earlier controller's actions that were refused; they are proposed once, in the first round."""
        reasons = {proposal.action: proposal.refused for proposal in decided}
        self._journal.drop_left_over(lambda action: reasons[action])

    def _complete(self, observation: Observation) -> None:
        """Complete the last decision with its actual effect."""
        if self._last is not None and observation.time > self._last.time:
            now = self._figures(observation)
            missing = {name: math.nan for name in self._last.predicted if name not in now}
            completed = self._last.with_actual({**now, **missing})
            self._emit(lambda each: each.decided(completed))
            self._last = None

    def _figures(self, observation: Observation) -> dict[str, float]:
        """The figures for a decision record, found once: one observation completes a round and begins the next."""
        if self._figured is None or self._figured[0] is not observation:
            self._figured = observation, seen(observation)
        return self._figured[1]

    def _fault(self, source: str, said: str, error: BaseException, *, noted: bool = True) -> None:
        """Log a caught error, with its traceback unless it repeats the last, and keep it for the decision record."""
        log.error("%s", said, exc_info=error if said != self._logged else None)
        self._logged = said
        self._faults.append(Fault.of(source, said, error))
        if noted:
            self._notes.append(said)

    def _emit(self, event: Callable[[Observer], None]) -> None:
        for observer in tuple(self._observers):
            try:
                event(observer)
            except Exception as error:
                self._observers.remove(observer)
                name = type(observer).__name__
                said = f"{name} failed and receives no more events: {in_one_line(error)}"
                self._notes.append(said)
                self._faults.append(Fault.of(f"observer {name}", said, error))
                self._alarms.sound(f"observer {name}", said, error)  # logs it

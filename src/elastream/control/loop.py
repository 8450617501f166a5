"""Control loop of live and simulated runs: monitor, analyse, plan, execute, record (MAPE-K)."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastream.control.arbitration import BackOff, MissingMetrics, arbitrate, bound_remark, check_plan, lateness_remark
from elastream.control.extension import LoopExtension
from elastream.control.growth import GrowthForecast
from elastream.control.journal import UNWRITTEN_REASON, ActionState, Entry, Journal, JournalWriter
from elastream.control.rollback import RollBack
from elastream.control.scaling import Scaling
from elastream.control.state_hosts import StateHosts
from elastream.control.width import WidthAdvice
from elastream.core.action import Action, LeaseHost, Outcome, Status, Switch
from elastream.core.alarm import Alarms
from elastream.core.decision import Decision, Fault, Proposal
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, Lease
from elastream.core.observation import MicroBatch, Observation
from elastream.core.plant import Clock, Plan, Plant, Policy
from elastream.core.scaling import APPROVAL, NO_RULES, ScalingRules, rule_of
from elastream.core.wording import counted
from elastream.errors import ElastreamError, in_one_line
from elastream.policies.common.measures import decision_figures
from elastream.recording.observer import LIMITED, Ending, Header, Observer, describe_run
from elastream.units import ROUNDING

log = logging.getLogger(__name__)

# Source of the alarm about a plant that cannot be observed.
OBSERVATION_ALARM = "observation"
# Failed observations in a row that raise an alarm.
FAILED_OBSERVATIONS_LIMIT = 10
# Source of the alarm about a round that failed.
ROUND_ALARM = "controller"
# Source of the alarm about a lease that waits for approval.
APPROVAL_ALARM = "approval"
# Failed plans in a row that raise an alarm.
FAILED_PLANS_LIMIT = 3
# Grace period before reporting that lateness grows and the policy proposes nothing: its last actions may need time.
LATENESS_GRACE_S = 30.0
# Time for an accepted action to come into force; a lease has three times the start-up time of its type if longer.
ACTION_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Lateness:
    since: float  # its start (seconds)
    fewest: float  # least backlog in the window
    longest: float = 0.0  # longest micro-batch (seconds)
    before: float = math.inf  # least backlog in the previous window
    grows: bool = False  # True if the last window had more than its predecessor


class Loop:
    """Runs a policy against a plant until load, limit or `stop` ends it.

    Overdue rounds are skipped. An observer that raises is dropped, with an alarm.

    Args:
        monitor: Time between observations (seconds).
        period: Time between plans (seconds).
        journal: In memory by default.
        observe_only: True: plan and record without applying.
        paused: Returns True in rounds that only plan.
        clock: By default the plant's.
        limit: Time of the stop (seconds).
        to_the_limit: True: continue after the load until the limit.
        remarks: For people, shown with the first decision.
        figures: False: decisions carry neither figures of their observations nor later ones.
        roll_back: False: bad decisions of the policy stay.
    """

    def __init__(  # noqa: PLR0913
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
        remarks: Sequence[str] = (),
        figures: bool = True,
        roll_back: bool = True,
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
        advice = () if any(isinstance(each, WidthAdvice) for each in extensions) else (WidthAdvice(),)
        self._state_hosts = StateHosts()
        self._extensions = (GrowthForecast(), self._state_hosts, *advice, *extensions)
        self._facts = facts
        self._with_figures = figures
        self._stopped = ""
        self._round = 0
        self._last: Decision | None = None
        self._memory: Any = None
        self._figured: tuple[Observation, dict[str, float]] | None = None
        self._notes = list(remarks)
        self._lateness: _Lateness | None = None
        self._faults: list[Fault] = []
        self._missing = MissingMetrics()
        self._alarms = Alarms(self._clock.now)
        self._scaling = Scaling(scaling, self._header.started)
        self._failed_observations = 0
        self._unplanned: list[MicroBatch] = []  # of observations since the last planning round
        self._leases: Mapping[str, Lease] = {}
        self._failed_plans = 0
        self._logged = ""
        self._backoff = BackOff()
        self._under_way: dict[Action, Entry] = {}
        journal = Journal() if journal is None else journal
        self._rollback = RollBack(journal.entries if roll_back else (), active=roll_back)
        self._journal = JournalWriter(journal, self._alarms, self._clock.now)

    def stop(self, reason: str = "stopped on request") -> None:
        """End the run within a monitoring period, from any thread or signal handler."""
        self._stopped = reason

    def run(self) -> Ending:
        """Run to the end, close the plant, and return the ending.

        Faults freeze the plan and raise an alarm. An ElastreamError of `plant.finished` fails the run.

        Raises:
            Exception: A bug, after observers have received a failed ending.
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
                urgent = any(extension.urgent(observation) for extension in self._extensions)
                self._run_round(observation, plans=(due or urgent) and not over)
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

    def _run_round(self, observation: Observation, plans: bool) -> None:
        try:
            self._follow(observation)
            if not plans:
                self._unplanned += observation.batches
            elif self._unplanned:
                earlier, self._unplanned = self._unplanned, []
                self._plan(replace(observation, batches=(*earlier, *observation.batches)))
            else:
                self._plan(observation)
        except Exception as error:
            message = f"the controller failed, queries continue under the last plan: {in_one_line(error)}"
            self._fault(ROUND_ALARM, message, error)
            self._alarms.sound(ROUND_ALARM, message, error)
        else:
            if plans:
                self._alarms.clear(ROUND_ALARM)

    @property
    def _finished(self) -> bool:
        return not self._to_the_limit and self._plant.finished

    def _next(self, due: float, every: float, what: str) -> float:
        ahead = max(1, math.ceil((self._clock.now() - due) / every - ROUNDING))
        if ahead > 1:
            self._notes.append(f"{counted(ahead - 1, what)} skipped: the last took too long")
        return due + ahead * every

    def _observe(self) -> Observation | None:
        try:
            observation = self._plant.observe()
        except Exception as error:
            self._failed_observations += 1
            message = in_one_line(error)
            self._fault("plant", f"observation failed: {message}", error)
            if self._failed_observations == FAILED_OBSERVATIONS_LIMIT:
                failures = f"{FAILED_OBSERVATIONS_LIMIT} observations in a row failed"
                message = f"{failures}, queries continue under the last plan: {message}"
                self._alarms.sound(OBSERVATION_ALARM, message, error)
            if self._failed_observations >= FAILED_OBSERVATIONS_LIMIT:
                unseen = self._empty_observation()
                self._emit(lambda each: each.observed(unseen))
            return None
        if self._failed_observations:
            self._failed_observations = 0
            self._alarms.clear(OBSERVATION_ALARM)
        observation = self._scaling.bounded(observation)
        for extension in self._extensions:
            observation = extension.observed(observation, self._alarms)
        if active := self._alarms.active:
            observation = replace(observation, alarms=(*observation.alarms, *active))
        self._emit(lambda each: each.observed(observation))
        return observation

    def _empty_observation(self) -> Observation:
        context = self._plant.context
        nothing = Frame(tuple(context.graph.by_name))
        return Observation(
            self._clock.now(), context, nothing, leases=self._leases, alarms=self._alarms.active, next_host=1
        )

    def _follow(self, observation: Observation) -> None:
        now, lost = self._clock.now(), self._lost(observation)
        self._journal.flush()
        for action, entry in list(self._under_way.items()):
            outcome = action.progress(observation, self._leases)
            if outcome is not None and outcome.status is Status.FAILED:
                reasons = [lost.pop(host) for host in action.fails_without if host in lost]
                outcome = replace(outcome, reason=reasons[0]) if reasons else outcome
            since = entry.history[-1][0]
            waits = action.is_waiting(observation)
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
        self._rollback.observed(observation, self._under_way)

    def _lost(self, observation: Observation) -> dict[str, str]:
        missing = self._leases.keys() - observation.leases.keys()
        missing = {host for host in missing if self._leases[host].state is not HostState.REQUESTED}
        lost = (
            (each for each in self._plant.ledger if each.host in missing and each.state is HostState.LOST)
            if missing
            else ()
        )
        return {
            each.host: ": ".join(filter(None, (f"host {each.host} was lost", each.note.split("; ")[0]))) for each in lost
        }

    def _unanswered_lateness(self, observation: Observation, plan: Plan) -> str:
        """Return a remark if lateness grows for LATENESS_GRACE_S without action or explanation, or ""."""
        late = "" if observation.explanations else lateness_remark(observation, plan)
        waits, now = observation.backlog, observation.time
        if not late or observation.coming or any(action.relieves for action in self._under_way):
            self._lateness = None
            return ""
        window = self._lateness or _Lateness(now, waits)
        longest = max([window.longest, *(batch.seconds for batch in observation.batches)])
        window = replace(window, fewest=min(window.fewest, waits), longest=longest)
        if now - window.since >= max(LATENESS_GRACE_S / 2, 2 * longest):
            window = _Lateness(now, waits, longest, window.fewest, grows=window.fewest > window.before)
        self._lateness = window
        return f"{late}: {self._policy.name} proposes nothing" if window.grows else ""

    def _patience(self, action: Action) -> float:
        return max(ACTION_TIMEOUT_S, 3 * action.start_time(self._plant.context))

    def _plan(self, observation: Observation) -> None:
        self._complete(observation)
        began = self._clock.now()
        vital = not observation.working and not observation.coming  # without a host nothing else gets on
        observation, scarcity = self._without_scarce(observation, began, vital=vital)
        plan = self._plan_of_policy(observation)
        took = self._clock.now() - began
        left = self._unanswered_lateness(observation, plan)
        limited = "" if self._failed_plans else bound_remark(observation, plan) or left
        rollback = self._rollback
        proposals = [*rollback.proposals(observation, plan.actions)]
        self._journal.note_undone(rollback.verdicts)
        proposals += [Proposal(action, self._policy.name, rollback.refusal(action, observation)) for action in plan.actions]
        proposals += [replace(p, refused=p.refused or "it was not granted") for p in plan.refused]

        def judged(each: Iterable[Proposal]) -> list[Proposal]:
            return [replace(p, refused=p.refused or self._backoff.refusal(p.action, began, vital=vital)) for p in each]

        waiting = judged(proposals)
        planned = [p.action for p in waiting if not p.refused]
        for extension in self._extensions:
            waiting += judged(extension.proposals(observation, planned, self._alarms))
        waiting += judged(Proposal(action, "journal") for action in self._journal.left_over)
        first = not self._round
        limits = self._scaling.limits(plan.actions, plan.hosts, observation, first, self._state_hosts.needed)
        decided = arbitrate(waiting, observation, self._under_way, first, limits)
        self._update_approval_alarm(decided)
        mode = "observe only" if self._observe_only else "paused" if self._paused() else ""
        if mode:
            decided = tuple(replace(p, refused=p.refused or mode) for p in decided)
        granted = [p for p in decided if not p.refused]
        outcomes = self._apply_all(granted)
        own = [p for p in granted if p.by == self._policy.name]
        rollback.decided(self._round + 1, own, outcomes, observation, plan.predicted)
        self._scaling.done(outcomes, observation, self._clock.now())
        self._journal.drop_left_over({proposal.action: proposal.refused for proposal in decided})
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
            note="; ".join(
                filter(
                    None,
                    [
                        *self._notes,
                        *observation.explanations,
                        *scarcity,
                        *rollback.remarks,
                        *plan.remarks,
                        limited,
                        *map(str, observation.implausible),
                    ],
                )
            ),
            faults=tuple(self._faults),
            unknown=self._missing.after(plan.unknown, observation.time),
            guards=observation.guards,
            hosts=self._scaling.recommended,
            mode=mode,
        )
        self._notes.clear()
        self._faults.clear()
        self._last = decision
        self._emit(lambda each: each.decided(decision))

    def _update_approval_alarm(self, decided: Iterable[Proposal]) -> None:
        if any(rule_of(each.refused) == APPROVAL for each in decided):
            self._alarms.sound(APPROVAL_ALARM, "a lease waits until someone approves it on the live page")
        else:
            self._alarms.clear(APPROVAL_ALARM)

    def _without_scarce(self, observation: Observation, now: float, *, vital: bool) -> tuple[Observation, list[str]]:
        kinds = observation.context.host_types.values()
        leases = [LeaseHost("", kind.name, kind.region) for kind in kinds]
        given_up = [each for each in leases if self._backoff.gives_up(each)]
        refusals = {each.type: self._backoff.refusal(each, now, vital=vital) for each in given_up}
        scarce = frozenset(name for name, refusal in refusals.items() if refusal)
        if not scarce or len(scarce) == len(leases):
            return observation, []
        context = replace(observation.context, scarce=scarce)
        return replace(observation, context=context), [f"lease of {name}: {refusals[name]}" for name in sorted(scarce)]

    def _plan_of_policy(self, observation: Observation) -> Plan:
        source = f"policy {self._policy.name}"
        try:
            plan = check_plan(self._policy.plan(observation, self._memory))
        except Exception as error:
            self._failed_plans += 1
            self._fault(source, f"{source} failed, none of its actions was tried: {in_one_line(error)}", error)
            if self._failed_plans >= FAILED_PLANS_LIMIT:
                self._notes.append(f"{source} failed {self._failed_plans} times in a row; no new actions")
                # The same text while the alarm is active: metrics have a series for each text.
                self._alarms.sound(source, f"{source} failed {FAILED_PLANS_LIMIT} times in a row; no new actions", error)
            return Plan()
        if self._failed_plans:
            self._failed_plans = 0
            self._alarms.clear(source)
        self._memory = plan.memory
        return plan

    def _apply_all(self, granted: Sequence[Proposal]) -> tuple[Outcome, ...]:
        switches = [each for each in granted if isinstance(each.action, Switch)]
        outcomes: list[Outcome] = []
        for proposal in granted:
            if not isinstance(proposal.action, Switch):
                outcomes += self._apply([proposal])
            elif proposal is switches[0]:
                outcomes += self._apply(switches)
        return tuple(outcomes)

    def _apply(self, proposals: Sequence[Proposal]) -> list[Outcome]:
        actions = [proposal.action for proposal in proposals]
        entries = self._journal.begin(proposals)
        if not entries:
            return [Outcome(action, Status.FAILED, UNWRITTEN_REASON) for action in actions]
        try:
            switches = [action for action in actions if isinstance(action, Switch)]
            outcomes = list(self._plant.switch(switches)) if switches else [self._plant.apply(actions[0])]
            if [outcome.action for outcome in outcomes] != actions:
                raise TypeError(f"{counted(len(outcomes), 'outcome')} of {counted(len(actions), 'action')}")
        except Exception as error:
            outcomes = [Outcome(action, Status.FAILED, in_one_line(error)) for action in actions]
            message = f"{' and '.join(each.describe() for each in actions)} raised {in_one_line(error)}"
            self._fault("plant", message, error, noted=False)
        now = self._clock.now()
        for entry, outcome in zip(entries, outcomes, strict=True):
            self._conclude(entry, outcome, now)
        return outcomes

    def _conclude(self, entry: Entry, outcome: Outcome, now: float) -> None:
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

    def _complete(self, observation: Observation) -> None:
        if self._with_figures and self._last is not None and observation.time > self._last.time:
            now = self._figures(observation)
            missing = {name: math.nan for name in self._last.predicted if name not in now}
            completed = self._last.with_actual({**now, **missing})
            self._emit(lambda each: each.decided(completed))
            self._last = None

    def _figures(self, observation: Observation) -> dict[str, float]:
        if not self._with_figures:
            return {}
        if self._figured is None or self._figured[0] is not observation:
            self._figured = observation, decision_figures(observation)
        return self._figured[1]

    def _fault(self, source: str, message: str, error: BaseException, *, noted: bool = True) -> None:
        log.error("%s", message, exc_info=error if message != self._logged else None)
        self._logged = message
        self._faults.append(Fault.of(source, message, error))
        if noted:
            self._notes.append(message)

    def _emit(self, event: Callable[[Observer], None]) -> None:
        for observer in tuple(self._observers):
            try:
                event(observer)
            except Exception as error:
                self._observers.remove(observer)
                name = type(observer).__name__
                message = f"{name} failed and receives no more events: {in_one_line(error)}"
                self._notes.append(message)
                self._faults.append(Fault.of(f"observer {name}", message, error))
                self._alarms.sound(f"observer {name}", message, error)  # logs it

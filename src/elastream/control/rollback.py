"""Roll-back of bad decisions, for any policy.

A decision is bad if the objective is worse than predicted beyond the usual error in three rounds in a row, at an unchanged
load. The objective is latency against its target, then cost per record: its cores times the price of a core. Both should
stay as in the last rounds, unless the policy predicts a longer latency. A switch predicts the cores of its alternates, a
lease the declared speed of its type. The usual error is a robust scale of earlier errors. Unknown figures are never worse.

A refusal lasts `FIRST_REFUSAL_S`, and twice as long if the action is undone again soon; a refusal to remove hosts ends
early if the load changes or a host is lost. Another type is leased in place of a refused lease. Refusals survive a resumed
run.
"""

import math
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from statistics import NormalDist, fmean, median

from elastream.control.journal import ActionState, Entry
from elastream.core.action import (
    Action,
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    Outcome,
    ReleaseHost,
    SetKeyTable,
    SetParallelism,
    SetTokens,
    Switch,
    SwitchAlternate,
    SwitchEdge,
)
from elastream.core.decision import Proposal
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Observation
from elastream.policies.common.alternates import CompositionWork, Costs
from elastream.policies.common.measures import source_sum, tasks_on
from elastream.units import format_duration

# Proposer in decision records.
BY = "roll-back"
# Beginning of the remark about a decision that is undone.
ROLLED_BACK = "rolled back: "

# Rounds as predicted after which a decision is good, and rounds in which an undo is tried.
TRIAL_ROUNDS, UNDO_ROUNDS = 10, 20
# Seconds of the first refusal.
FIRST_REFUSAL_S = 300.0
# Rounds that make a prediction, and observations that make the level of the load.
ROUNDS, LEVEL = 3, 10
# Most and fewest errors behind a usual error.
ERRORS, LEAST_ERRORS = 100, 5
# Least relative changes that count: of latency and cost, of the load, of the speed of earlier hosts.
LEAST_ERROR, LEAST_LOAD_CHANGE, LEAST_SPEED_CHANGE = 0.1, 0.02, 0.05
# Least relative excess of a declared speed over the measured one.
LEAST_SLOWNESS = 0.25
# Processing has stopped if a smaller part of the arriving records passes.
PASSING = 0.1
# Actions of a decision that its remark names.
SHOWN = 3
# Late records recover if latency falls below this part of the earlier one.
RECOVERING = 0.95


class State(StrEnum):
    PREDICTED = "predicted"
    SUSPECTED_1 = "suspected 1"
    SUSPECTED_2 = "suspected 2"
    SUSPECTED_3 = "suspected 3"
    GOOD = "good"
    EXCUSED = "excused"
    FAILED = "failed"
    UNDONE = "undone"
    KEPT = "kept"


class Evidence(StrEnum):
    """Evidence of one round about a decision."""

    UNKNOWN = "unknown"
    AS_PREDICTED = "as predicted"
    WORSE = "worse"
    LASTED = "as predicted for long"
    OVERTAKEN = "a later decision is in force"
    CHANGED = "something else changed"
    NOT_IN_FORCE = "no action came into force"
    REVERSED = "reversed"
    NO_UNDO = "nothing can be undone"


# | state | this round | next | reason |
# | --- | --- | --- | --- |
# | predicted | it is not in force, or a figure is unknown | predicted | nothing to judge |
# | predicted | none of its actions came into force | failed | nothing to undo |
# | predicted | as predicted | predicted | harm may show later |
# | predicted | as predicted for `TRIAL_ROUNDS` rounds and twice the target latency | good | it kept its promise |
# | predicted | a later decision comes into force | good | later harm is the later one's |
# | predicted | worse | suspected 1 | one round may be noise |
# | suspected 1, 2 | as predicted | predicted | only rounds in a row count |
# | suspected 1, 2 | unknown, or late and recovering | the same | neither proof |
# | suspected 1, 2 | worse | suspected 2, 3 | after three rounds it is undone, and the same action is refused |
# | predicted, suspected 1, 2 | load, speeds, hosts or composition changed otherwise | excused | not the decision's fault |
# | suspected 3 | its undo is in effect, or the policy acted already | undone | the harm ends |
# | suspected 3 | nothing can be undone for `UNDO_ROUNDS` rounds | kept | an undo would not help |
# | undone | the refusal ends | free | the same action may be tried again |
TRANSITIONS: Mapping[State, Mapping[Evidence, State]] = {
    State.PREDICTED: {
        Evidence.NOT_IN_FORCE: State.FAILED,
        Evidence.LASTED: State.GOOD,
        Evidence.OVERTAKEN: State.GOOD,
        Evidence.WORSE: State.SUSPECTED_1,
        Evidence.CHANGED: State.EXCUSED,
    },
    State.SUSPECTED_1: {
        Evidence.AS_PREDICTED: State.PREDICTED,
        Evidence.LASTED: State.PREDICTED,
        Evidence.WORSE: State.SUSPECTED_2,
        Evidence.CHANGED: State.EXCUSED,
    },
    State.SUSPECTED_2: {
        Evidence.AS_PREDICTED: State.PREDICTED,
        Evidence.LASTED: State.PREDICTED,
        Evidence.WORSE: State.SUSPECTED_3,
        Evidence.CHANGED: State.EXCUSED,
    },
    State.SUSPECTED_3: {
        Evidence.REVERSED: State.UNDONE,
        Evidence.NO_UNDO: State.KEPT,
    },
    State.GOOD: {},
    State.EXCUSED: {},
    State.FAILED: {},
    State.UNDONE: {},
    State.KEPT: {},
}


def next_state(state: State, evidence: Evidence) -> State:
    """Return the state after a round; the same if the table has no edge."""
    return TRANSITIONS[state].get(evidence, state)


class UsualError:
    """Largest usual error: a multiple of a quantile of the relative errors of earlier rounds.

    Args:
        least: Least relative error that is unusual.
        quantile: Part of the errors below the quantile.
        deviations: Standard deviations of a normal error at the bound.
    """

    def __init__(self, least: float, quantile: float, deviations: float = 3.0) -> None:
        self._least, self._quantile = math.log1p(least), quantile
        self._multiple = deviations / NormalDist().inv_cdf((1 + quantile) / 2)
        self._errors: deque[float] = deque(maxlen=ERRORS)
        self._bound: float | None = None

    def add(self, value: float, expected: float) -> None:
        if value > 0 and expected > 0:
            self._errors.append(abs(math.log(value / expected)))
            self._bound = None

    @property
    def bound(self) -> float:
        """Return the largest usual error (difference of logarithms); inf while unknown."""
        if len(self._errors) < LEAST_ERRORS:
            return math.inf
        if self._bound is None:
            ordered = sorted(self._errors)
            self._bound = max(self._least, self._multiple * ordered[int(self._quantile * (len(ordered) - 1))])
        return self._bound


def _worse(value: float, expected: float, usual: float) -> bool:
    return value > 0 and expected > 0 and math.log(value / expected) > usual


@dataclass(frozen=True, slots=True)
class Figures:
    """Parts of the objective; NaN if unknown.

    Attributes:
        latency: The longest of 99th percentile, age of the backlog, and time without passing records (seconds).
        cores: Cores of speed 1 that the composition needs per record/s.
    """

    latency: float = math.nan
    cores: float = math.nan


@dataclass(frozen=True, slots=True)
class Trial:
    """A decision on trial.

    Attributes:
        actions: Those with an effect: leases, or others.
        predicted: Cores of switches only, and latency from `begun` on.
        usual: Usual errors at `begun` (differences of logarithms); inf if unknown.
        level: Mean rate before `begun` (records/s); NaN if unknown.
        band: Usual change of the rate (difference of logarithms); inf if unknown.
        begun: Time of its first effect, or of its last lease; inf before.
        since: Time at which all actions are in force; inf before.
        rates: Number and sum of the rates from `begun` on.
        fresh: True if a micro-batch begun under it was committed since the last evidence, or there are none.
        changed: True if something else changed.
        tries: Rounds in which an undo was tried.
    """

    round: int
    actions: tuple[Action, ...]
    before: Observation
    composition: Composition
    predicted: Figures = Figures()
    usual: Figures = Figures()
    level: float = math.nan
    band: float = math.inf
    begun: float = math.inf
    since: float = math.inf
    rates: tuple[int, float] = (0, 0.0)
    state: State = State.PREDICTED
    rounds: int = 0
    last: float = math.nan
    fresh: bool = False
    changed: bool = False
    why: str = ""
    tries: int = 0

    @property
    def open(self) -> bool:
        return bool(TRANSITIONS[self.state])

    @property
    def leased(self) -> tuple[LeaseHost, ...]:
        return tuple(each for each in self.actions if isinstance(each, LeaseHost))

    @property
    def removed(self) -> tuple[str, ...]:
        return tuple(each.host for each in self.actions if isinstance(each, DrainHost | ReleaseHost))

    def describe(self) -> str:
        first = ", ".join(each.describe() for each in self.actions[:SHOWN])
        more = f" and {len(self.actions) - SHOWN} more" if len(self.actions) > SHOWN else ""
        return f"round {self.round} ({first}{more})"

    def elsewhere(self, rate: float, observation: Observation) -> bool:
        return self._other_load(rate) or self._other_speeds(observation) or self._recomposed(observation.composition)

    def _other_load(self, rate: float) -> bool:
        if not self.level > 0 or math.isinf(self.band):
            return True  # no load to compare with
        if rate >= 0 and not _within(rate, self.level, self.band):
            return True
        number, total = self.rates
        # A difference has twice the variance of a rate, and means of n and LEVEL rates have 1 / n and 1 / LEVEL of it.
        usual = max(math.log1p(LEAST_LOAD_CHANGE), self.band * math.sqrt((1 / max(number, 1) + 1 / LEVEL) / 2))
        return number > 0 and not _within(total / number, self.level, usual)

    def _other_speeds(self, observation: Observation) -> bool:
        both = [host for host in self.before.working if host in observation.leases]
        capacity, before = observation.cores.of(both), self.before.cores.of(both)
        return abs(capacity - before) > LEAST_SPEED_CHANGE * before

    def _recomposed(self, now: Composition) -> bool:
        was = self.composition
        return (now.alternates, now.choices, now.tables, now.code) != (was.alternates, was.choices, was.tables, was.code)


def _within(value: float, level: float, band: float) -> bool:
    return value > 0 and abs(math.log(value / level)) <= band


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of an action that was undone.

    Attributes:
        at: Time of the undo (seconds).
        of_hosts: True for removals of hosts; another load or a lost host ends their refusal.
        level, band: As in `Trial`.
    """

    at: float
    seconds: float
    why: str
    of_hosts: bool
    level: float = math.nan
    band: float = math.nan

    @property
    def until(self) -> float:
        return self.at + self.seconds

    def other_load(self, rate: float) -> bool:
        return rate >= 0 and self.level > 0 and not _within(rate, self.level, self.band)


def refusal_key(action: Action) -> Hashable:
    """Return what a refusal covers: all removals of hosts, a type, all moves of an operator to a host, or one action."""
    match action:
        case DrainHost() | ReleaseHost():
            return "removal"
        case MoveTask(task, host):
            return ("move", task.operator, host)
        case SetParallelism(operator, instances):
            return ("parallelism", operator, instances)
        case _:
            return action.failure_key


def has_effect(action: Action, observation: Observation) -> bool:
    """Return True if the action can worsen the objective, unlike renewals and releases of drained hosts."""
    match action:
        case DrainHost(host) | ReleaseHost(host):
            return host in observation.usable
        case SetKeyTable():
            return False  # the user's
        case Switch() | SetParallelism() | SetTokens() | MoveTask() | LeaseHost():
            return True
        case _:
            return False


class RollBack:
    """Trials of the decisions of one run, with undos of bad ones.

    Args:
        entries: Entries of the journal, with earlier undos.
        active: False: no trials and no refusals.
    """

    def __init__(self, entries: Iterable[Entry], *, active: bool = True) -> None:
        self._active = active
        self.trials: tuple[Trial, ...] = ()
        self._refusals: dict[Hashable, Refusal] = {}
        undone = [(entry.history[-1][0], entry) for entry in entries if entry.state is ActionState.UNDONE]
        for at, entry in sorted(undone, key=lambda each: each[0]):
            self._refuse(entry.action, at, entry.reason)
        # A few large errors widen the bounds of the objective, not of the load: in doubt a decision is good.
        self._latency, self._cores = UsualError(LEAST_ERROR, 0.9), UsualError(LEAST_ERROR, 0.9)
        self._speeds = UsualError(LEAST_SLOWNESS, 0.9)
        # Four deviations: few errors early in a run may make the scale too small.
        self._load = UsualError(LEAST_LOAD_CHANGE, 0.5, 4.0)
        self._rates: deque[float] = deque(maxlen=LEVEL)
        self._figures: deque[Figures] = deque(maxlen=ROUNDS)
        self._costs: Costs = {}
        self._leases: Mapping[str, Lease] = {}
        self._leaving: set[str] = set()
        self._batched = False  # True once micro-batches were observed
        self._passed = math.nan  # time at which records last passed
        self.verdicts: list[tuple[Action, str]] = []
        self.remarks: list[str] = []

    # -- every observation ---------------------------------------------------------------------------------------------

    def observed(self, observation: Observation, under_way: Collection[Action]) -> None:
        if not self._active:
            return
        rate = source_sum(observation, Metric.ARRIVAL_RATE)
        lost = self._lost(observation)
        self._batched = self._batched or bool(observation.batches)
        if not observation.overall(Metric.THROUGHPUT) < PASSING * rate:
            self._passed = observation.time
        self.trials = tuple(self._followed(trial, observation, under_way, rate, lost) for trial in self.trials)
        if rate >= 0:
            if self._rates:
                self._load.add(rate, self._rates[-1])
            self._rates.append(rate)
        self._refusals = {
            key: each for key, each in self._refusals.items() if not (each.of_hosts and (lost or each.other_load(rate)))
        }

    def _lost(self, observation: Observation) -> bool:
        before, self._leases = self._leases, observation.leases
        missing = before.keys() - observation.leases.keys()
        lost = any(before[host].state in (HostState.RUNNING, HostState.DRAINING) for host in missing - self._leaving)
        self._leaving -= missing
        return lost

    def _followed(
        self, trial: Trial, observation: Observation, under_way: Collection[Action], rate: float, lost: bool
    ) -> Trial:
        if math.isinf(trial.begun):
            awaited = [each in under_way for each in trial.actions]
            if any(awaited) if trial.leased else all(awaited):
                return trial
            usual = Figures(self._latency.bound, self._cores.bound)
            trial = replace(trial, begun=observation.time, predicted=self._predicted(trial), usual=usual)
            trial = replace(trial, level=self._level, band=self._load.bound)
        if math.isinf(trial.since) and not any(each in under_way for each in trial.actions if _is_awaited(each)):
            in_force = tuple(each for each in trial.actions if not _is_awaited(each) or each.in_force(observation))
            trial = replace(trial, actions=in_force, since=observation.time)
        if rate >= 0:
            trial = replace(trial, rates=(trial.rates[0] + 1, trial.rates[1] + rate))
        changed = trial.changed or lost or trial.elsewhere(rate, observation)
        fresh = trial.fresh or not self._batched or any(each.start >= trial.since for each in observation.batches)
        return replace(trial, changed=changed, fresh=fresh)

    def _predicted(self, trial: Trial) -> Figures:
        latency = self._usual_figures.latency
        return replace(trial.predicted, latency=max(latency, trial.predicted.latency))

    @property
    def _usual_figures(self) -> Figures:
        latencies = [each.latency for each in self._figures if not math.isnan(each.latency)]
        cores = [each.cores for each in self._figures if not math.isnan(each.cores)]
        return Figures(median(latencies or [math.nan]), median(cores or [math.nan]))

    @property
    def _level(self) -> float:
        return fmean(self._rates) if len(self._rates) >= LEAST_ERRORS else math.nan

    # -- every planning round ------------------------------------------------------------------------------------------

    def proposals(self, observation: Observation, planned: Sequence[Action]) -> tuple[Proposal, ...]:
        """Judge the decisions on trial; return undos of bad ones, and leases in place of refused ones.

        `verdicts` and `remarks` are those of this round.
        """
        self.verdicts, self.remarks = [], []
        if not self._active:
            return ()
        now, usual = self._figures_of(observation), self._usual_figures
        if all(trial.state is State.PREDICTED for trial in self.trials):
            self._latency.add(now.latency, usual.latency)
            self._cores.add(now.cores, usual.cores)
        judged = {each.host for trial in self.trials for each in trial.leased}
        for host in observation.usable if len(observation.context.host_types) > 1 else ():
            if host not in judged:
                self._speeds.add(observation.speeds[host], observation.leases[host].type.speed)
        newest = max((trial.begun for trial in self.trials if trial.begun < math.inf), default=-math.inf)
        trials = [self._judged(trial, observation, now, newest) for trial in self.trials]
        self._figures.append(now)
        names = (observation.host_name(n) for n in count(sum(isinstance(each, LeaseHost) for each in planned)))
        actions: list[Action] = []
        for number, trial in enumerate(trials):
            if trial.state is State.SUSPECTED_3:
                undo = self._undo(trial, observation, names)
                actions += undo or ()
                trials[number] = _after_try(trial, undo)
        self.trials = tuple(trial for trial in trials if trial.open)
        actions += self._lease_other_types(planned, observation, names)
        return tuple(Proposal(action, BY) for action in actions)

    def _figures_of(self, observation: Observation) -> Figures:
        rate = sum(self._rates) / len(self._rates) if self._rates else math.nan
        age = observation.backlog / rate if rate > 0 else math.nan
        ages = (observation.overall(Metric.LATENCY_P99), age, observation.time - self._passed)
        latency = max((each for each in ages if each > 0), default=math.nan)
        return Figures(latency, self._cores_needed(observation, observation.composition))

    def _cores_needed(self, observation: Observation, composition: Composition) -> float:
        graph = observation.context.graph
        if not graph.choices and all(len(each.alternates) < 2 for each in graph.operators):
            return math.nan
        work = CompositionWork(observation, self._costs)
        self._costs = work.costs
        rate = math.fsum(work.rates.values())
        complete = all(work.cost(each, composition) >= 0 for each in graph.operators if each.alternates and not each.waits)
        return work.cores(composition) / rate if complete and rate > 0 else math.nan

    def _judged(self, trial: Trial, observation: Observation, now: Figures, newest: float) -> Trial:
        evidence, why = self._evidence(trial, observation, now, newest)
        before, trial = trial.state, replace(trial, state=next_state(trial.state, evidence), why=why or trial.why)
        if evidence in (Evidence.AS_PREDICTED, Evidence.WORSE):
            rounds = trial.rounds + 1 if evidence is Evidence.AS_PREDICTED else 0
            trial = replace(trial, rounds=rounds, fresh=False, last=now.latency)
        if trial.state is State.SUSPECTED_3 is not before:
            self.remarks.append(f"{ROLLED_BACK}{trial.describe()}: {trial.why} for {ROUNDS} rounds at an unchanged load")
            for action in trial.actions:
                self._refuse(action, observation.time, trial.why, trial.level, trial.band)
                self.verdicts.append((action, trial.why))
        return trial

    def _evidence(self, trial: Trial, observation: Observation, now: Figures, newest: float) -> tuple[Evidence, str]:
        if not trial.actions:
            return Evidence.NOT_IN_FORCE, ""
        if trial.changed:
            return Evidence.CHANGED, ""
        if trial.state is State.PREDICTED and trial.begun < newest:
            return Evidence.OVERTAKEN, ""
        if math.isinf(trial.since):
            return Evidence.UNKNOWN, ""
        if _worse(now.cores, trial.predicted.cores, trial.usual.cores):
            why = f"a record needs {now.cores:.3g} core-seconds, not the predicted {trial.predicted.cores:.3g}"
            return Evidence.WORSE, why
        if slow := self._slow(trial, observation):
            return Evidence.WORSE, slow
        target = observation.context.target_latency
        stopped = target is not None and observation.time - self._passed > target
        if not (trial.fresh or stopped) or (target is not None and math.isnan(now.latency)):
            return Evidence.UNKNOWN, ""
        late = target is not None and trial.predicted.latency <= target < now.latency
        idle = all(isinstance(each, LeaseHost) and not tasks_on(observation, each.host) for each in trial.actions)
        if late and not idle and _worse(now.latency, trial.predicted.latency, trial.usual.latency):
            if now.latency < RECOVERING * trial.last:
                return Evidence.UNKNOWN, ""
            expected = format_duration(trial.predicted.latency)
            return Evidence.WORSE, f"records take {format_duration(now.latency)}, not the predicted {expected}"
        lasts = trial.rounds + 1 >= TRIAL_ROUNDS and observation.time - trial.since >= 2 * (target or 0.0)
        return (Evidence.LASTED if lasts else Evidence.AS_PREDICTED), ""

    def _slow(self, trial: Trial, observation: Observation) -> str:
        """Return a sentence if leased hosts are slower than declared, so that another type is cheaper; else ""."""
        leases = observation.leases
        for kind in {leases[each.host].type for each in trial.leased if each.host in leases}:
            speed, other = _shown_speed(observation, kind), self._other_type(observation, kind)
            slow = _worse(kind.speed, speed, self._speeds.bound)
            if slow and other is not None and _price(other, observation) * (1 + LEAST_ERROR) < _price(kind, observation):
                return (
                    f"hosts of type {kind.name} have speed {speed:.2g} instead of {kind.speed:.2g}: {other.name} is cheaper"
                )
        return ""

    # -- undo ----------------------------------------------------------------------------------------------------------

    def _undo(self, trial: Trial, observation: Observation, names: Iterator[str]) -> list[Action] | None:
        """Return the actions that undo a decision; None while they wait; empty if nothing is left."""
        why = f"{ROLLED_BACK}{trial.why}"
        if trial.leased:
            return self._without_leased(trial, observation, names, why)
        undos = (_inverse(each, trial.before, observation, why) for each in trial.actions)
        return [*filter(None, undos), *_restore_hosts(trial, observation, names, why)]

    def _without_leased(
        self, trial: Trial, observation: Observation, names: Iterator[str], why: str
    ) -> list[Action] | None:
        """Return drains of leased hosts, or leases of another type while the others do not suffice; None to wait."""
        leases, cores = observation.leases, observation.cores.each
        leased = {each.host for each in trial.leased}
        bad = [host for host in observation.usable if host in leased]
        if not bad:
            return []
        promised = trial.before.cores.of(trial.before.usable)
        if not trial.predicted.latency <= (trial.before.context.target_latency or math.inf):
            promised += math.fsum([leases[host].type.cores * leases[host].type.speed for host in bad])
        promised *= 1 - LEAST_SPEED_CHANGE
        if math.fsum([cores[host] for host in observation.usable if host not in leased]) >= promised:
            return [DrainHost(host, why=why) for host in bad]
        other = self._other_type(observation, leases[bad[0]].type)
        lacking = promised - math.fsum(
            [cores[host] for host in (*observation.usable, *observation.coming) if host not in leased]
        )
        if other is None or not lacking > 0:
            return None
        return [
            LeaseHost(next(names), other.name, other.region, why=why)
            for _ in range(math.ceil(lacking / (other.cores * other.speed)))
        ]

    def _other_type(self, observation: Observation, kind: HostType) -> HostType | None:
        now = observation.time
        others = [
            each
            for each in observation.context.host_types.values()
            if each.name != kind.name and not self._refused(("lease", each.name, each.region), now)
        ]
        return min(others, key=lambda each: _price(each, observation), default=None)

    # -- refusals ------------------------------------------------------------------------------------------------------

    def refusal(self, action: Action, observation: Observation) -> str:
        key = refusal_key(action)
        if key not in self._refusals or not has_effect(action, observation):
            return ""
        if not observation.working and not observation.coming:
            return ""  # without a host nothing runs
        if isinstance(action, LeaseHost):
            kind = observation.context.host_types.get(action.type)
            if observation.late and (kind is None or self._other_type(observation, kind) is None):
                return ""
        refusal = self._refusals[key]
        if observation.time >= refusal.until:
            return ""
        return f"undone at {refusal.at:.0f} s, refused until {refusal.until:.0f} s: {refusal.why}"

    def _refused(self, key: Hashable, now: float) -> bool:
        return key in self._refusals and now < self._refusals[key].until

    def _refuse(self, action: Action, at: float, why: str, level: float = math.nan, band: float = math.nan) -> None:
        key = refusal_key(action)
        last = self._refusals.get(key)
        if last is not None and last.at == at:
            return
        again = last is not None and at < last.until + last.seconds
        seconds = 2 * last.seconds if last is not None and again else FIRST_REFUSAL_S
        of_hosts = isinstance(action, DrainHost | ReleaseHost)
        self._refusals[key] = Refusal(at, seconds, why, of_hosts, level, band)

    def _lease_other_types(self, planned: Sequence[Action], observation: Observation, names: Iterator[str]) -> list[Action]:
        actions: list[Action] = []
        for action in planned:
            kind = observation.context.host_types.get(action.type) if isinstance(action, LeaseHost) else None
            if kind is None or not self.refusal(action, observation):
                continue
            if (other := self._other_type(observation, kind)) is not None:
                why = f"in place of {action.describe()}, which is refused"
                actions.append(LeaseHost(next(names), other.name, other.region, why=why))
        return actions

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decided(
        self,
        number: int,
        granted: Sequence[Proposal],
        outcomes: Sequence[Outcome],
        before: Observation,
        predicted: Mapping[str, float],
    ) -> None:
        """Begin the trials of a round's decision: one of its leases, which take time, and one of other actions.

        Args:
            granted: Proposals of the policy that were tried.
            outcomes: Outcomes of the round, also of actions by others.
            predicted: The policy's figures; a longer latency replaces that of the last rounds.
        """
        done = {each.action for each in outcomes if each.succeeded}
        self._leaving |= {each.host for each in done if isinstance(each, DrainHost | ReleaseHost)}
        self._leaving -= {each.host for each in done if isinstance(each, CancelDrain)}
        actions = tuple(each.action for each in granted if each.action in done and has_effect(each.action, before))
        if not actions or not self._active:
            return
        composition = before.composition
        for each in done:
            composition = each.onto_composition(composition) if isinstance(each, Switch) else composition
        cores = self._cores_needed(before, composition) if composition is not before.composition else math.nan
        figures = Figures(predicted.get(Metric.LATENCY_P99.value, 0.0), cores)
        leases = tuple(each for each in actions if isinstance(each, LeaseHost))
        others = tuple(each for each in actions if not isinstance(each, LeaseHost))
        parts = ((leases, replace(figures, cores=math.nan)), (others, figures))
        self.trials += tuple(Trial(number, part, before, composition, expected) for part, expected in parts if part)


def _after_try(trial: Trial, undo: Sequence[Action] | None) -> Trial:
    trial = replace(trial, tries=trial.tries + 1)
    if undo is not None and not undo:
        return replace(trial, state=next_state(trial.state, Evidence.REVERSED))
    return replace(trial, state=next_state(trial.state, Evidence.NO_UNDO)) if trial.tries > UNDO_ROUNDS else trial


def _is_awaited(action: Action) -> bool:
    return not isinstance(action, DrainHost | ReleaseHost)


def _price(kind: HostType, observation: Observation) -> float:
    return kind.price_rate / max(kind.cores * _shown_speed(observation, kind), 1e-9)


def _shown_speed(observation: Observation, kind: HostType) -> float:
    speeds = [observation.speeds[host] for host in observation.usable if observation.leases[host].type.name == kind.name]
    return median(speeds or [kind.speed])


def _restore_hosts(trial: Trial, observation: Observation, names: Iterator[str], why: str) -> list[Action]:
    before, host_count = trial.before, len(observation.usable) + len(observation.coming)
    lacking = min(max(len(before.usable) - host_count, 0), len(trial.removed))
    draining = [host for host in trial.removed if host in observation.recoverable][:lacking]
    types = [before.leases[host].type for host in trial.removed if host not in draining][: lacking - len(draining)]
    drains = (CancelDrain(host, why=why) for host in draining)
    return [*drains, *(LeaseHost(next(names), each.name, each.region, why=why) for each in types)]


def _inverse(action: Action, before: Observation, now: Observation, why: str) -> Action | None:
    undo: Action | None = None
    composition = before.composition
    match action:
        case SwitchAlternate(operator) if (alternate := composition.running(operator)) is not None:
            undo = SwitchAlternate(operator, alternate, why=why)
        case SwitchEdge(choice) if (target := composition.running(choice)) is not None:
            undo = SwitchEdge(choice, target, why=why)
        case SetParallelism(operator) if (instances := composition.parallelism.get(operator)) is not None:
            undo = SetParallelism(operator, instances, why=why)
        case SetTokens(operator) if (ring := before.rings.get(operator)) is not None:
            undo = SetTokens(operator, tuple(ring.tokens.items()), why=why)
        case MoveTask(task) if (row := before.tasks.rows.get(str(task))) is not None and before.tasks.host[row] >= 0:
            undo = MoveTask(task, before.hosts.ids[before.tasks.host[row]], why=why)
    if undo is None or undo.already_in_force(now) or undo.in_force(now) or not set(undo.onto) <= set(now.usable):
        return None
    return undo

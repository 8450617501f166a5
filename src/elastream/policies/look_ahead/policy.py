"""Value against cost with a look ahead: plans over what is forecast, and reactive plans for what represents it.

From "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare, 2016), chapter 5. PLAStiCC plans step by
step through a prediction interval; the others take one value for all of it and adapt to that as CE does (5.3.2).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Context, Observation
from elastream.core.prospect import Prospect
from elastream.core.wording import counted
from elastream.errors import InputError
from elastream.policies.forecasting.oracle import Oracle, Spread, informed
from elastream.policies.forecasting.seasonal import BackTested
from elastream.policies.forecasting.series import Ahead, Book, Forecaster, Outlook, SeriesOf, TimeSeries, collected
from elastream.policies.look_ahead.planner import Hold, look_ahead
from elastream.policies.look_ahead.schedule import Change, Done, StagedPlan, changes, due, retracted, same
from elastream.policies.value_cost.greedy import adapted, deployed
from elastream.policies.value_cost.policy import Answer, Asked, ValueCost, answered, loss, missed
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem, score
from elastream.units import format_duration

Fold: TypeAlias = Callable[[Floats], Any]
"""One value of several."""
ANYTHING = 0.999
"""Part of the throughput that is a tolerance in which nothing is adapted; hosts whose paid time ends still go."""
SAID = 3
"""Reasons of a plan that are said of each action."""
TIME_TOLERANCE_S = 1e-6
"""Times are sums of decimal fractions."""


@dataclass(frozen=True)
class Foreseen:
    """What such a policy remembers.

    book: series of what was measured. ahead, outlooks: the forecast in use; learned: what the forecaster keeps. schedule:
    the plan in use, None where there is to be another in any case; planned: its changes; wanted: what of it was enacted;
    options: of the operators. retracted: planned changes that a later plan had no more, so far. done: enacted changes, and
    how many were reversed.
    """

    book: Book = field(default_factory=dict)
    ahead: Ahead | None = None
    outlooks: Mapping[SeriesOf, Outlook] = field(default_factory=dict)
    learned: Any = None
    schedule: StagedPlan | None = None
    planned: tuple[Change, ...] = ()
    wanted: Deployment | None = None
    options: tuple[tuple[str, ...], ...] = ()
    retracted: int = 0
    done: Done = field(default_factory=Done)


@dataclass(frozen=True)
class LookAhead(ValueCost):
    """What all these policies share; settings of `ValueCost` beside.

    step: seconds of an instant (thesis: 5 min). horizon: seconds of a prediction interval. renew: seconds after which a
    forecast is made anew (10 min), at once where what is measured leaves what a real forecaster expected. forecast:
    `"real"`, the method that a back-test chooses; `"oracle"`, which knows simulated runs; or a `Forecaster`. season:
    seconds that a real one tries in place of a day and a week. error, bias, spread, seed: of the oracle, see
    `policies.forecasting.oracle.Oracle`.
    """

    step: float = 300.0
    horizon: float = 1800.0
    renew: float = 600.0
    forecast: str | Forecaster = "real"
    season: float | None = None
    error: float = 0.0
    bias: float = 0.0
    spread: Spread = "variance"
    seed: int = 1

    ahead: ClassVar[bool] = True
    """Whether it forecasts; if not, what was measured is all that it needs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.step <= self.horizon < math.inf:
            raise InputError(f"step is {self.step:g} s and horizon {self.horizon:g} s; 0 < step <= horizon is needed")
        if not 0 < self.renew < math.inf:
            raise InputError(f"renew is {self.renew:g} s; it must be above 0 and end")
        _ = self.forecaster  # refuses what there is not

    @property
    def forecaster(self) -> Forecaster:
        """Who looks ahead."""
        match self.forecast:
            case "real":
                return BackTested() if self.season is None else BackTested((self.season,))
            case "oracle":
                return Oracle(self.error, self.bias, self.spread, self.seed)
            case str():
                raise InputError(f"forecast is {self.forecast!r}; it is 'real' or 'oracle'")
        return self.forecast

    def unsupported_reason(self, context: Context) -> str | None:
        """Return why it can do nothing, or None."""
        return super().unsupported_reason(context) or (self.forecaster.lacking() or None if self.ahead else None)

    def prepared(self, prospect: Prospect) -> "LookAhead":
        """With an oracle that knows the run to come."""
        return replace(self, forecast=informed(self.forecaster, prospect)) if self.ahead else self

    def _concluded(
        self, asked: Asked, own: Foreseen, wanted: Deployment, remarks: tuple[str, ...] = (), why: str = ""
    ) -> Answer:
        """The answer that `wanted` is, with how often plans were retracted and actions reversed where that changed."""
        before, conditions = _before(asked), asked.read.conditions
        done = own.done.after(asked.read.problem, asked.observation.time, self.horizon, asked.read.deployment, wanted)
        answer = answered(asked, wanted, replace(own, done=done, wanted=wanted))
        if why:  # what the moment is like says little of a plan for what comes
            answer = replace(answer, why=why, remarks=loss(asked.read.problem, wanted, conditions) if asked.priced else ())
        if (own.retracted, done.reversed) != (before.retracted, before.done.reversed):
            gone = f"so far {counted(own.retracted, 'planned change')} retracted"
            remarks += (f"{gone}, {counted(done.reversed, 'enacted change')} reversed",)
        return replace(answer, remarks=(*answer.remarks, *remarks))

    def _seen(self, asked: Asked) -> Foreseen:
        """What is remembered, with what the observation adds to the series, and a new forecast where it is time."""
        own, now = _before(asked), asked.observation.time
        own = replace(own, book=collected(own.book, asked.observation, self.step))
        if not self.ahead or (own.ahead is not None and not _outdated(self, own, now)):
            return own
        # On the grid of the bins: a forecast begins where the last whole one ends.
        start = math.floor(now / self.step + TIME_TOLERANCE_S) * self.step
        ahead = Ahead(start, self.step, max(1, round(self.horizon / self.step)) + (now - start > TIME_TOLERANCE_S))
        outlooks, learned = self.forecaster.foresee(own.book, ahead, own.learned)
        return replace(own, ahead=ahead, outlooks=outlooks, learned=learned, schedule=None)

    def _instant(self, observation: Observation, pace: float) -> float:
        return self.step if self.instant is None else self.instant


def _before(asked: Asked) -> Foreseen:
    return asked.own if isinstance(asked.own, Foreseen) else Foreseen()


def _outdated(policy: LookAhead, own: Foreseen, now: float) -> bool:
    """Whether there is to be a new forecast: it is time, less than a step of the last is left, or it proved wrong."""
    assert own.ahead is not None
    since = now - own.ahead.start
    if since >= policy.renew - TIME_TOLERANCE_S or own.ahead.end - now < policy.step - TIME_TOLERANCE_S:
        return True
    step = math.floor(since / policy.step + TIME_TOLERANCE_S) - 1
    if step < 0 or not policy.forecaster.learns:
        return False
    wrong = any(
        _off(own.book[subject], own.outlooks.get(subject), own.ahead, step, policy.tolerance)
        for subject in own.book
        if subject.rows is Rows.OPERATOR
    )
    return wrong


def _off(series: TimeSeries, outlook: Outlook | None, ahead: Ahead, step: int, tolerance: float) -> bool:
    """Whether the last whole step came out of the quantiles by more than the tolerance."""
    if outlook is None:
        return False
    came = series.at(ahead.start + (step + 0.5) * ahead.seconds)
    low, _, high = outlook.quantiles[:, step].tolist()
    return bool(came < low * (1 - tolerance) or came > high * (1 + tolerance))


def _expected(own: Foreseen, now: float) -> Mapping[SeriesOf, Floats]:
    """The forecast from `now` on, in whole steps; a step that has begun counts with what is left of it."""
    assert own.ahead is not None
    passed = max(0.0, (now - own.ahead.start) / own.ahead.seconds)
    first = math.floor(passed + TIME_TOLERANCE_S)
    part = passed - first if passed - first > TIME_TOLERANCE_S else 0.0
    found = {}
    for subject, outlook in own.outlooks.items():
        left = outlook.mean[first:]
        found[subject] = left if not part else (1 - part) * left[:-1] + part * left[1:]
    return found


def _conditions(asked: Asked, expected: Mapping[SeriesOf, Floats]) -> tuple[Conditions, tuple[str, ...]]:
    """The conditions that are expected; remarks on what cannot be foreseen: it is taken to stay as it is."""
    problem, known = asked.read.problem, asked.read.conditions
    count = max((column.size for column in expected.values()), default=1)
    rates, remarks = np.repeat(known.rates, count, axis=0), []
    for column, row in enumerate(problem.sources.tolist()):
        name = problem.operators[row]
        found = expected.get(SeriesOf(Rows.OPERATOR, name, Metric.ARRIVAL_RATE))
        lacks = np.ones(count, dtype=np.bool_) if found is None else np.isnan(found)
        if found is not None:
            rates[~lacks, column] = found[~lacks]
        if lacks.any():
            remarks.append(f"the arrival rate of {name!r} cannot be foreseen: it is taken to last")
    speeds: dict[str, Floats] = {}
    bandwidth = {pair: np.repeat(each[:1], count) for pair, each in known.bandwidth.items()}
    for subject, values in expected.items():
        if subject.rows is Rows.HOST and not np.isnan(values).any():
            speeds[subject.name] = values
        elif subject.rows is Rows.LINK and not np.isnan(values).any():
            source, _, target = subject.name.partition(">")
            bandwidth[source, target] = values
    return replace(known, rates=rates, speeds=speeds, bandwidth=bandwidth), tuple(remarks)


@dataclass(frozen=True)
class Plasticc(LookAhead):
    """PLAStiCC: plans from cross-over to cross-over through the prediction interval (thesis, 5.3.1, Algorithm 5).

    What runs is kept for as long as it will hold the throughput; where it will not, an operator has other instances or
    another alternate, whichever leaves more profit. Only what is due is enacted: alternates and instances when their time
    has come, leases earlier by the host's start. Each new forecast, and each deviation of what runs, makes another plan;
    retracted plans cost nothing, and are counted.

    hold: whether each step is to be within the tolerance, or the mean of the interval.
    """

    hold: Hold = "step"

    name: ClassVar[str] = "plasticc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hold not in get_args(Hold):
            raise InputError(f"hold is {self.hold!r}; it is 'step' or 'interval'")

    def search(self, asked: Asked) -> Answer:
        """Algorithm 3 in the first round, Algorithm 5 in the others."""
        problem, now = asked.read.problem, asked.observation.time
        own, remarks = self._seen(asked), tuple[str, ...]()
        if not asked.round:
            return self._concluded(asked, own, deployed(problem, asked.read.conditions, asked.read.deployment))
        if own.schedule is None or own.options != _names(problem) or self._deviates(asked, own):
            own, remarks = self._planned(asked, own)
        schedule = own.schedule
        assert schedule is not None
        wanted = due(schedule, now, asked.pace)
        if any(not host.name for host in wanted.hosts):
            own = replace(own, schedule=None)  # from the next round on they are leased hosts, and planned with
        stage = [each for each in schedule.stages if each.time <= now + asked.pace / 2][-1:]
        why = "; ".join(stage[0].why[:SAID]) if stage else ""
        return self._concluded(asked, own, wanted, remarks, why or "for what is foreseen")

    def _deviates(self, asked: Asked, own: Foreseen) -> bool:
        """Whether something else runs than was enacted in the last round."""
        return own.wanted is None or not same(asked.read.problem, asked.read.deployment, own.wanted)

    def _planned(self, asked: Asked, own: Foreseen) -> tuple[Foreseen, tuple[str, ...]]:
        """A new plan, and what is to be said of it."""
        problem, now = asked.read.problem, asked.observation.time
        conditions, remarks = _conditions(asked, _expected(own, now))
        conditions = replace(conditions, seconds=self.step, steady=False)
        schedule = look_ahead(problem, asked.read.deployment, conditions, ending=asked.due, hold=self.hold)
        plan = changes(problem, schedule)
        gone = retracted(own.planned, plan, now + asked.pace / 2, self.step)
        own = replace(own, schedule=schedule, planned=plan, options=_names(problem), retracted=own.retracted + gone)
        remarks += _missed(problem, schedule, conditions)
        if plan:
            first, last = plan[0], format_duration(plan[-1].time - now)
            said = f"{first.subject}: {first.value} in {format_duration(first.time - now)}"
            remarks += (f"{counted(len(plan), 'change')} planned up to {last} ahead, first {said}",)
        return own, remarks


def _missed(problem: Problem, schedule: StagedPlan, conditions: Conditions) -> tuple[str, ...]:
    """What the first time that is missed is missed by, and why."""
    if not schedule.missed:
        return ()
    time = schedule.missed[0].time
    runs = [stage.deployment for stage in schedule.stages if stage.time <= time][-1]
    first = round((time - conditions.time) / conditions.seconds)
    said = missed(problem, runs, replace(conditions, rates=conditions.rates[first:], speeds={}, bandwidth={}))
    later = f"in {format_duration(time - conditions.time)}" if time > conditions.time else "now"
    return tuple(f"{later}: {each}" for each in said)


def _names(problem: Problem) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(option.name for option in options) for options in problem.options)


@dataclass(frozen=True)
class _Represented(LookAhead):
    """A reactive policy for one value that represents the interval (5.3.2).

    As CE, but only where the throughput leaves the tolerance; in between, hosts whose paid time ends go if the others do.
    """

    def represented(self, own: Foreseen, now: float) -> Mapping[SeriesOf, float]:
        """The value of each series that stands for all of the interval."""
        raise NotImplementedError

    def search(self, asked: Asked) -> Answer:
        """Algorithm 3 in the first round, Algorithm 4 in the others, for what represents the interval."""
        problem, deployment, known = asked.read.problem, asked.read.deployment, asked.read.conditions
        own = self._seen(asked)
        values = self.represented(own, asked.observation.time)
        conditions, remarks = known, tuple[str, ...]()
        if values:
            conditions, remarks = _conditions(asked, {subject: np.array([value]) for subject, value in values.items()})
        if not asked.round:
            return self._concluded(asked, own, deployed(problem, known, deployment), remarks)
        if abs(score(problem, deployment, known).mean - problem.goal.throughput) <= problem.goal.tolerance:
            problem = replace(problem, goal=replace(problem.goal, tolerance=ANYTHING * problem.goal.throughput))
        wanted = adapted(
            problem, deployment, conditions,
            alternates=asked.alternates, resources=asked.resources, due=asked.due, soon=asked.soon,
        )  # fmt: skip
        return self._concluded(asked, own, wanted, remarks)


@dataclass(frozen=True)
class Latest(_Represented):
    """CAF, "current after the fact": what was measured last is taken to last; the reactive policy of chapter 4."""

    name: ClassVar[str] = "caf"
    ahead: ClassVar[bool] = False

    def represented(self, own: Foreseen, now: float) -> Mapping[SeriesOf, float]:
        """Nothing but what the conditions of the moment are."""
        return {}


@dataclass(frozen=True)
class Averaged(_Represented):
    """WAAF, "windowed average after the fact": the mean of the last `horizon` seconds is taken to last."""

    name: ClassVar[str] = "waaf"
    ahead: ClassVar[bool] = False

    def represented(self, own: Foreseen, now: float) -> Mapping[SeriesOf, float]:
        """Means of the last steps, that under way included."""
        bins = max(1, round(self.horizon / self.step))
        return {subject: _mean(series.recent(bins)) for subject, series in own.book.items()}


@dataclass(frozen=True)
class Predicted(_Represented):
    """WPA, "windowed predictive average": the mean of what is forecast is taken to last."""

    name: ClassVar[str] = "wpa"
    rate: ClassVar[Fold] = np.mean
    performance: ClassVar[Fold] = np.mean

    def represented(self, own: Foreseen, now: float) -> Mapping[SeriesOf, float]:
        """Of each forecast one value, of rates another than of hosts and links."""
        cls = type(self)
        return {
            subject: float((cls.rate if subject.rows is Rows.OPERATOR else cls.performance)(column))
            for subject, column in _expected(own, now).items()
        }


@dataclass(frozen=True)
class Optimistic(Predicted):
    """WPO, "windowed predictive optimistic": of what is forecast the lowest rates and the fastest hosts and links."""

    name: ClassVar[str] = "wpo"
    rate: ClassVar[Fold] = np.min
    performance: ClassVar[Fold] = np.max


@dataclass(frozen=True)
class Pessimistic(Predicted):
    """WPP, "windowed predictive pessimistic": of what is forecast the highest rates and the slowest hosts and links."""

    name: ClassVar[str] = "wpp"
    rate: ClassVar[Fold] = np.max
    performance: ClassVar[Fold] = np.min


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan

"""Value against cost with a forecast: PLAStiCC, and reactive policies on one representative value.

After "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare, 2016), chapter 5.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Prospect
from elastream.core.wording import counted
from elastream.errors import InputError
from elastream.policies.common.measures import known_mean
from elastream.policies.forecasting.seasonal import BackTested
from elastream.policies.forecasting.series import (
    Ahead,
    Book,
    Forecaster,
    Oracle,
    Outlook,
    SeriesOf,
    Spread,
    TimeSeries,
    collected,
    informed,
)
from elastream.policies.look_ahead.planner import (
    Change,
    ChangeHistory,
    Hold,
    StagedPlan,
    changes,
    due,
    look_ahead,
    retracted,
    same,
)
from elastream.policies.value_cost.greedy import adapted, deployed
from elastream.policies.value_cost.policy import SearchRequest, SearchResult, ValueCost, loss, missed, search_result
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem, score
from elastream.units import format_duration

# One value of several.
Fold: TypeAlias = Callable[[Floats], Any]
# Share of the throughput as a tolerance within which only hosts whose paid time ends change.
WIDE_TOLERANCE = 0.999
# Reasons of a plan shown with each action.
REASONS_SHOWN = 3
# Seconds: times are sums of decimal fractions.
TIME_TOLERANCE_S = 1e-6


@dataclass(frozen=True)
class ForecastMemory:
    book: Book = field(default_factory=dict)  # measured series
    ahead: Ahead | None = None  # range of the forecast in use
    outlooks: Mapping[SeriesOf, Outlook] = field(default_factory=dict)  # forecast in use
    learned: Any = None  # memory of the forecaster
    schedule: StagedPlan | None = None  # plan in use; None forces a new one
    planned: tuple[Change, ...] = ()  # its changes
    enacted: Deployment | None = None  # deployment enacted last
    options: tuple[tuple[str, ...], ...] = ()  # options of the operators when planned
    retracted: int = 0  # planned changes that later plans dropped
    done: ChangeHistory = field(default_factory=ChangeHistory)  # enacted changes and their reversals


@dataclass(frozen=True)
class LookAhead(ValueCost):
    """Base class of policies with a forecast.

    Args:
        step: Length of an instant (s; thesis: 5 min).
        horizon: Length of the prediction interval (s).
        renew: Age at which a forecast is renewed (s; thesis: 10 min), at once if it was wrong.
        forecast: `"real"` (back-tested), `"oracle"` (simulated runs), or a `Forecaster`.
        season: Season of a real forecast instead of a day and a week (s).
        error: Of the oracle, as `bias`, `spread` and `seed`; see `policies.forecasting.series.Oracle`.
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

    # False if measurements alone suffice.
    ahead: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.step <= self.horizon < math.inf:
            raise InputError(f"step is {self.step:g} s and horizon {self.horizon:g} s; 0 < step <= horizon is needed")
        if not 0 < self.renew < math.inf:
            raise InputError(f"renew is {self.renew:g} s; it must be above 0 and end")
        _ = self.forecaster  # raises for an unknown forecaster

    @property
    def forecaster(self) -> Forecaster:
        match self.forecast:
            case "real":
                return BackTested() if self.season is None else BackTested((self.season,))
            case "oracle":
                return Oracle(self.error, self.bias, self.spread, self.seed)
            case str():
                raise InputError(f"forecast is {self.forecast!r}; it is 'real' or 'oracle'")
        return self.forecast

    def unsupported_reason(self, context: Context) -> str | None:
        return super().unsupported_reason(context) or (self.forecaster.lacking() or None if self.ahead else None)

    def prepared(self, prospect: Prospect) -> "LookAhead":
        return replace(self, forecast=informed(self.forecaster, prospect)) if self.ahead else self

    def _concluded(
        self,
        request: SearchRequest,
        own: ForecastMemory,
        deployment: Deployment,
        remarks: tuple[str, ...] = (),
        why: str = "",
    ) -> SearchResult:
        before, conditions = _before(request), request.situation.conditions
        done = own.done.after(
            request.situation.problem, request.observation.time, self.horizon, request.situation.deployment, deployment
        )
        result = search_result(request, deployment, replace(own, done=done, enacted=deployment))
        if why:  # present figures say little about a plan for later
            result = replace(
                result, why=why, remarks=loss(request.situation.problem, deployment, conditions) if request.priced else ()
            )
        if (own.retracted, done.reversed) != (before.retracted, before.done.reversed):
            gone = f"so far {counted(own.retracted, 'planned change')} retracted"
            remarks += (f"{gone}, {counted(done.reversed, 'enacted change')} reversed",)
        return replace(result, remarks=(*result.remarks, *remarks))

    def _updated(self, request: SearchRequest) -> ForecastMemory:
        own, now = _before(request), request.observation.time
        own = replace(own, book=collected(own.book, request.observation, self.step))
        if not self.ahead or (own.ahead is not None and not _outdated(self, own, now)):
            return own
        # On the grid of the bins: a forecast begins where the last whole one ends.
        start = math.floor(now / self.step + TIME_TOLERANCE_S) * self.step
        ahead = Ahead(start, self.step, max(1, round(self.horizon / self.step)) + (now - start > TIME_TOLERANCE_S))
        outlooks, learned = self.forecaster.foresee(own.book, ahead, own.learned)
        return replace(own, ahead=ahead, outlooks=outlooks, learned=learned, schedule=None)

    def _instant(self, observation: Observation, pace: float) -> float:
        return self.step if self.instant is None else self.instant


def _before(request: SearchRequest) -> ForecastMemory:
    return request.own if isinstance(request.own, ForecastMemory) else ForecastMemory()


def _outdated(policy: LookAhead, own: ForecastMemory, now: float) -> bool:
    assert own.ahead is not None
    since = now - own.ahead.start
    if since >= policy.renew - TIME_TOLERANCE_S or own.ahead.end - now < policy.step - TIME_TOLERANCE_S:
        return True
    step = math.floor(since / policy.step + TIME_TOLERANCE_S) - 1
    if step < 0 or not policy.forecaster.learns:
        return False
    return any(
        _off(own.book[subject], own.outlooks.get(subject), own.ahead, step, policy.tolerance)
        for subject in own.book
        if subject.rows is Rows.OPERATOR
    )


def _off(series: TimeSeries, outlook: Outlook | None, ahead: Ahead, step: int, tolerance: float) -> bool:
    if outlook is None:
        return False
    actual = series.at(ahead.start + (step + 0.5) * ahead.seconds)
    low, _, high = outlook.quantiles[:, step].tolist()
    return bool(actual < low * (1 - tolerance) or actual > high * (1 + tolerance))


def _expected(own: ForecastMemory, now: float) -> Mapping[SeriesOf, Floats]:
    assert own.ahead is not None
    elapsed = max(0.0, (now - own.ahead.start) / own.ahead.seconds)
    first = math.floor(elapsed + TIME_TOLERANCE_S)
    part = elapsed - first if elapsed - first > TIME_TOLERANCE_S else 0.0
    rest = {}
    for subject, outlook in own.outlooks.items():
        left = outlook.mean[first:]
        rest[subject] = left if not part else (1 - part) * left[:-1] + part * left[1:]
    return rest


def _conditions(request: SearchRequest, expected: Mapping[SeriesOf, Floats]) -> tuple[Conditions, tuple[str, ...]]:
    """Return the forecast conditions. Series without a forecast stay as they are, with a remark."""
    problem, current = request.situation.problem, request.situation.conditions
    count = max((column.size for column in expected.values()), default=1)
    rates, remarks = np.repeat(current.rates, count, axis=0), []
    for column, row in enumerate(problem.sources.tolist()):
        name = problem.operators[row]
        forecast = expected.get(SeriesOf(Rows.OPERATOR, name, Metric.ARRIVAL_RATE))
        lacks = np.ones(count, dtype=np.bool_) if forecast is None else np.isnan(forecast)
        if forecast is not None:
            rates[~lacks, column] = forecast[~lacks]
        if lacks.any():
            remarks.append(f"the arrival rate of {name!r} cannot be foreseen: it is taken to last")
    speeds: dict[str, Floats] = {}
    bandwidth = {pair: np.repeat(each[:1], count) for pair, each in current.bandwidth.items()}
    for subject, values in expected.items():
        if subject.rows is Rows.HOST and not np.isnan(values).any():
            speeds[subject.name] = values
        elif subject.rows is Rows.LINK and not np.isnan(values).any():
            source, _, target = subject.name.partition(">")
            bandwidth[source, target] = values
    return replace(current, rates=rates, speeds=speeds, bandwidth=bandwidth), tuple(remarks)


@dataclass(frozen=True)
class Plasticc(LookAhead):
    """PLAStiCC: plans from cross-over to cross-over (thesis, 5.3.1, Algorithm 5).

    A deployment stays while it holds the throughput. Then an operator gets other instances or another alternate, whichever
    gives more profit. Only due changes are enacted, leases ahead by the host's start.

    Args:
        hold: Keep each `step` within the tolerance, or the mean of the `interval`.
    """

    hold: Hold = "step"

    name: ClassVar[str] = "plasticc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hold not in get_args(Hold):
            raise InputError(f"hold is {self.hold!r}; it is 'step' or 'interval'")

    def search(self, request: SearchRequest) -> SearchResult:
        problem, now = request.situation.problem, request.observation.time
        own, remarks = self._updated(request), tuple[str, ...]()
        if not request.round:
            return self._concluded(
                request, own, deployed(problem, request.situation.conditions, request.situation.deployment)
            )
        if own.schedule is None or own.options != _names(problem) or self._deviates(request, own):
            own, remarks = self._planned(request, own)
        schedule = own.schedule
        assert schedule is not None
        deployment = due(schedule, now, request.pace)
        if any(not host.name for host in deployment.hosts):
            own = replace(own, schedule=None)  # from the next round on, the plan contains them as leased hosts
        stage = [each for each in schedule.stages if each.time <= now + request.pace / 2][-1:]
        why = "; ".join(stage[0].why[:REASONS_SHOWN]) if stage else ""
        return self._concluded(request, own, deployment, remarks, why or "for what is foreseen")

    def _deviates(self, request: SearchRequest, own: ForecastMemory) -> bool:
        return own.enacted is None or not same(request.situation.problem, request.situation.deployment, own.enacted)

    def _planned(self, request: SearchRequest, own: ForecastMemory) -> tuple[ForecastMemory, tuple[str, ...]]:
        problem, now = request.situation.problem, request.observation.time
        conditions, remarks = _conditions(request, _expected(own, now))
        conditions = replace(conditions, seconds=self.step, steady=False)
        schedule = look_ahead(problem, request.situation.deployment, conditions, ending=request.due, hold=self.hold)
        plan = changes(problem, schedule)
        withdrawn = retracted(own.planned, plan, now + request.pace / 2, self.step)
        own = replace(own, schedule=schedule, planned=plan, options=_names(problem), retracted=own.retracted + withdrawn)
        remarks += _missed(problem, schedule, conditions)
        if plan:
            first, last = plan[0], format_duration(plan[-1].time - now)
            first_change = f"{first.subject}: {first.value} in {format_duration(first.time - now)}"
            remarks += (f"{counted(len(plan), 'change')} planned up to {last} ahead, first {first_change}",)
        return own, remarks


def _missed(problem: Problem, schedule: StagedPlan, conditions: Conditions) -> tuple[str, ...]:
    if not schedule.missed:
        return ()
    time = schedule.missed[0].time
    runs = [stage.deployment for stage in schedule.stages if stage.time <= time][-1]
    first = round((time - conditions.time) / conditions.seconds)
    messages = missed(problem, runs, replace(conditions, rates=conditions.rates[first:], speeds={}, bandwidth={}))
    later = f"in {format_duration(time - conditions.time)}" if time > conditions.time else "now"
    return tuple(f"{later}: {each}" for each in messages)


def _names(problem: Problem) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(option.name for option in options) for options in problem.options)


@dataclass(frozen=True)
class _Representative(LookAhead):
    """Reactive policy for one value that represents the interval (5.3.2); acts as CE outside the tolerance."""

    def representatives(self, own: ForecastMemory, now: float) -> Mapping[SeriesOf, float]:
        raise NotImplementedError

    def search(self, request: SearchRequest) -> SearchResult:
        problem, deployment, current = request.situation.problem, request.situation.deployment, request.situation.conditions
        own = self._updated(request)
        values = self.representatives(own, request.observation.time)
        conditions, remarks = current, tuple[str, ...]()
        if values:
            conditions, remarks = _conditions(request, {subject: np.array([value]) for subject, value in values.items()})
        if not request.round:
            return self._concluded(request, own, deployed(problem, current, deployment), remarks)
        if abs(score(problem, deployment, current).mean - problem.goal.throughput) <= problem.goal.tolerance:
            problem = replace(problem, goal=replace(problem.goal, tolerance=WIDE_TOLERANCE * problem.goal.throughput))
        target = adapted(
            problem, deployment, conditions,
            alternates=request.alternates, resources=request.resources, due=request.due, soon=request.soon,
        )  # fmt: skip
        return self._concluded(request, own, target, remarks)


@dataclass(frozen=True)
class Caf(_Representative):
    """CAF, "current after the fact": the last measurement stands for the interval, as in chapter 4."""

    name: ClassVar[str] = "caf"
    ahead: ClassVar[bool] = False

    def representatives(self, own: ForecastMemory, now: float) -> Mapping[SeriesOf, float]:
        return {}


@dataclass(frozen=True)
class Waaf(_Representative):
    """WAAF, "windowed average after the fact": the mean of the last `horizon` seconds stands for the interval."""

    name: ClassVar[str] = "waaf"
    ahead: ClassVar[bool] = False

    def representatives(self, own: ForecastMemory, now: float) -> Mapping[SeriesOf, float]:
        bins = max(1, round(self.horizon / self.step))
        return {subject: known_mean(series.recent(bins)) for subject, series in own.book.items()}


@dataclass(frozen=True)
class Wpa(_Representative):
    """WPA, "windowed predictive average": the mean forecast stands for the interval."""

    name: ClassVar[str] = "wpa"
    rate: ClassVar[Fold] = np.mean
    performance: ClassVar[Fold] = np.mean

    def representatives(self, own: ForecastMemory, now: float) -> Mapping[SeriesOf, float]:
        cls = type(self)
        return {
            subject: float((cls.rate if subject.rows is Rows.OPERATOR else cls.performance)(column))
            for subject, column in _expected(own, now).items()
        }


@dataclass(frozen=True)
class Wpo(Wpa):
    """WPO, "windowed predictive optimistic": lowest rates, fastest hosts and links of the forecast."""

    name: ClassVar[str] = "wpo"
    rate: ClassVar[Fold] = np.min
    performance: ClassVar[Fold] = np.max


@dataclass(frozen=True)
class Wpp(Wpa):
    """WPP, "windowed predictive pessimistic": highest rates, slowest hosts and links of the forecast."""

    name: ClassVar[str] = "wpp"
    rate: ClassVar[Fold] = np.max
    performance: ClassVar[Fold] = np.min

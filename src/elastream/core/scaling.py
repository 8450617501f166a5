"""User's rules for the number of hosts and its rate of change, for any policy. All are off unless set."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import tzinfo
from typing import Any

from elastream.core.cron import cron_problem, matches
from elastream.errors import InputError
from elastream.units import duration
from elastream.units import price as price_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """Rules for the number of hosts. None or empty: off. Durations are seconds, or text such as `"5 min"`.

    Attributes:
        stabilization_up: Window whose lowest recommendation counts for scaling up (HPA's stabilizationWindowSeconds).
        stabilization_down: Window whose highest recommendation counts for scaling down.
        scale_down_interval: Least time between scale-downs.
        max_scale_up: Most hosts added at a time, as a multiple of the working ones, at least one (Flink's
            scale-up.max-factor).
        max_scale_down: Most hosts removed at a time, as a share of the working ones, at least one (scale-down.max-factor).
        tolerance: Relative difference between recommendation and present hosts that is ignored (HPA's tolerance).
        catch_up: Time within which the backlog is to be processed (Flink's catch-up.duration); no host goes while it takes
            longer. 0: `threshold` does not size for the backlog.
        excluded_periods: Cron expressions of five fields. Nothing scales in a minute that one matches.
        time_zone: Time zone of cron expressions, such as `"Europe/Vienna"`. Empty: this machine's.
        min_hosts: Fewest hosts, within the cloud's bounds.
        max_hosts: Most hosts, within the cloud's bounds.
        budget: Most money per time, such as `"12/h"` or `"200/d"`, for the billing time units that begin in an hour or day
            of the run.
        approve: Cost of all hosts, such as `"8/h"`, beyond which a lease waits until someone approves it on the live page.

    Raises:
        InputError: A value is out of range.
    """

    stabilization_up: float | None = None
    stabilization_down: float | None = None
    scale_down_interval: float | None = None
    max_scale_up: float | None = None
    max_scale_down: float | None = None
    tolerance: float | None = None
    catch_up: float | None = None
    excluded_periods: tuple[str, ...] = ()
    time_zone: str = ""
    min_hosts: int | None = None
    max_hosts: int | None = None
    budget: str | None = None
    approve: str | None = None
    _zone: tzinfo | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in DURATIONS:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, self._checked(name, duration, value))
                if getattr(self, name) == math.inf:
                    raise _invalid(name, f"{value} has no end; leave it out, or name a time")
        self._check_factors()
        self._check_counts()
        self._check_periods()
        for name in MONEY:
            self._check_money(name)

    def _check_factors(self) -> None:
        for name in FACTORS:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, self._checked(name, _factor, value))
        if self.max_scale_up is not None and not 0 < self.max_scale_up < math.inf:
            raise _invalid("max_scale_up", f"{self.max_scale_up:g} is not a factor above 0; 1 allows twice the hosts")
        if self.max_scale_down is not None and not 0 < self.max_scale_down <= 1:
            raise _invalid("max_scale_down", f"{self.max_scale_down:g} is not a share above 0 and at most 1")
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise _invalid("tolerance", f"{self.tolerance:g} is not a share of 0 or more and below 1")

    def _check_counts(self) -> None:
        for name in COUNTS:
            if (value := getattr(self, name)) is not None and not (type(value) is int and value >= 1):
                raise _invalid(name, f"{value!r} is not a whole number of hosts above 0")
        if self.min_hosts is not None and self.max_hosts is not None and self.min_hosts > self.max_hosts:
            raise _invalid("min_hosts", f"{self.min_hosts} is more than max_hosts, {self.max_hosts}")

    def _check_money(self, name: str) -> None:
        if (value := getattr(self, name)) is None:
            return
        message = f"{value!r} is not money per time; write it as '12/h' or '200/d'"
        if not isinstance(value, str):
            raise _invalid(name, message)
        amount, per = self._checked(name, price_of, value)
        if per is None or per < 60 or not amount > 0:
            raise _invalid(name, message)

    def _checked(self, name: str, read: Any, value: Any) -> Any:
        try:
            return read(value)
        except Exception as error:
            raise _invalid(name, str(error)) from None

    def _check_periods(self) -> None:
        periods = (self.excluded_periods,) if isinstance(self.excluded_periods, str) else tuple(self.excluded_periods)
        object.__setattr__(self, "excluded_periods", periods)
        for each in periods:
            if problem := cron_problem(each):
                raise _invalid("excluded_periods", problem)
        if self.time_zone:
            from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

            try:
                object.__setattr__(self, "_zone", ZoneInfo(self.time_zone))
            except (ZoneInfoNotFoundError, ValueError, OSError):
                message = f"there is no time zone {self.time_zone!r}; an example is 'Europe/Vienna'"
                raise _invalid("time_zone", message) from None

    @property
    def set(self) -> Mapping[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return {name: value for name, value in values.items() if value not in (None, (), "")}

    @property
    def budget_terms(self) -> tuple[float, float] | None:
        """Return money and period (seconds) of the budget, if any."""
        return None if self.budget is None else _per_time(self.budget)

    @property
    def approved(self) -> float:
        """Return the money per second up to which leases need no approval."""
        if self.approve is None:
            return math.inf
        amount, per = _per_time(self.approve)
        return amount / per

    def excluded(self, epoch: float) -> str:
        """Return the expression that excludes the minute of `epoch` (seconds since 1970), or ""."""
        return next((each for each in self.excluded_periods if matches(each, epoch, self._zone)), "")

    @property
    def zone(self) -> tzinfo | None:
        """Return the time zone of cron expressions; None: this machine's."""
        return self._zone

    def with_pairs(self, pairs: Iterable[str]) -> "ScalingRules":
        """Return the rules with command-line pairs `KEY=VALUE`; an empty value removes a rule.

        Raises:
            InputError: A pair is no rule.
        """
        changes: dict[str, Any] = {}
        for pair in pairs:
            name, equals, value = (each.strip() for each in pair.partition("="))
            if not equals:
                raise InputError(f"--scaling {pair}: it is not KEY=VALUE, such as max_scale_up=1")
            if name not in RULE_NAMES and name != "time_zone":
                raise InputError(f"--scaling {pair}: there is no rule {name!r}; there are {', '.join(RULE_NAMES)}")
            if name == "excluded_periods":
                changes[name] = (*changes.get(name, ()), *filter(None, [value]))
            elif name in COUNTS and value:
                changes[name] = int(value) if value.isdecimal() else value
            else:
                changes[name] = value or ("" if name == "time_zone" else None)
        try:
            return replace(self, **changes)
        except InputError as error:
            raise InputError(f"--scaling: {error}") from None


def _per_time(text: str) -> tuple[float, float]:
    amount, per = price_of(text)
    assert per is not None
    return amount, per


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{value!r} is not a number")
    return float(value)


def _invalid(name: str, message: str) -> InputError:
    return InputError(f"{name}: {message}", ("scaling", name))


DURATIONS = ("stabilization_up", "stabilization_down", "scale_down_interval", "catch_up")
FACTORS = ("max_scale_up", "max_scale_down", "tolerance")
APPROVAL = "approve"
COUNTS, MONEY = ("min_hosts", "max_hosts"), ("budget", APPROVAL)
# A refusal by a rule begins with its name.
RULE_NAMES = (*DURATIONS, *FACTORS, "excluded_periods", *COUNTS, *MONEY)
# Limits that are no setting are named in the same way.
LIMIT_NAMES = (*RULE_NAMES, "memory")
NO_RULES = ScalingRules()


def rule_of(refusal: str) -> str:
    name, colon, _ = refusal.partition(": ")
    return name if colon and name in LIMIT_NAMES else ""

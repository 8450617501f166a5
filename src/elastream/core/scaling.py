"""Rules for how many hosts there may be and how fast that may change: those that people know from Flink and Kubernetes.

They are the user's, not a policy's: arbitration applies them to whatever a policy proposes. All are off unless set.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from elastream.errors import InputError
from elastream.units import duration
from elastream.units import price as price_of

MINUTE = timedelta(minutes=1)
FIELDS_OF_CRON = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """Rules for the number of hosts; None, or empty: off.

    Durations are seconds, or text such as `"5 min"`.

    stabilization_up, stabilization_down: windows over which the lowest, or the highest, number of hosts recommended
    counts (HPA's stabilizationWindowSeconds). scale_down_interval: least time from one scale-down to the next.
    max_scale_up: most hosts that are added at a time, as a multiple of those that work (Flink's scale-up.max-factor), at
    least one. max_scale_down: most that go at a time, as a part of those that work (scale-down.max-factor), at least one.
    tolerance: part by which the recommendation may differ from the hosts there are without anything being done (HPA's).
    catch_up: time in which what waits is to be processed (Flink's catch-up.duration): hosts do not go while it takes
    longer; 0: the default policy does not size for what waits. excluded_periods: cron expressions of five fields; in a
    minute that one of them matches nothing is scaled. time_zone: theirs, such as `"Europe/Vienna"`; empty: this
    machine's. min_hosts, max_hosts: bounds, within the cloud's own. budget: most money per time, such as `"12/h"` or
    `"200/d"`: the billing time units that begin in an hour, or a day, of the run never cost more.

    Raises InputError, with the field, for what is out of range.
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
    _zone: tzinfo | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in DURATIONS:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, self._checked(name, duration, value))
                if getattr(self, name) == math.inf:
                    raise _wrong(name, f"{value} has no end; leave it out, or name a time")
        for name in FACTORS:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, self._checked(name, float, value))
        if self.max_scale_up is not None and not 0 < self.max_scale_up < math.inf:
            raise _wrong("max_scale_up", f"{self.max_scale_up:g} is no factor above 0; 1 allows twice the hosts")
        if self.max_scale_down is not None and not 0 < self.max_scale_down <= 1:
            raise _wrong("max_scale_down", f"{self.max_scale_down:g} is no part above 0 and at most 1")
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise _wrong("tolerance", f"{self.tolerance:g} is no part of 0 or more and below 1")
        for name in COUNTS:
            if (value := getattr(self, name)) is not None and not (type(value) is int and value >= 1):
                raise _wrong(name, f"{value!r} is no whole number of hosts above 0")
        if self.min_hosts is not None and self.max_hosts is not None and self.min_hosts > self.max_hosts:
            raise _wrong("min_hosts", f"{self.min_hosts} is more than max_hosts, {self.max_hosts}")
        self._check_periods()
        if self.budget is not None:
            if not isinstance(self.budget, str):
                raise _wrong("budget", f"{self.budget!r} is no money per time; write it as '12/h' or '200/d'")
            amount, per = self._checked("budget", price_of, self.budget)
            if per is None or per < 60 or not amount > 0:
                raise _wrong("budget", f"{self.budget!r} is no money per time; write it as '12/h' or '200/d'")

    def _checked(self, name: str, read: Any, value: Any) -> Any:
        try:
            return read(value)
        except Exception as error:
            raise _wrong(name, str(error)) from None

    def _check_periods(self) -> None:
        periods = (self.excluded_periods,) if isinstance(self.excluded_periods, str) else tuple(self.excluded_periods)
        object.__setattr__(self, "excluded_periods", periods)
        for each in periods:
            try:
                if len(str(each).split()) != FIELDS_OF_CRON:
                    raise CronSimError("it has not five fields")
                CronSim(each, datetime.now())
            except CronSimError as error:
                said = f"{each!r} is no cron expression ({error}): minute, hour, day of the month, month, day of the week"
                raise _wrong("excluded_periods", said) from None
        if self.time_zone:
            try:
                object.__setattr__(self, "_zone", ZoneInfo(self.time_zone))
            except (ZoneInfoNotFoundError, ValueError, OSError):
                said = f"there is no time zone {self.time_zone!r}; an example is 'Europe/Vienna'"
                raise _wrong("time_zone", said) from None

    @property
    def set(self) -> Mapping[str, Any]:
        """Those that are set, by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return {name: value for name, value in found.items() if value not in (None, (), "")}

    @property
    def budget_terms(self) -> tuple[float, float] | None:
        """(money, seconds) of the budget; None without one."""
        if self.budget is None:
            return None
        amount, per = price_of(self.budget)
        assert per is not None
        return amount, per

    def excluded(self, epoch: float) -> str:
        """The expression that excludes the minute of `epoch` (seconds since 1970) from scaling; empty where none does."""
        minute = datetime.fromtimestamp(epoch, self._zone).replace(second=0, microsecond=0)
        for each in self.excluded_periods:
            try:
                if next(CronSim(each, minute - MINUTE)) == minute:
                    return each
            except StopIteration:  # a date that there never is
                continue
        return ""

    def given(self, pairs: Iterable[str]) -> "ScalingRules":
        """This with `pairs`, each `KEY=VALUE` as a command takes it; an empty value takes a rule away.

        Raises InputError for what is no rule.
        """
        found: dict[str, Any] = {}
        for pair in pairs:
            name, equals, value = (each.strip() for each in pair.partition("="))
            if not equals:
                raise InputError(f"--scaling {pair}: it is not KEY=VALUE, such as max_scale_up=1")
            if name not in RULE_NAMES and name != "time_zone":
                raise InputError(f"--scaling {pair}: there is no rule {name!r}; there are {', '.join(RULE_NAMES)}")
            if name == "excluded_periods":
                found[name] = (*found.get(name, ()), *filter(None, [value]))
            elif name in COUNTS and value:
                found[name] = int(value) if value.isdecimal() else value
            else:
                found[name] = value or ("" if name == "time_zone" else None)
        try:
            return replace(self, **found)
        except InputError as error:
            raise InputError(f"--scaling: {error}") from None


def _wrong(name: str, said: str) -> InputError:
    return InputError(f"{name}: {said}", ("scaling", name))


DURATIONS = ("stabilization_up", "stabilization_down", "scale_down_interval", "catch_up")
FACTORS = ("max_scale_up", "max_scale_down", "tolerance")
COUNTS = ("min_hosts", "max_hosts")
RULE_NAMES = (*DURATIONS, *FACTORS, "excluded_periods", *COUNTS, "budget")
"""Rules by name; a refusal by one of them begins with it."""
NO_RULES = ScalingRules()


def rule_of(refusal: str) -> str:
    """The rule that a refusal of arbitration names; empty where it names none."""
    name, colon, _ = refusal.partition(": ")
    return name if colon and name in RULE_NAMES else ""

"""Rule by which a run repartitions its state automatically, and limit of the pause."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elastream.core.cron import cron_problem
from elastream.errors import ElastreamError, EnvironmentProblem, InputError
from elastream.units import duration, format_duration

KEYS = ("when", "longest_pause")
EXAMPLE = "{when: '0 3 * * *', longest_pause: 60s}"


@dataclass(frozen=True, slots=True)
class RepartitionRule:
    """When a run may repartition its state.

    Attributes:
        when: Cron expression of five fields; a repartition begins in a minute that it matches.
        longest_pause: Seconds after which a repartition is undone.
    """

    when: str
    longest_pause: float

    @classmethod
    def of(cls, name: str, value: object) -> "RepartitionRule":
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or set(value) != set(KEYS):
            raise InputError(f"{name} is {value!r}; it must be a mapping of {' and '.join(KEYS)}: {EXAMPLE}", (name,))
        when: Any = value["when"]
        if problem := cron_problem(when):
            raise InputError(problem, (name, "when"))
        try:
            seconds = duration(value["longest_pause"])
        except ElastreamError as error:
            raise InputError(f"{name}: longest_pause: {error}", (name, "longest_pause")) from error
        if not 0 < seconds < float("inf"):
            raise InputError(f"{name}: longest_pause is {seconds:g} s; it must be above 0", (name, "longest_pause"))
        return cls(str(when), seconds)


# Why a request is given up.
WITHDRAWN = "its command has ended"


class TooLong(EnvironmentProblem):
    """The pause became too long."""


class Withdrawn(EnvironmentProblem):
    """The command that wanted the pause has ended."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class PauseLimit:
    """Limit of a pause that has begun.

    Attributes:
        longest: Seconds.
        withdrawn: Returns True once the request is withdrawn.
        requested: True if a person wants it.
    """

    longest: float = math.inf
    withdrawn: Callable[[], bool] = _never
    now: Callable[[], float] = time.monotonic
    requested: bool = False
    began: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "began", self.now())

    @property
    def left(self) -> float:
        return self.began + self.longest - self.now()

    def check(self) -> None:
        """Raise EnvironmentProblem once the pause must end."""
        if self.withdrawn():
            raise Withdrawn(f"{WITHDRAWN}: nothing is changed")
        if self.left <= 0:
            raise TooLong(f"the pause became longer than {format_duration(self.longest)}: nothing is changed")

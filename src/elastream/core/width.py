"""The rule by which a run repartitions its state by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastream.core.cron import cron_problem
from elastream.errors import ElastreamError, InputError
from elastream.units import duration

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

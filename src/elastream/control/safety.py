"""What keeps the control loop safe: back-off for actions that keep failing, and a type check of plans.

Arbitration checks a plan against the observation; back-off against the failures of earlier plans.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, get_type_hints

from elastream.core.action import KINDS, Action, LeaseHost, TaskId
from elastream.core.decision import Proposal, Unknown
from elastream.core.plant import Plan


@dataclass(slots=True)
class BackOff:
    """Refuses actions that failed recently: the wait doubles with each failure in a row, up to `attempts` of them.

    first: seconds to wait after the first failure. rest: seconds after which an abandoned action may be tried
    again, because in a run of days the cause may be gone.
    """

    first: float = 2.0
    attempts: int = 5
    rest: float = 600.0
    _failures: dict[Hashable, tuple[int, float, str]] = field(default_factory=dict)

    def refusal(self, action: Action, now: float, *, vital: bool = False) -> str:
        """Why `action` must wait; empty if it need not. vital: nothing goes on without it, so that it is never given up."""
        count, last, reason = self._failures.get(_what(action), (0, 0.0, ""))
        rest = self.first * 2**self.attempts if vital else self.rest
        if count >= self.attempts and now < last + rest:
            return f"given up until {last + rest:.0f} s: it failed {count} times in a row, last: {reason}"
        if 0 < count < self.attempts and now < (retry := last + self.first * 2 ** (count - 1)):
            times = "once" if count == 1 else f"{count} times in a row"
            return f"tried again from {retry:.0f} s on: it failed {times}, last: {reason}"
        return ""

    def failed(self, action: Action, now: float, reason: str) -> None:
        """Note a failure; several at one time (three leases of a type, say) are one."""
        count, last, _ = self._failures.get(_what(action), (0, -1.0, ""))
        if count >= self.attempts and now >= last + self.rest:
            count = 0
        self._failures[_what(action)] = (count if count and last == now else count + 1, now, reason)

    def succeeded(self, action: Action) -> None:
        """Forget the failures of `action`."""
        self._failures.pop(_what(action), None)


def _what(action: Action) -> Hashable:
    """Key of failures: for a lease its type and region, because each attempt names another host."""
    return ("lease", action.type, action.region) if isinstance(action, LeaseHost) else action


class Lacked:
    """Counts for how long, and in how many rounds in a row, a policy has lacked each metric."""

    def __init__(self) -> None:
        self._since: dict[Hashable, tuple[float, int]] = {}

    def after(self, unknown: Iterable[Unknown], now: float) -> tuple[Unknown, ...]:
        """What the policy lacks in this round, each once and with its time."""
        each = {one.key: one for one in unknown}
        begun = {key: self._since.get(key, (now, 0)) for key in each}
        self._since = {key: (since, rounds + 1) for key, (since, rounds) in begun.items()}
        return tuple(
            replace(one, seconds=now - self._since[key][0], rounds=self._since[key][1]) for key, one in each.items()
        )


def checked(plan: Any) -> Plan:
    """`plan` if it is a `Plan` of well-formed parts; else raises TypeError with a sentence that names the field.

    Actions are values of declared types: one made with a text for a number, or a list for a tuple, would fail much later,
    in the journal or inside the plant.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan() returned {_shown(plan)}; it returns a Plan, such as Plan((LeaseHost('h2', 'small'),))")
    for action in _tuple("actions", plan.actions):
        _check_action(f"actions holds {_shown(action)}", action)
    for name, value in plan.predicted.items() if isinstance(plan.predicted, Mapping) else [("predicted", plan.predicted)]:
        if not isinstance(name, str) or not isinstance(value, Real):
            raise TypeError(f"predicted is {_shown(plan.predicted)}; it maps names to numbers")
    for remark in _tuple("remarks", plan.remarks):
        if not isinstance(remark, str):
            raise TypeError(f"remarks holds {_shown(remark)}; each is a sentence")
    for proposal in _tuple("refused", plan.refused):
        if not isinstance(proposal, Proposal):
            raise TypeError(f"refused holds {_shown(proposal)}; each is a Proposal")
        _check_action(f"refused holds {_shown(proposal.action)}", proposal.action)
    for each in _tuple("unknown", plan.unknown):
        if not isinstance(each, Unknown):
            raise TypeError(f"unknown holds {_shown(each)}; each is an Unknown, with a metric and the rows that lack it")
    return plan


def _check_action(where: str, action: Any) -> None:
    if type(action) not in _FIELDS:
        raise TypeError(f"{where}, which is no action")
    for name, fits, wanted in _FIELDS[type(action)]:
        if not fits(value := getattr(action, name)):
            raise TypeError(f"{where}: field {name!r} is {_shown(value)}, not {wanted}")


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise TypeError(f"{name} is {_shown(value)}, not a tuple")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_token(*pair: Any) -> bool:
    """Whether `pair` is the name of a host and a number."""
    return (
        len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], int | float) and not isinstance(pair[1], bool)
    )


_TYPES: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "a text"),
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    TaskId: (
        lambda value: isinstance(value, TaskId) and isinstance(value.operator, str) and isinstance(value.index, int),
        "a TaskId of a text and a whole number",
    ),
    tuple[str, ...]: (
        lambda value: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
        "a tuple of texts",
    ),
    tuple[TaskId, ...]: (
        lambda value: isinstance(value, tuple) and all(isinstance(each, TaskId) for each in value),
        "a tuple of TaskIds",
    ),
    tuple[tuple[str, float], ...]: (
        lambda value: isinstance(value, tuple) and all(isinstance(each, tuple) and _is_token(*each) for each in value),
        "a tuple of pairs of a text and a number",
    ),
}
"""What a field of a declared type may hold."""
_FIELDS: Mapping[Any, tuple[tuple[str, Callable[[Any], bool], str], ...]] = {
    kind: tuple((name, *_TYPES[declared]) for name, declared in get_type_hints(kind).items()) for kind in KINDS.values()
}
"""Of each kind of action, its fields."""

"""What keeps a controller from doing harm by trying: back-off for actions that keep failing, and a say on policies that do.

Arbitration looks at one plan; this looks at what earlier plans led to.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from elastream.model.action import KINDS, Action, LeaseHost

__all__ = ["BackOff", "check_plan"]


@dataclass(slots=True)
class BackOff:
    """Refuses what failed a moment ago: the wait doubles with each failure in a row, up to `attempts` of them.

    first: seconds to wait after the first failure. rest: seconds after which an action that was given up may be tried
    anew, because what stood in its way may be gone in a run of days.
    """

    first: float = 2.0
    attempts: int = 5
    rest: float = 600.0
    _failures: dict[Hashable, tuple[int, float, str]] = field(default_factory=dict)

    def refusal(self, action: Action, now: float) -> str:
        """Why `action` must wait; empty where it need not."""
        count, last, reason = self._failures.get(_what(action), (0, 0.0, ""))
        if count >= self.attempts and now < last + self.rest:
            return f"given up until {last + self.rest:.0f} s: it failed {count} times in a row, last: {reason}"
        if 0 < count < self.attempts and now < (retry := last + self.first * 2 ** (count - 1)):
            return f"tried again from {retry:.0f} s on: it failed {count} times in a row, last: {reason}"
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
    """What failed: for a lease its type and region, since each attempt is about a host of another name."""
    return ("lease", action.type, action.region) if isinstance(action, LeaseHost) else action


def check_plan(plan: Any) -> tuple[Action, ...]:
    """`plan` if it is a sequence of actions; raises TypeError with a sentence that says what it is instead."""
    if not isinstance(plan, Sequence):
        raise TypeError(f"the plan is no sequence of actions but {plan!r:.80}")
    for item in plan:
        if not isinstance(item, tuple(KINDS.values())):
            raise TypeError(f"the plan holds something that is no action: {item!r:.80}")
        hash(item)  # actions are values; one made with a list for a tuple would fail much later
    return tuple(plan)

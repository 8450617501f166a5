"""How many hosts each application is entitled to: a guaranteed minimum, and shares by priority of the rest.

Numbers only; `arbiter` assigns the hosts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

__all__ = ["Need", "shares"]


@dataclass(frozen=True, slots=True)
class Need:
    """Demand of an application. minimum: hosts guaranteed to it. priority: its weight, above 0. wanted: hosts that it
    holds or requests. critical: whether it misses its service level. held: hosts that it holds, which decide ties.
    """

    minimum: int
    priority: float
    wanted: int
    critical: bool = False
    held: int = 0


def shares(capacity: int, needs: Mapping[str, Need]) -> dict[str, int]:
    """Hosts that each application is entitled to, by name; never more than it wants, nor `capacity` in all.

    1. Each has its minimum, or what it wants where that is less.
    2. The rest is dealt one by one: to the application that wants more and would have the fewest for its priority
       (d'Hondt's method, so that a higher priority never means fewer); of equals, to the one that holds it already.
    3. A critical application that wants more still takes from those of lower priority that are not critical, down to their
       minimum. One that turns critical by that is excluded, and has its share again.

    Hosts that none requests remain unassigned. If there are too few for all minima, priority decides.
    """
    dealt = dict.fromkeys(needs, 0)
    left = capacity
    by_priority = sorted(needs, key=lambda each: (-needs[each].priority, each))
    for name in by_priority:
        dealt[name] = min(needs[name].minimum, needs[name].wanted, left)
        left -= dealt[name]

    def turn(name: str) -> tuple[float, bool, str]:
        return (dealt[name] + 1) / needs[name].priority, dealt[name] >= needs[name].held, name

    wanting = [turn(name) for name, need in needs.items() if dealt[name] < need.wanted]
    heapify(wanting)
    while left and wanting:
        name = heappop(wanting)[-1]
        dealt[name] += 1
        left -= 1
        if dealt[name] < needs[name].wanted:
            heappush(wanting, turn(name))
    for name in by_priority:
        need = needs[name]
        while need.critical and dealt[name] < need.wanted:
            givers = [
                other
                for other, its in needs.items()
                if its.priority < need.priority and not its.critical and dealt[other] > its.minimum
            ]
            if not givers:
                break
            dealt[min(givers, key=lambda each: (needs[each].priority, -dealt[each], each))] -= 1
            dealt[name] += 1
    return dealt

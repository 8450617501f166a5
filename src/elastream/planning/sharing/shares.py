"""How many machines of a pool each application shall have: a guaranteed minimum, and shares by priority of the rest.

The rule alone, for one kind of machine and as numbers; who holds which machine, and how it changes hands, is `pooling`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Need", "shares"]


@dataclass(frozen=True, slots=True)
class Need:
    """What an application could use. minimum: machines guaranteed to it. priority: its weight, above 0. wanted: machines
    that it holds or asks for. critical: whether it misses its service level.
    """

    minimum: int
    priority: float
    wanted: int
    critical: bool = False


def shares(capacity: int, needs: Mapping[str, Need]) -> dict[str, int]:
    """Machines that each application is entitled to, by name; never more than it wants, nor `capacity` in all.

    1. Each has its minimum, or what it wants where that is less.
    2. The rest is dealt one by one: to the application that wants more and would have the fewest for its priority
       (d'Hondt's method, so that a higher priority never means fewer).
    3. A critical application that wants more still takes from those of lower priority that are not critical, down to their
       minimum. Whoever turns critical by that is taken from no longer, and has its share again.

    What nobody wants stays. Where not even the minima can be had, priority decides who goes short.
    """
    dealt = dict.fromkeys(needs, 0)
    left = capacity
    for name in sorted(needs, key=lambda each: (-needs[each].priority, each)):
        dealt[name] = min(needs[name].minimum, needs[name].wanted, left)
        left -= dealt[name]
    while left and (wanting := [name for name, need in needs.items() if dealt[name] < need.wanted]):
        dealt[min(wanting, key=lambda each: ((dealt[each] + 1) / needs[each].priority, each))] += 1
        left -= 1
    for name in sorted(needs, key=lambda each: (-needs[each].priority, each)):
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

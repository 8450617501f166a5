"""Lulls between needs for which new hosts come too late.

A host that starts for longer than a burst lasts serves none of it, and is idle again before the next one. Then hosts must
be there before the need: they stay for as long as the lulls of the past lasted, and for a while after they came.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elastream.core.observation import Observation

# Part of a need above which another one is like it; seconds for which needs and lulls are remembered.
LIKE, MEMORY_S = 0.9, 1800.0
# Multiple of the longest lull for which hosts stay.
MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class Lulls:
    """Needs of the last half hour, and lulls between like ones.

    Attributes:
        needs: (last time, cores) of each need that none has reached since, oldest first; cores decrease.
        late: Time when records were last late.
        too_late: Time when hosts last came after the need for which they were requested, and records were late.
        lulls: (time of its end, seconds) of each lull since hosts come too late.
    """

    needs: tuple[tuple[float, float], ...] = ()
    late: float = -math.inf
    too_late: float = -math.inf
    lulls: tuple[tuple[float, float], ...] = ()

    def after(self, observation: Observation, cores: float, settle: float, *, late: bool) -> "Lulls":
        """Return the lulls after a round.

        Args:
            cores: Cores that the expected rate needs.
            settle: Seconds for which idle hosts stay anyway: shorter lulls do not count.
        """
        now = observation.time
        needs = [(time, highest) for time, highest in self.needs if now - time <= MEMORY_S]
        last = next((time for time, highest in reversed(needs) if highest >= LIKE * cores), now)
        since = max((time for time, _ in self.needs), default=now)
        while needs and needs[-1][1] <= cores:
            needs.pop()
        if needs and cores >= LIKE * needs[-1][1]:
            needs[-1] = (now, needs[-1][1])
        else:
            needs.append((now, cores))
        after = replace(self, needs=tuple(needs), late=now if late else self.late)
        if any(after._missed(request, cores) for request in _arrived(observation, since)):
            after = replace(after, too_late=now)
        if now - after.too_late > MEMORY_S:
            return replace(after, lulls=())
        lulls = [each for each in self.lulls if now - each[0] <= MEMORY_S]
        if now - last > settle:  # its hosts would have gone, and would come too late again
            return replace(after, lulls=(*lulls, (now, now - last)), too_late=now)
        return replace(after, lulls=tuple(lulls))

    def _missed(self, request: float, cores: float) -> bool:
        """Return True if hosts requested at `request` come when their need has passed and records were late."""
        highest = max((most for time, most in self.needs if time >= request), default=0.0)
        return self.late >= request and cores < LIKE * highest

    def hold(self, observation: Observation, settle: float) -> float:
        """Return the seconds for which needs count: `settle` or longer."""
        now = observation.time
        starting = [observation.leases[host].since for host in observation.coming if host not in observation.waiting]
        recent = [request for request in (*starting, *_arrived(observation, now - settle)) if self.late >= request]
        return max((settle, *(now - request for request in recent), *(MARGIN * lasted for _, lasted in self.lulls)))


def _arrived(observation: Observation, since: float) -> Sequence[float]:
    """Return the requests of hosts that came after `since`."""
    leases = (observation.leases[host] for host in observation.usable)
    return [lease.since for lease in leases if (ready := lease.ready_at()) is not None and ready > since]

"""Lulls between needs for which new hosts come too late.

A host that starts for longer than a burst lasts serves none of it, and is idle again before the next one. Then hosts must
be there before the need: they stay for as long as the lulls of the past lasted, and for a while after they came.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elastream.core.observation import Observation

# Part of a need above which another one is like it; seconds for which needs and lulls are remembered.
LIKE, MEMORY_S = 0.9, 1800.0
# Hosts that came last, by which new ones are judged, and the share of them that came too late from which lulls count.
JUDGED, TOO_LATE = 20, 0.5
# Multiple of the longest lull for which hosts stay.
MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class Lulls:
    """Needs of the last half hour, and lulls between like ones.

    Attributes:
        needs: (last time, cores) of each need that none has reached since, oldest first; cores decrease.
        lulls: (time of its end, seconds) of each lull.
        came: For the hosts that came last, True if the need for which one was requested had passed and records were late.
        late: Time when records were last late. That some will be is not enough: they may be few once a burst is over.
    """

    needs: tuple[tuple[float, float], ...] = ()
    lulls: tuple[tuple[float, float], ...] = ()
    came: tuple[bool, ...] = ()
    late: float = -math.inf

    def after(self, observation: Observation, cores: float, settle: float) -> "Lulls":
        """Return the lulls after a round.

        Args:
            settle: Seconds for which idle hosts stay anyway: shorter lulls do not count.
        """
        now, target, latency = observation.time, observation.context.target_latency, observation.latency().value
        late = now if target is not None and latency is not None and latency > target else self.late
        needs = [each for each in self.needs if now - each[0] <= MEMORY_S]
        last = next((time for time, highest in reversed(needs) if highest >= LIKE * cores), now)
        before = max((time for time, _ in self.needs), default=now)
        came = [late >= request and self._passed(request, cores) for request in _arrived(observation, before)]
        while needs and needs[-1][1] <= cores:
            needs.pop()
        if needs and cores >= LIKE * needs[-1][1]:
            needs[-1] = (now, needs[-1][1])
        else:
            needs.append((now, cores))
        lulls = [each for each in self.lulls if now - each[0] <= MEMORY_S]
        lulls += [(now, now - last)] if now - last > settle else []
        return Lulls(tuple(needs), tuple(lulls), (*self.came, *came)[-JUDGED:], late)

    def _passed(self, request: float, cores: float) -> bool:
        """Return True if the need has fallen to `cores` since hosts were requested."""
        return cores < LIKE * max((highest for time, highest in self.needs if time >= request), default=0.0)

    def hold(self, observation: Observation, settle: float) -> float:
        """Return the seconds for which needs count: `settle` or longer."""
        now = observation.time
        starting = [observation.leases[host].since for host in observation.coming if host not in observation.waiting]
        recent = (*starting, *_arrived(observation, now - settle))
        since = [now - request for request in recent if self.late >= request]
        too_late = sum(self.came) > TOO_LATE * len(self.came)
        return max((settle, *since, *(MARGIN * seconds for _, seconds in self.lulls if too_late)))


def _arrived(observation: Observation, since: float) -> Sequence[float]:
    """Return the requests of hosts that came after `since`."""
    leases = (observation.leases[host] for host in observation.usable)
    return [lease.since for lease in leases if (ready := lease.ready_at()) is not None and ready > since]

"""Rule for returning a leased host without losing paid time."""

from elastream.core.hosts import Lease

# Seconds for moving tasks off a host: state partitions move one a batch.
DRAIN_S = 30.0


def due_back(lease: Lease, now: float, pace: float) -> bool:
    """Return True if releasing `lease` now wastes no paid time, or if the next round is too late.

    Releasing earlier in a long billing time unit is wrong: any short lull would release a host that must be leased again
    for a whole unit. If the unit is shorter than the host takes to stop, only the minimum counts.

    Args:
        pace: Seconds until the next round.
    """
    kind = lease.type
    if kind.price == 0:
        return True
    if lease.seconds(now) + kind.stop < kind.billing.minimum:
        return False
    takes = kind.stop + pace
    if kind.billing.unit <= takes:
        return True
    left = lease.remaining(now)
    return kind.stop <= left <= takes + min(DRAIN_S, kind.billing.unit / 10)

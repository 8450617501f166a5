"""When a leased host may go back without losing what is paid."""

from elastream.core.hosts import Lease

DRAINING = 30.0
"""Seconds for moving tasks off a host, where its billing time unit is longer: state partitions move one a batch."""


def due_back(lease: Lease, now: float, pace: float) -> bool:
    """Whether giving `lease` back at `now` wastes nothing that is paid, or the next round, `pace` seconds later, is too
    late.

    As late as that: in a longer part of an hour's end some rounds of low load are found, and the host is leased anew
    for another hour. A host is paid until it has stopped; where a billing time unit is shorter than that takes, only the
    minimum counts.
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
    return kind.stop <= left <= takes + min(DRAINING, kind.billing.unit / 10)

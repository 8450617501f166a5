"""Bills of applications for leases of shared hosts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from elastream.core.hosts import Lease

MAX_SPELLS = 20  # Every claim goes through all spells; beyond this number, those of ended units become a sum.


@dataclass(frozen=True)
class SharedLease:
    """A lease and its holders: (application, from, until or None), oldest first."""

    lease: Lease
    spells: tuple[tuple[str, float, float | None], ...] = ()

    def with_holder(self, application: str, now: float) -> "SharedLease":
        """Return a copy with another holder from `now` on; an empty name for no holder."""
        spells = tuple((who, start, now if end is None else end) for who, start, end in self.spells)
        return SharedLease(self.lease, (*spells, (application, now, None)) if application else spells)


def bill(paid: Iterable[SharedLease], now: float) -> dict[str, float]:
    """Return the amount due by application.

    Holders share the price of a unit by their seconds in it. A unit without a holder is due from the last holder before
    it, else from the first one after it.
    """
    owed: dict[str, float] = {}
    for each in paid:
        if each.spells:
            _bill_one(each, now, owed)
    return owed


def _bill_one(paid: SharedLease, now: float, owed: dict[str, float]) -> None:
    lease, spells = paid.lease, [(who, since, now if until is None else until) for who, since, until in paid.spells]
    start, unit, price = lease.since, lease.type.billing.unit, lease.type.price
    in_order = all(before[1] <= after[1] for before, after in pairwise(spells))  # a clock may have been set back
    last, first, number, units = spells[0][0], 0, 0, lease.units(now)

    def add(who: str, money: float) -> None:
        owed[who] = owed.get(who, 0.0) + money

    while number < units:
        begin, end = start + number * unit, start + (number + 1) * unit
        number += 1
        while first < len(spells) and spells[first][2] <= begin:  # over before this unit, and every later one
            first += 1
        touching = _begun_before(end, spells, first, in_order)
        # Of units that one holder had from beginning to end, or nobody had, there may be a month's: they are one product.
        whole = next(((who, until) for who, since, until in touching if since <= begin and until >= end), None)
        if whole is not None:
            last, last_end = whole
            further = max(number, min(units, int((last_end - start) // unit)))
            add(last, price * (further - number + 1))
            number = further
        elif in_order and not touching:
            add(last, price)
            last = spells[first - 1][0] if first else last
            further = units if first == len(spells) else min(units, int((spells[first][1] - start) // unit))
            if further > number:
                add(last, price * (further - number))
                number = further
        else:
            seconds_held = _seconds_in(touching, begin, end)
            total = sum(seconds_held.values())
            for who, seconds in (seconds_held or {last: 1.0}).items():
                add(who, price * seconds / (total or 1.0))
            latest = touching if in_order else spells
            last = next((who for who, since, _ in reversed(latest) if since < end), last)


def _begun_before(
    end: float, spells: Sequence[tuple[str, float, float]], first: int, in_order: bool
) -> list[tuple[str, float, float]]:
    touching = []
    for number in range(first, len(spells)):
        if spells[number][1] < end:
            touching.append(spells[number])
        elif in_order:
            break
    return touching


def _seconds_in(spells: Iterable[tuple[str, float, float]], begin: float, end: float) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for who, since, until in spells:
        if (length := min(end, until) - max(begin, since)) > 0:
            seconds[who] = seconds.get(who, 0.0) + length
    return seconds


def split_settled(paid: SharedLease, now: float, *, max_spells: int = MAX_SPELLS) -> tuple[SharedLease | None, SharedLease]:
    """Split a lease into a part that can no longer change and the rest; both together have the same bill.

    The first part is None while there are few holders.
    """
    lease, billing = paid.lease, paid.lease.type.billing
    # Each part pays for at least the minimum: so neither is shorter than that.
    units = math.ceil((now - billing.minimum - lease.since) / billing.unit) - 1
    if len(paid.spells) <= max_spells or units < 1 or units * billing.unit < billing.minimum:
        return None, paid
    cut = lease.since + units * billing.unit
    before = max(1, sum(since < cut for _, since, _ in paid.spells))
    # Half a unit earlier is the same number of units, and no rounding of epoch seconds adds one.
    past = SharedLease(replace(lease, until=cut - billing.unit / 2), paid.spells[:before])
    return past, SharedLease(replace(lease, since=cut), paid.spells[before - 1 :])

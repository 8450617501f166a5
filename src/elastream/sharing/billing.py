"""Bills the leases of shared hosts to applications."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from elastream.core.hosts import Lease

MANY = 20
"""Spells of a running lease beyond which those of units that are over become a sum: every claim goes through all."""


@dataclass(frozen=True)
class Paid:
    """One lease of a host, and its holders: (application, from, until or None), oldest first."""

    lease: Lease
    spells: tuple[tuple[str, float, float | None], ...] = ()

    def held_by(self, application: str, now: float) -> "Paid":
        """A copy with another holder from `now` on; empty: no holder."""
        spells = tuple((who, start, now if end is None else end) for who, start, end in self.spells)
        return Paid(self.lease, (*spells, (application, now, None)) if application else spells)


def bill(paid: Iterable[Paid], now: float) -> dict[str, float]:
    """Money that each application owes by `now` for `paid`; together the cost of the leases that had a holder.

    Each unit's price is shared by those who held the host in it, by the seconds for which they did; a unit without a
    holder is owed by the last holder before it, or the first after it if there was none.
    """
    owed: dict[str, float] = {}
    for each in paid:
        if each.spells:
            _bill_one(each, now, owed)
    return owed


def _bill_one(paid: Paid, now: float, owed: dict[str, float]) -> None:
    """Add what is owed for one lease. Each unit is looked at once, and of the spells those that touch it: a lease of months
    has many of both."""
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
        touching = []
        for place in range(first, len(spells)):
            if spells[place][1] < end:
                touching.append(spells[place])
            elif in_order:
                break
        # Of units that one holder had from beginning to end, or nobody had, there may be a month's: they are one product.
        whole = next(((who, until) for who, since, until in touching if since <= begin and until >= end), None)
        if whole is not None:
            last, had = whole
            further = max(number, min(units, int((had - start) // unit)))
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
            held: dict[str, float] = {}
            for who, since, until in touching:
                if (seconds := min(end, until) - max(begin, since)) > 0:
                    held[who] = held.get(who, 0.0) + seconds
            total = sum(held.values())
            for who, seconds in (held or {last: 1.0}).items():
                add(who, price * seconds / (total or 1.0))
            latest = touching if in_order else spells
            last = next((who for who, since, _ in reversed(latest) if since < end), last)


def parted(paid: Paid, now: float, *, max_spells: int = MANY) -> tuple[Paid | None, Paid]:
    """What of `paid` changes no more by `now`, and the rest: `bill` says of both together what it says of the whole.

    None, and all of it, where there are few holders yet: a host that changes hands for months must cost no more to bill.
    """
    lease, billing = paid.lease, paid.lease.type.billing
    # Each part pays for at least the minimum: so neither is shorter than that.
    units = math.ceil((now - billing.minimum - lease.since) / billing.unit) - 1
    if len(paid.spells) <= max_spells or units < 1 or units * billing.unit < billing.minimum:
        return None, paid
    cut = lease.since + units * billing.unit
    before = max(1, sum(since < cut for _, since, _ in paid.spells))
    # Half a unit earlier is the same number of units, and no rounding of epoch seconds adds one.
    past = Paid(replace(lease, until=cut - billing.unit / 2), paid.spells[:before])
    return past, Paid(replace(lease, since=cut), paid.spells[before - 1 :])

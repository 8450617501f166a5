"""Replay of the load's past under several settings of the policy.

Each setting runs in the service model on the outlooks of the time, so it knows nothing in advance. The policy takes the
cheapest setting whose late records stay within the allowance. A load that no forecast catches leads to a nearly constant
fleet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.policies.horizon.budget import Grid, Outlook, hosts_for, need, time_to_serve, waiting_at_start, with_backlog

# Multiples of a host's start for which a host must be idle before it goes.
HOLDS = (0.0, 2.0, 8.0, 30.0)
# Factors on the need of an outlook, for what no scenario contains.
RESERVES = (1.0, 1.2, 1.45)
# Quantiles of the rate whose fleets are tried as the least one.
FLEETS = (0.5, 0.8, 0.95)
# Bins that are replayed: the newest. Their peak is that of parts of so many.
REPLAYED, PEAK_BINS = 960, 120
# Growth of the replayed load for an allowance below 0: at -0.05 the load is half as great again.
STRESS = 10.0
# Costs within this part are equal; then the setting with fewer leases counts.
EQUAL = 0.01
# A fleet is constant if its mean number of hosts is at most this multiple of the least one.
CONSTANT = 1.1
# Part of all late records from which those of one jump do not count.
SINGLE = 0.6
# Part of the least hosts that others must reach for a comparison of their cost.
NOTICED = 0.1
# Most surcharge that follows from it.
MOST_SURCHARGE = 2.0
# Blocks of the past that give the error of a share.
BLOCKS = 10


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of the plan.

    Attributes:
        row: Row of an outlook to serve.
        reserve: Factor on the need of the outlook.
        hold: Seconds for which a host must be idle before it goes.
        least: Fewest hosts.
    """

    row: int = 2
    reserve: float = 1.0
    hold: float = 120.0
    least: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """Result of a replay.

    Attributes:
        late: Share of late records in the replay.
        hosts: Mean number of hosts in the replay.
        surcharge: Factor by which hosts above the least ones cost more than in replays so far.
        explained: Share of the records since the last replay that its setting has late in this one.
    """

    setting: Setting
    late: float = math.nan
    hosts: float = math.nan
    surcharge: float = 1.0
    explained: float = 0.0

    @property
    def constant(self) -> bool:
        """Return True if the number of hosts is hardly ever above the least one."""
        return self.setting.least > 1 and self.hosts <= CONSTANT * self.setting.least


@dataclass(frozen=True, eq=False, slots=True)
class Fleet:
    """Hosts of a replay.

    Attributes:
        kind: Type to lease.
        each: Records/s that a host serves.
        least: Fewest hosts that may be leased.
        most: Most hosts that may be leased.
    """

    kind: HostType
    each: float
    grid: Grid
    least: int
    most: int


@dataclass(eq=False, slots=True)
class _Run:
    """State of all settings in a replay; columns have one entry per setting.

    Attributes:
        coming: Hosts by the bin in which they work, cyclically; shape (start, settings).
        due: Hosts by the bin in which their paid time ends, cyclically; shape (bins, settings).
        waiting: Records that wait.
    """

    ready: Floats
    coming: Floats
    due: Floats
    waiting: Floats
    cost: Floats
    leases: Floats


def replay(
    outlooks: Sequence[Outlook], fleet: Fleet, allowance: float, before: Choice, leased: tuple[float, float]
) -> Choice:
    """Return the cheapest setting for the past.

    Args:
        outlooks: One a bin, oldest first.
        allowance: Share of records that may be late. Below 0 none may, and the load grows by `STRESS` times the amount.
        before: Choice of the last replay.
        leased: Host-seconds, and seconds, since then.
    """
    fleet = replace(fleet, each=fleet.each / (1 + STRESS * max(0.0, -allowance)))
    outlooks = outlooks[-REPLAYED:]
    total = np.stack([each.total for each in outlooks])
    keep, lease = np.stack([each.keep for each in outlooks]), np.stack([each.lease for each in outlooks])
    rates = np.array([each.rate for each in outlooks])
    settings = _settings(rates, total.shape[1], fleet, before.setting)
    rows = np.array([each.row for each in settings])
    reserves = np.array([each.reserve for each in settings])
    holds = np.array([max(1, round(each.hold / fleet.grid.seconds)) for each in settings])
    least = np.array([float(each.least) for each in settings])
    run = _begin(np.maximum(least, hosts_for(reserves * lease[0, rows], fleet.each)), fleet)
    late = np.zeros((rates.size, rows.size))
    needed = np.zeros((rates.size, rows.size))
    groups = [(int(hold), np.flatnonzero(holds == hold)) for hold in np.unique(holds)]
    since, cost = rates.size - round(leased[1] / fleet.grid.seconds), run.cost
    for now in range(rates.size):
        cost = run.cost if now == since else cost
        if now:
            late[now] = _serve(run, rates[now], now, fleet)
        paths, idle = total[now][rows], np.zeros(rows.size)
        up, down = _needs(run, paths, reserves * keep[now][rows], reserves * lease[now][rows], now, fleet)
        needed[now] = np.maximum(up, down)
        for hold, columns in groups:
            idle[columns] = needed[max(0, now - hold + 1) : now + 1, columns].max(axis=0)
        target = np.minimum(np.maximum(up, least), fleet.most)
        _change(run, target, np.maximum(np.maximum(idle, target), least), now, fleet)
    surcharge, explained = before.surcharge, 0.0
    if 0 < since < rates.size:
        column = settings.index(before.setting)
        explained = float(late[since:, column].sum()) / (float(rates[since:].sum()) * fleet.grid.seconds + 1e-9)
        foretold = float((run.cost - cost)[column]) / (rates.size - since) - before.setting.least
        if foretold >= NOTICED * max(1, before.setting.least):
            paid = (leased[0] / leased[1] - before.setting.least) / foretold
            surcharge = float(np.clip((surcharge + paid) / 2, 1.0, MOST_SURCHARGE))
    variable = np.maximum(0.0, run.cost - least * rates.size)
    run.cost = run.cost + (surcharge - 1) * variable
    return replace(_cheapest(settings, run, late, rates, fleet, allowance), surcharge=surcharge, explained=explained)


def _settings(rates: Floats, rows: int, fleet: Fleet, before: Setting) -> list[Setting]:
    """Return the settings to try, among them the present one."""
    parts = np.array_split(rates, max(1, rates.size // PEAK_BINS))
    top = int(hosts_for(max(float(need(part[None], fleet.grid)[0]) for part in parts), fleet.each))
    usual = (int(each) for each in hosts_for(np.quantile(rates, FLEETS), fleet.each))
    fleets = {*usual, fleet.least, top - 1, top, top + 1}
    allowed = sorted({min(max(each, fleet.least), fleet.most) for each in fleets})
    holds = [part * max(fleet.grid.host_start, fleet.grid.seconds) for part in HOLDS]
    tried = [
        Setting(row, reserve, hold, least) for least, row, reserve, hold in product(allowed, range(rows), RESERVES, holds)
    ]
    return tried if before in tried else [*tried, before]


def _paid(fleet: Fleet) -> tuple[int, int]:
    """Return the bins that a lease pays at first, and with each renewal."""
    billing = fleet.kind.billing
    renewed = max(1, round(billing.unit / fleet.grid.seconds))
    return max(renewed, math.ceil(billing.minimum / fleet.grid.seconds - 1e-9)), renewed


def _begin(ready: Floats, fleet: Fleet) -> _Run:
    ready = np.minimum(ready, fleet.most)
    due = np.zeros((_paid(fleet)[0], ready.size))
    due[0] = ready
    zero = np.zeros(ready.size)
    return _Run(ready, np.zeros((fleet.grid.start, ready.size)), due, zero, zero, zero)


def _serve(run: _Run, rate: float, now: int, fleet: Fleet) -> Floats:
    """Serve a bin at `rate`; return its late records."""
    arrived, capacity = rate * fleet.grid.seconds, run.ready * fleet.each
    run.waiting = np.maximum(0.0, run.waiting + arrived - capacity * fleet.grid.seconds)
    late = np.where(run.waiting > fleet.grid.budget * np.maximum(capacity, 1e-9), arrived, 0.0)
    slot = now % fleet.grid.start
    run.ready = run.ready + run.coming[slot]
    run.coming[slot] = 0.0
    return late


def _needs(run: _Run, paths: Floats, keep: Floats, lease: Floats, now: int, fleet: Fleet) -> tuple[Floats, Floats]:
    """Return the hosts to have and the hosts to keep."""
    order = [(now + 1 + bin) % fleet.grid.start for bin in range(fleet.grid.start)]
    came = np.concatenate([np.zeros((1, run.ready.size)), np.cumsum(run.coming[order], axis=0)[:-1]])
    served = np.concatenate([np.zeros((1, run.ready.size)), np.cumsum(run.ready + came, axis=0)]).T * (
        fleet.each * fleet.grid.seconds
    )
    until, after = paths[:, : fleet.grid.start + 1], paths[:, fleet.grid.start :]
    within = time_to_serve(run.waiting, run.ready * fleet.each, fleet.grid)
    up = with_backlog(lease, after, waiting_at_start(until, run.waiting, served), within, fleet.grid)
    down = with_backlog(keep, paths, run.waiting, within, fleet.grid)
    return hosts_for(up, fleet.each), hosts_for(down, fleet.each)


def _change(run: _Run, target: Floats, floor: Floats, now: int, fleet: Fleet) -> None:
    """Lease missing hosts, and release surplus ones whose paid time ends; charge them in bins of a host."""
    first, renewed = _paid(fleet)
    pending = run.coming.sum(axis=0)
    have = run.ready + pending
    added = np.maximum(0.0, target - have)
    surplus = np.where(pending + added == 0, np.maximum(0.0, have - floor), 0.0)
    slot = now % first
    due = run.due[slot].copy()
    gone = np.minimum(np.minimum(surplus, due), run.ready - 1)
    run.due[slot] = 0.0
    run.due[(now + renewed) % first] += due - gone
    run.due[slot] += added
    run.ready = run.ready - gone
    run.coming[now % fleet.grid.start] += added
    run.leases = run.leases + added
    stops = fleet.kind.stop / fleet.grid.seconds if renewed == 1 else 0.0
    run.cost = run.cost + renewed * (due - gone) + first * added + stops * gone


def _recurring(late: Floats, steps: int) -> Floats:
    """Return the late records without those of a jump that the load had only once, which is no pattern.

    A load had one jump if most late records of the least fleet are in two horizons, or in a tenth of a shorter past.

    Args:
        late: Shape (bins, settings), the most frugal setting first.
        steps: Bins of a horizon.
    """
    length = max(1, min(2 * steps, late.shape[0] // BLOCKS))
    total = np.concatenate([[0.0], np.cumsum(late[:, 0])])
    within = total[length:] - total[:-length]
    first = int(within.argmax())
    if within[first] < SINGLE * total[-1]:
        return late
    return np.concatenate([late[:first], np.zeros((length, late.shape[1])), late[first + length :]])


def _cheapest(
    settings: Sequence[Setting], run: _Run, late: Floats, rates: Floats, fleet: Fleet, allowance: float
) -> Choice:
    arrived = float(rates[1:].sum()) * fleet.grid.seconds + 1e-9
    late = _recurring(late, fleet.grid.steps)
    share = late.sum(axis=0) / arrived
    blocks = min(BLOCKS, max(2, rates.size // (3 * (fleet.grid.start + 1))))
    parts = np.stack([part.sum(axis=0) for part in np.array_split(late, blocks)])
    error = parts.std(axis=0, ddof=1) * math.sqrt(blocks) / arrived
    meets = share + error <= max(allowance, 0.0)
    rows = np.array([each.row for each in settings])
    cost = run.cost if fleet.kind.price > 0 else run.leases
    if meets.any():
        near = np.flatnonzero(meets & (cost <= (1 + EQUAL) * cost[meets].min()))
        best = int(near[np.lexsort((-rows[near], run.leases[near]))[0]])
    else:
        best = int(np.lexsort((cost, np.round(share, 3)))[0])
    return Choice(settings[best], float(share[best]), float(run.cost[best]) / rates.size)

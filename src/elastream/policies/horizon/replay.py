"""Replay of the load's past under several settings of the policy.

Each setting runs in the service model on the outlooks of the time, so it knows nothing in advance. The policy takes the
cheapest setting whose late records stay within the allowance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.policies.horizon.budget import Grid, Outlook, hosts_for, need, time_late, waiting_at_start, with_backlog
from elastream.policies.horizon.compiled import njit

# Multiples of a host's start for which a host must be idle before it goes.
HOLDS = (0.0, 2.0, 8.0, 30.0)
# Factors on the need of an outlook, for what no scenario contains.
RESERVES = (1.0, 1.2, 1.45)
# Quantiles of the rate whose fleets are tried as the least one.
FLEETS = (0.5, 0.8, 0.95)
# Fleets between the least and the greatest that are tried as the only one.
FIXED = 24
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
# Blocks of the past that give the error of a share.
BLOCKS = 10


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of the plan.

    Attributes:
        reserve: Factor on the need of the outlook.
        hold: Idle seconds after which a host goes.
        fixed: No others are leased while the need is within what the replay has met.
    """

    row: int = 1
    reserve: float = 1.0
    hold: float = 120.0
    least: int = 1
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Result of a replay.

    Attributes:
        late: Share of late records.
        hosts: Mean number of hosts.
        explained: Share of records since the last replay that are late in this one.
        met: Largest backlog (records) foreseen for the time when a host works, of which none was late.
        seconds: Length of the past that was replayed.
    """

    setting: Setting
    late: float = math.nan
    hosts: float = math.nan
    explained: float = 0.0
    met: float = 0.0
    seconds: float = 0.0

    @property
    def constant(self) -> bool:
        """Return True if the hosts hardly ever exceed the least number."""
        return self.setting.least > 1 and self.hosts <= CONSTANT * self.setting.least


@dataclass(frozen=True, eq=False, slots=True)
class Fleet:
    """Hosts of a replay.

    Attributes:
        each: Records/s that a host serves.
        spare: Factor on `each` of a fixed fleet.
    """

    kind: HostType
    each: float
    grid: Grid
    least: int
    most: int
    spare: float = 1.0


@dataclass(frozen=True, eq=False, slots=True)
class _Runs:
    """Results of a replay; columns are settings.

    Attributes:
        late: Late records; shape (bins, settings).
        costs: Costs in bins of a host; shape (settings,), as the others.
        vain: Largest backlog foreseen in vain (records).
    """

    late: Floats
    costs: Floats
    leases: Floats
    vain: Floats


def replay(
    outlooks: Sequence[Outlook],
    fleet: Fleet,
    allowance: float,
    before: Choice,
    since: float = 0.0,
    jumps: bool = True,
    forgives: bool = True,
) -> Choice:
    """Return the cheapest setting for the past.

    Args:
        allowance: Share of records that may be late. Below 0 none may, and the load grows by `STRESS` times the amount.
        since: Seconds since the last replay.
        jumps: False if the past is young: its outlooks say nothing about its worst jump.
        forgives: True if late records of a jump that came once do not count.
    """
    fleet = replace(fleet, each=fleet.each / (1 + STRESS * max(0.0, -allowance)))
    outlooks = outlooks[-REPLAYED:]
    rates = np.array([each.rate for each in outlooks])
    settings = _settings(rates, outlooks[0].keep.size - (not jumps), fleet, before.setting)
    runs, explained = _runs(outlooks, rates, settings, fleet), 0.0
    if 0 < (first := rates.size - round(since / fleet.grid.seconds)) < rates.size:
        late = runs.late[first:, settings.index(before.setting)]
        explained = float(late.sum()) / (float(rates[first:].sum()) * fleet.grid.seconds + 1e-9)
    return replace(_cheapest(settings, runs, rates, fleet, allowance, forgives), explained=explained)


def _runs(outlooks: Sequence[Outlook], rates: Floats, settings: Sequence[Setting], fleet: Fleet) -> _Runs:
    grid, (first, renewed) = fleet.grid, _paid(fleet, rates.size)
    totals = np.stack([each.total for each in outlooks])
    keep, lease = np.stack([each.keep for each in outlooks]), np.stack([each.lease for each in outlooks])
    stops = fleet.kind.stop / grid.seconds if renewed == 1 else 0.0
    late = np.zeros((rates.size, len(settings)))
    figures = np.zeros((3, len(settings)))
    for column, each in enumerate(settings):
        hold = max(1, round(each.hold / grid.seconds))
        figures[:, column] = _run(
            totals[:, each.row],
            each.reserve * keep[:, each.row],
            each.reserve * lease[:, each.row],
            rates,
            (float(each.least), hold, each.fixed),
            (fleet.each * (fleet.spare if each.fixed else 1.0), float(fleet.most), grid.start, first, renewed, stops),
            (grid.seconds, grid.budget, grid.recovery, grid.lost),
            late[:, column],
        )
    return _Runs(late, *figures)


def _settings(rates: Floats, rows: int, fleet: Fleet, before: Setting) -> list[Setting]:
    parts = np.array_split(rates, max(1, rates.size // PEAK_BINS))
    top = int(hosts_for(max(need(part, fleet.grid.waits) for part in parts), fleet.each))
    usual = (int(hosts_for(rate, fleet.each)) for rate in np.quantile(rates, FLEETS))
    fleets = {*usual, fleet.least, top - 1, top, top + 1}
    allowed = sorted({min(max(each, fleet.least), fleet.most) for each in fleets})
    holds = [part * max(fleet.grid.host_start, fleet.grid.seconds) for part in HOLDS]
    tried = [
        Setting(row, reserve, hold, least) for least, row, reserve, hold in product(allowed, range(rows), RESERVES, holds)
    ]
    fixed = np.unique(np.linspace(allowed[0], allowed[-1], FIXED).round().astype(np.int64)).tolist()
    tried += [Setting(0, 1.0, 0.0, least, fixed=True) for least in fixed]
    return tried if before in tried else [*tried, before]


def _paid(fleet: Fleet, bins: int) -> tuple[int, int]:
    """Return the bins for which a lease is paid first and again, at most twice `bins`."""
    billing = fleet.kind.billing
    renewed = max(1, round(billing.unit / fleet.grid.seconds))
    first = max(renewed, math.ceil(billing.minimum / fleet.grid.seconds - 1e-9))
    return min(first, 2 * bins), min(renewed, 2 * bins)


@njit(cache=True)
def _run(
    totals: Floats,
    keep: Floats,
    lease: Floats,
    rates: Floats,
    setting: tuple[float, int, bool],
    fleet: tuple[float, float, int, int, int, float],
    times: tuple[float, float, float, int],
    late: Floats,
) -> tuple[float, float, float]:
    """Run one setting, and fill `late` with the late records of each bin.

    Args:
        totals: Records of the scenario by the edges of the bins ahead; shape (bins, steps + 1).
        keep: Needs of each bin with reserve, as in `Outlook`; likewise `lease`.

    Returns:
        Cost in bins of a host, leases, and the largest backlog foreseen in vain (records).
    """
    # A fleet's times are in bins, as is `lost`; others are in seconds.
    least, hold, fixed = setting
    each, most, start, first, renewed, stops = fleet
    seconds, budget, recovery, lost = times
    # Hosts by the bin in which they work, and in which their paid time ends, cyclically.
    coming, due = np.zeros(start), np.zeros(first)
    needed, foreseen, served = np.zeros(rates.size), np.zeros(rates.size), np.zeros(start + 1)
    ready = min(least if fixed else max(least, hosts_for(lease[0], each)), most)
    due[0] = ready
    waiting = cost = leases = 0.0
    for now in range(rates.size):
        if now:
            arrived, capacity = rates[now] * seconds, ready * each
            waiting = max(0.0, waiting + arrived - capacity * seconds)
            late[now] = arrived if waiting > budget * max(capacity, 1e-9) else 0.0
            ready += coming[now % start]
            coming[now % start] = 0.0
        there, total = ready, 0.0
        for step in range(start):
            total += there
            served[step + 1] = total * (each * seconds)
            there += coming[(now + 1 + step) % start]
        then = waiting_at_start(totals[now, : start + 1], waiting, served)
        foreseen[now] = then
        behind = time_late(waiting, ready * each, budget, recovery)
        inherited = waiting_at_start(totals[now, : lost + 1], waiting, served[: lost + 1])
        later = time_late(inherited, ready * each, budget, recovery)
        up = 0.0 if fixed else hosts_for(with_backlog(lease[now], totals[now, start:], then, later, budget, seconds), each)
        down = 0.0 if fixed else hosts_for(with_backlog(keep[now], totals[now], waiting, behind, budget, seconds), each)
        needed[now] = 0.0 if fixed else hosts_for(max(keep[now], lease[now]), each)
        target = min(max(up, least), most)
        floor = max(needed[max(0, now - hold + 1) : now + 1].max(), target, down, least)
        have = ready + coming.sum()
        added = max(0.0, target - have)
        surplus = max(0.0, have - floor) if have == ready and not added else 0.0
        ending = due[now % first]
        gone = min(surplus, ending, ready - 1)
        due[now % first] = 0.0
        due[(now + renewed) % first] += ending - gone
        due[now % first] += added
        ready -= gone
        coming[now % start] += added
        leases += added
        cost += renewed * (ending - gone) + first * added + stops * gone
    return cost - _paid_ahead(due, least, rates.size), leases, vain(foreseen, late, start)


@njit(cache=True)
def vain(foreseen: Floats, late: Floats, start: int) -> float:
    """Return the largest backlog of `foreseen` after which no record was late for `start` bins."""
    most = 0.0
    for now in range(foreseen.size - start):
        if foreseen[now] > most and late[now : now + start + 1].max() <= 0:
            most = foreseen[now]
    return float(most)


@njit(cache=True)
def _paid_ahead(due: Floats, least: float, now: int) -> float:
    """Return the bins from `now` on for which the `least` hosts are paid; these stay in use."""
    ahead, left = 0.0, least
    for bins in range(due.size - 1, 0, -1):
        hosts = min(due[(now + bins) % due.size], left)
        ahead, left = ahead + bins * hosts, left - hosts
    return ahead


def _recurring(late: Floats, steps: int) -> Floats:
    """Return the late records without those of a jump that came only once.

    Args:
        late: Shape (bins, settings), the most frugal setting first.
    """
    # One jump: most late records of the least fleet are in two horizons, or in a tenth of a shorter past.
    length = max(1, min(2 * steps, late.shape[0] // BLOCKS))
    total = np.concatenate([[0.0], np.cumsum(late[:, 0])])
    within = total[length:] - total[:-length]
    first = int(within.argmax())
    if within[first] < SINGLE * total[-1]:
        return late
    return np.concatenate([late[:first], np.zeros((length, late.shape[1])), late[first + length :]])


def _cheapest(
    settings: Sequence[Setting], runs: _Runs, rates: Floats, fleet: Fleet, allowance: float, forgives: bool
) -> Choice:
    arrived = float(rates[1:].sum()) * fleet.grid.seconds + 1e-9
    fixed = np.array([each.fixed for each in settings])
    late = _recurring(runs.late, fleet.grid.steps) if forgives else runs.late
    late = np.where(fixed, runs.late, late)  # they do not answer a jump, so all count
    share = late.sum(axis=0) / arrived
    blocks = min(BLOCKS, max(2, rates.size // (3 * (fleet.grid.start + 1))))
    parts = np.stack([part.sum(axis=0) for part in np.array_split(late, blocks)])
    error = parts.std(axis=0, ddof=1) * math.sqrt(blocks) / arrived
    meets = share + error <= max(allowance, 0.0)
    rows = np.array([each.row for each in settings])
    cost = runs.costs if fleet.kind.price > 0 else runs.leases
    if meets.any():
        near = np.flatnonzero(meets & (cost <= (1 + EQUAL) * cost[meets].min()))
        near = near if fixed[near].all() else near[~fixed[near]]  # the others answer a change sooner
        best = int(near[np.lexsort((-rows[near], runs.leases[near]))[0]])
    else:
        best = int(np.lexsort((cost, np.round(share, 3)))[0])
    hosts, seconds = float(runs.costs[best]) / rates.size, rates.size * fleet.grid.seconds
    return Choice(settings[best], float(share[best]), hosts, met=float(runs.vain[best]), seconds=seconds)

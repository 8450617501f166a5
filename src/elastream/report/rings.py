"""State of keyed operators over a run: rings of hosts, standby replicas, and owners at the end."""

import html
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from elastream.core.ring import Ring
from elastream.core.wording import clock, counted
from elastream.recording.recorder import Recording
from elastream.report.drawing import PALETTE, Json, add_axis, add_title, axis_of, scatter, x_of

# Most changes of rings and replicas that are drawn; of more, evenly chosen ones.
MAX_SPANS = 300
# Position of the replica bar within the height of an interval.
REPLICA_BAR = (0.62, 0.9)

T = TypeVar("T")
# State partitions of an operator with a standby replica, by host.
Replicas = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Interval:
    """Part of a ring that a host owned."""

    host: str
    parts: tuple[tuple[float, float], ...]  # [begin, end) of the keys, two parts if they cross 0
    since: float  # seconds
    until: float  # seconds
    keepers: tuple[str, ...] = ()  # hosts with standby replicas of it, most replicas first


@dataclass(frozen=True, slots=True)
class Bands:
    """The ring of an operator over a run."""

    operator: str
    intervals: tuple[Interval, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host that was ever on it, in order of arrival."""
        return tuple(dict.fromkeys(each.host for each in self.intervals))


@dataclass(frozen=True, slots=True)
class StateOf:
    """State of an operator on one host."""

    operator: str
    host: str
    owned: int  # partitions that the host owns
    of: int  # all partitions
    token: float | None  # on the ring; None without a ring
    keepers: tuple[str, ...]  # hosts with standby replicas of what it owns
    keeps: int  # partitions of which it has standby replicas


def rings_over_time(recording: Recording) -> tuple[Bands, ...]:
    """Return the ring of each operator that had one."""
    series, counts = recording.series, _partitions(recording)
    changes = sorted({number for number, _ in (*series.rings, *series.replicas)})
    if len(changes) > MAX_SPANS:
        changes = [changes[number * len(changes) // MAX_SPANS] for number in range(MAX_SPANS)]
    end = max([recording.end, *recording.times[-1:].tolist()], default=0.0)
    intervals: dict[str, list[Interval]] = {}
    for number, following in pairwise([*changes, len(series.times)]):
        until = series.times[following] if following < len(series.times) else end
        replicas = _last(series.replicas, number, {})
        for operator, tokens in _last(series.rings, number, {}).items():
            ring = Ring(tokens)
            for host in ring.nodes:
                keepers = _keepers(replicas.get(operator, {}), _numbers(ring, host, counts.get(operator, 0)))
                intervals.setdefault(operator, []).append(
                    Interval(host, _parts(ring, host), series.times[number], until, keepers)
                )
    return tuple(Bands(operator, tuple(intervals)) for operator, intervals in intervals.items())


def state_at_the_end(recording: Recording) -> tuple[StateOf, ...]:
    """Return the final state of each keyed operator by host; empty without rings and replicas."""
    series = recording.series
    if not (series.rings or series.replicas):
        return ()
    last, counts = len(series.times), _partitions(recording)
    rings, replicas = _last(series.rings, last, {}), _last(series.replicas, last, {})
    placed = next((each for each in reversed(series.placed) if each), {})
    states = []
    for operator in sorted({*rings, *replicas}):
        row = recording.operators.index(operator) if operator in recording.operators else -1
        owned: dict[str, list[int]] = {}
        for (of, index), host in sorted(placed.items()):
            if of == row:
                owned.setdefault(host, []).append(index)
        tokens, copies = rings.get(operator, {}), replicas.get(operator, {})
        hosts = [*tokens, *(host for host in (*owned, *copies) if host not in tokens)]
        states += [
            StateOf(
                operator, host, len(owned.get(host, ())), counts.get(operator, 0), tokens.get(host),
                _keepers(copies, owned.get(host, ())), len(copies.get(host, ())),
            )
            for host in dict.fromkeys(hosts)
        ]  # fmt: skip
    return tuple(states)


def _last(changes: Sequence[tuple[int, T]], number: int, before: T) -> T:
    """Return the value of the last change by observation `number`."""
    at = bisect_right([each for each, _ in changes], number)
    return changes[at - 1][1] if at else before


def _partitions(recording: Recording) -> Mapping[str, int]:
    """Return the number of state partitions by operator, as ever observed."""
    series, names = recording.series, recording.operators
    counts: dict[str, int] = {}
    placements = {id(placed): placed for placed in series.placed}
    for placed in placements.values():
        for of, index in placed:
            counts[names[of]] = max(counts.get(names[of], 0), index + 1)
    return counts


def _numbers(ring: Ring, host: str, count: int) -> tuple[int, ...]:
    return ring.partitions(host, count) if count else ()


def _parts(ring: Ring, host: str) -> tuple[tuple[float, float], ...]:
    begin, end = ring.interval(host)
    return ((begin, end),) if begin < end else tuple(each for each in ((begin, 1.0), (0.0, end)) if each[0] < each[1])


def _keepers(replicas: Replicas, partitions: Sequence[int]) -> tuple[str, ...]:
    """Return hosts with standby replicas of any of the partitions, most replicas first."""
    chosen = set(partitions)
    counts = {host: len(chosen.intersection(numbers)) for host, numbers in replicas.items()}
    return tuple(sorted((host for host in counts if counts[host]), key=lambda host: (-counts[host], host)))


def add_bands(
    data: list[Json], layout: Json, bands: Bands, colours: Mapping[str, str], number: int, low: float, high: float
) -> None:
    """Draw an operator's ring as panel `number`, between heights `low` and `high` of the figure.

    Bands have the owners' colours; a bar on each has the colour of the host with its standby replica.
    """
    axis = axis_of(number)
    areas: dict[tuple[str, bool], tuple[list[int | None], list[float | None]]] = {}
    for each in bands.intervals:
        for begin, end in each.parts:
            _area(areas, (each.host, False), each, begin, end)
            if each.keepers:
                bottom, top = (begin + share * (end - begin) for share in REPLICA_BAR)
                _area(areas, (each.keepers[0], True), each, bottom, top)
    for (host, copy), (x, y) in sorted(areas.items(), key=lambda area: area[0][1]):
        fill = {"fill": "toself", "fillcolor": colours[host] + ("" if copy else "99"), "hoverinfo": "skip"}
        data.append(scatter(axis, host, x, y, mode="none", **fill))
    for host in bands.hosts:
        mine = [each for each in bands.intervals if each.host == host]
        x, y = [x_of(each.since) for each in mine], [_middle(each) for each in mine]
        marker = {"size": 5, "color": colours[host], "line": {"width": 1, "color": "#ffffff"}}
        hover = {"text": [_hover_text(each) for each in mine], "hovertemplate": "%{text}<extra></extra>"}
        data.append(scatter(axis, host, x, y, mode="markers", marker=marker, **hover))
    add_axis(layout, axis, low, high, range=[0, 1], nticks=5, showgrid=False)
    copied = any(each.keepers for each in bands.intervals)
    named = [f"<span style='color:{colours[host]}'>{html.escape(host)}</span>" for host in bands.hosts[: len(PALETTE)]]
    if len(bands.hosts) > len(PALETTE):
        named.append(f"and {counted(len(bands.hosts) - len(PALETTE), 'host')} more")
    note = "<span style='color:#8a8f98'>by owner; bar: keeps its copy</span>" if copied else ""
    add_title(layout, f"Ring of {html.escape(bands.operator)}", [*named, *([note] if note else [])], high)


def _area(
    areas: dict[tuple[str, bool], tuple[list[int | None], list[float | None]]],
    key: tuple[str, bool],
    each: Interval,
    low: float,
    high: float,
) -> None:
    x, y = areas.setdefault(key, ([], []))
    since, until = x_of(each.since), x_of(each.until)
    x += [since, until, until, since, since, None]
    y += [round(at, 5) for at in (low, low, high, high, low)] + [None]


def _hover_text(each: Interval) -> str:
    parts = " and ".join(f"{begin:.3g} to {end:.3g}" for begin, end in each.parts)
    copies = f", copies on {', '.join(each.keepers)}" if each.keepers else ""
    return html.escape(f"{clock(each.since)}: {each.host} owns {parts}{copies}")


def _middle(each: Interval) -> float:
    """Return where the name of an interval's host is drawn, in the larger of its parts."""
    begin, end = max(each.parts, key=lambda part: part[1] - part[0])
    return (begin + end) / 2

"""Where the state of keyed operators was: rings of hosts over time, who kept copies, and who has what at the end."""

import html
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from elastream.core.ring import Ring
from elastream.core.wording import clock, counted
from elastream.recording.recorder import Recording
from elastream.report.drawing import PALETTE, Json, add_title, axis_of, x_of

SPANS = 300
"""Most changes of rings and copies that are drawn; of more, evenly chosen ones."""
COPY = (0.62, 0.9)
"""Where in the height of an interval the bar is that says who keeps its copies."""

T = TypeVar("T")
Held = Mapping[str, Sequence[int]]
"""State partitions of an operator that each host keeps copies of."""


@dataclass(frozen=True, slots=True)
class Interval:
    """What a host owned of a ring from `since` to `until`, seconds: [begin, end) of the keys, in parts where it goes
    through 0. keepers: hosts with copies of it, that with most of them first."""

    host: str
    parts: tuple[tuple[float, float], ...]
    since: float
    until: float
    keepers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bands:
    """The ring of an operator over a run."""

    operator: str
    intervals: tuple[Interval, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host that was ever on it, in the order of their coming."""
        return tuple(dict.fromkeys(each.host for each in self.intervals))


@dataclass(frozen=True, slots=True)
class StateOf:
    """What a host has of an operator's state: partitions that it owns, of how many; its token, None without a ring; hosts
    that keep copies of what it owns; and of how many partitions it keeps copies itself."""

    operator: str
    host: str
    owned: int
    of: int
    token: float | None
    keepers: tuple[str, ...]
    keeps: int


def rings_over_time(recording: Recording) -> tuple[Bands, ...]:
    """The ring of each operator that had one."""
    series, counts = recording.series, _partitions(recording)
    changes = sorted({number for number, _ in (*series.rings, *series.held)})
    if len(changes) > SPANS:
        changes = [changes[number * len(changes) // SPANS] for number in range(SPANS)]
    end = max([recording.end, *recording.times[-1:].tolist()], default=0.0)
    found: dict[str, list[Interval]] = {}
    for number, following in pairwise([*changes, len(series.times)]):
        until = series.times[following] if following < len(series.times) else end
        held = _last(series.held, number, {})
        for operator, tokens in _last(series.rings, number, {}).items():
            ring = Ring(tokens)
            for host in ring.nodes:
                keepers = _keepers(held.get(operator, {}), _numbers(ring, host, counts.get(operator, 0)))
                found.setdefault(operator, []).append(
                    Interval(host, _parts(ring, host), series.times[number], until, keepers)
                )
    return tuple(Bands(operator, tuple(intervals)) for operator, intervals in found.items())


def state_at_the_end(recording: Recording) -> tuple[StateOf, ...]:
    """Who had what of each keyed operator's state when it was last seen; empty without rings and copies."""
    series = recording.series
    if not (series.rings or series.held):
        return ()
    last, counts = len(series.times), _partitions(recording)
    rings, held = _last(series.rings, last, {}), _last(series.held, last, {})
    placed = next((each for each in reversed(series.placed) if each), {})
    found = []
    for operator in sorted({*rings, *held}):
        row = recording.operators.index(operator) if operator in recording.operators else -1
        owned: dict[str, list[int]] = {}
        for (of, index), host in sorted(placed.items()):
            if of == row:
                owned.setdefault(host, []).append(index)
        tokens, copies = rings.get(operator, {}), held.get(operator, {})
        hosts = [*tokens, *(host for host in (*owned, *copies) if host not in tokens)]
        found += [
            StateOf(
                operator, host, len(owned.get(host, ())), counts.get(operator, 0), tokens.get(host),
                _keepers(copies, owned.get(host, ())), len(copies.get(host, ())),
            )
            for host in dict.fromkeys(hosts)
        ]  # fmt: skip
    return tuple(found)


def _last(changes: Sequence[tuple[int, T]], number: int, before: T) -> T:
    """What the last change by observation `number` says."""
    at = bisect_right([each for each, _ in changes], number)
    return changes[at - 1][1] if at else before


def _partitions(recording: Recording) -> Mapping[str, int]:
    """State partitions by operator: as many as were ever seen placed or copied."""
    series, names = recording.series, recording.operators
    found: dict[str, int] = {}
    seen = {id(placed): placed for placed in series.placed}
    for placed in seen.values():
        for of, index in placed:
            found[names[of]] = max(found.get(names[of], 0), index + 1)
    return found


def _numbers(ring: Ring, host: str, count: int) -> tuple[int, ...]:
    return ring.partitions(host, count) if count else ()


def _parts(ring: Ring, host: str) -> tuple[tuple[float, float], ...]:
    begin, end = ring.interval(host)
    return ((begin, end),) if begin < end else tuple(each for each in ((begin, 1.0), (0.0, end)) if each[0] < each[1])


def _keepers(held: Held, partitions: Sequence[int]) -> tuple[str, ...]:
    """Hosts that keep copies of any of these, that of most first."""
    wanted = set(partitions)
    counts = {host: len(wanted.intersection(numbers)) for host, numbers in held.items()}
    return tuple(sorted((host for host in counts if counts[host]), key=lambda host: (-counts[host], host)))


def add_bands(
    data: list[Json], layout: Json, bands: Bands, colours: Mapping[str, str], number: int, low: float, high: float
) -> None:
    """Draw the ring of an operator as panel `number`, between heights `low` and `high` of the figure: bands of the owners'
    colours, and on each a bar of the colour of the host that keeps copies of it."""
    axis = axis_of("y", number)
    areas: dict[tuple[str, bool], tuple[list[int | None], list[float | None]]] = {}
    for each in bands.intervals:
        for begin, end in each.parts:
            _area(areas, (each.host, False), each, begin, end)
            if each.keepers:
                height = end - begin
                _area(areas, (each.keepers[0], True), each, begin + COPY[0] * height, begin + COPY[1] * height)
    for (host, copy), (x, y) in sorted(areas.items(), key=lambda area: area[0][1]):
        data.append(
            {
                "type": "scatter", "mode": "none", "name": host, "x": x, "y": y, "xaxis": "x", "yaxis": axis,
                "fill": "toself", "fillcolor": colours[host] + ("" if copy else "99"), "hoverinfo": "skip",
            }
        )  # fmt: skip
    for host in bands.hosts:
        mine = [each for each in bands.intervals if each.host == host]
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": host, "xaxis": "x", "yaxis": axis,
                "x": [x_of(each.since) for each in mine],
                "y": [_middle(each) for each in mine],
                "text": [_said(each) for each in mine],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"size": 5, "color": colours[host], "line": {"width": 1, "color": "#ffffff"}},
            }
        )  # fmt: skip
    layout[f"yaxis{axis[1:]}"] = {
        "domain": [low, high], "anchor": "x", "range": [0, 1], "nticks": 5, "zeroline": False, "showgrid": False,
        "fixedrange": True,
    }  # fmt: skip
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


def _said(each: Interval) -> str:
    parts = " and ".join(f"{begin:.3g} to {end:.3g}" for begin, end in each.parts)
    copies = f", copies on {', '.join(each.keepers)}" if each.keepers else ""
    return html.escape(f"{clock(each.since)}: {each.host} owns {parts}{copies}")


def _middle(each: Interval) -> float:
    """Where the name of an interval's host is, in the larger of its parts."""
    begin, end = max(each.parts, key=lambda part: part[1] - part[0])
    return (begin + end) / 2

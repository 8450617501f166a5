"""State of keyed operators over a run: rings of hosts, standby replicas, and owners at the end."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from elastream.core.ring import Ring
from elastream.core.wording import clock, counted
from elastream.recording.recorder import Recording
from elastream.report.plots import COLOURS, Band, Curve, Plot

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
    operator: str
    intervals: tuple[Interval, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.host for each in self.intervals))


@dataclass(frozen=True, slots=True)
class StateOf:
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
    at = bisect_right([each for each, _ in changes], number)
    return changes[at - 1][1] if at else before


def _partitions(recording: Recording) -> Mapping[str, int]:
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
    chosen = set(partitions)
    counts = {host: len(chosen.intersection(numbers)) for host, numbers in replicas.items()}
    return tuple(sorted((host for host in counts if counts[host]), key=lambda host: (-counts[host], host)))


def ring_plot(bands: Bands, colours: Mapping[str, int], span: tuple[float, float]) -> Plot:
    """Return the plot of an operator's ring over time.

    Bands have the owners' colours; a bar on each has the colour of the host with its standby replica.
    """
    drawn = []
    for each in bands.intervals:
        time, text = (each.since, each.until), _text(each)
        for begin, end in each.parts:
            drawn.append(Band(time, (begin, end), colours[each.host], text))
            if each.keepers:
                bottom, top = (round(begin + share * (end - begin), 5) for share in REPLICA_BAR)
                drawn.append(Band(time, (bottom, top), colours[each.keepers[0]], text, strong=True))
    names = tuple(Curve(host, (), (), colours[host]) for host in bands.hosts[:COLOURS])
    more = len(bands.hosts) - COLOURS
    notes = [f"and {counted(more, 'host')} more"] if more > 0 else []
    notes += ["by owner; bar: keeps its copy"] if any(each.keepers for each in bands.intervals) else []
    title = f"Ring of {bands.operator}"
    return Plot(title, "seconds", "", names, bands=tuple(drawn), span=span, top=1.0, note="; ".join(notes))


def _text(each: Interval) -> str:
    parts = " and ".join(f"{begin:.3g} to {end:.3g}" for begin, end in each.parts)
    copies = f", copies on {', '.join(each.keepers)}" if each.keepers else ""
    return f"{clock(each.since)}: {each.host} owns {parts}{copies}"

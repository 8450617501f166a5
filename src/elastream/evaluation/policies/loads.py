"""Loads of the experiment: drawn by a seed (level, lengths and noise), or a day of recorded rates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np

from elastream.core.frames import Floats
from elastream.errors import InputError
from elastream.loads.document import load_from
from elastream.loads.pattern import Pattern, Section
from elastream.loads.tables import SUFFIXES

HOUR_S, DAY_S = 3600.0, 86_400.0
# Length of a piece of a drawn load (seconds), and core-seconds that a record takes.
BIN_S, WORK_S = 10.0, 400e-6
# Hosts of one core that a load fills on average, least and most.
FILLED = (2.5, 6.0)
# Least load of a day that may be drawn, as a part of the busiest day's.
BUSY_DAY = 0.25
# Length of the tenfold burst (seconds), and its height.
BURST_S, BURST = 600.0, 10.0


@dataclass(frozen=True, slots=True)
class Course:
    """Load of a cell.

    Attributes:
        jump: Begin and end of its one jump up (seconds); None if it has none, or several.
    """

    pattern: Pattern
    jump: tuple[float, float] | None = None

    @property
    def fill(self) -> float:
        return self.pattern.period_total * WORK_S / self.pattern.period

    @property
    def peak(self) -> float:
        """Return its highest rate (records/s)."""
        return max(max(each.first, each.last) for each in self.pattern.pieces)


class _Draw:
    def __init__(self, kind: str, seed: int, seconds: float) -> None:
        self.seconds = seconds
        self.times = np.arange(0.0, seconds, BIN_S)
        self.random = np.random.default_rng((seed, crc32(kind.encode())))

    def between(self, low: float, high: float) -> float:
        return float(self.random.uniform(low, high))

    def noise(self, deviation: float) -> Floats:
        return np.exp(self.random.normal(0.0, deviation, self.times.size))

    def phases(self, period: float) -> Floats:
        return 2 * np.pi * (self.times / period + self.between(0.0, 1.0))

    def in_steps(self, levels: Callable[[], float], seconds: float) -> Floats:
        bins = max(1, round(seconds / BIN_S))
        return np.repeat([levels() for _ in range(-(-self.times.size // bins))], bins)[: self.times.size]

    def within(self, jump: tuple[float, float]) -> Floats:
        return ((self.times >= jump[0]) & (self.times < jump[1])).astype(np.float64)


def _wave(draw: _Draw) -> Floats:
    return (1 + 0.4 * np.sin(draw.phases(HOUR_S * draw.between(2.0, 4.5)))) * draw.noise(0.08)


def _season_changes(draw: _Draw) -> Floats:
    period, change = HOUR_S * draw.between(0.5, 1.5), draw.between(0.4, 0.6) * draw.seconds
    periods = np.where(draw.times < change, period, period * draw.between(0.3, 0.6))
    return (1 + 0.7 * np.sin(np.cumsum(2 * np.pi * BIN_S / periods))) * draw.noise(0.05)


def _peaks(draw: _Draw) -> Floats:
    return (1 + np.sin(draw.phases(draw.between(4000.0, 8000.0))) ** 2) * draw.noise(0.04)


def _spikes(draw: _Draw) -> Floats:
    drift = np.zeros(draw.times.size)
    for row in range(1, drift.size):
        drift[row] = 0.995 * drift[row - 1] + draw.random.normal(0.0, 0.03)
    rates = np.exp(drift)
    for row in draw.random.integers(0, drift.size - 60, round(draw.seconds / 2700)):
        rates[row : row + 60] *= 1 + draw.between(0.5, 1.5) * np.exp(-np.arange(60) / 20)
    return rates


def _visp_walk(draw: _Draw) -> Floats:
    level = 4.0

    def levels() -> float:
        nonlocal level
        level = float(np.clip(level + draw.random.choice([-1, 0, 1], p=[0.4, 0.2, 0.4]), 1, 8))
        return level

    return draw.in_steps(levels, draw.between(60.0, 240.0))


def _visp_steps(draw: _Draw) -> Floats:
    levels = iter(int(number) for number in np.arange(draw.times.size) + draw.random.integers(4))
    return draw.in_steps(lambda: (2.0, 5.0, 8.0, 5.0)[next(levels) % 4], draw.between(180.0, 480.0))


def _steps(draw: _Draw) -> Floats:
    return draw.in_steps(lambda: draw.between(3.0, 18.0), draw.between(1200.0, 2400.0))


def _bursts(draw: _Draw) -> Floats:
    rates, at = np.zeros(draw.times.size), 0
    while at < rates.size:
        idle, busy = int(draw.random.exponential(18)) + 1, int(draw.random.exponential(9)) + 1
        rates[at : at + idle] = draw.between(0.0, 0.06)
        row = rates[at + idle : at + idle + busy]
        row[:] = draw.between(0.3, 1.0) * np.exp(draw.random.normal(0.0, 0.2, row.size))
        at += idle + busy
    return rates


def _short_bursts(draw: _Draw) -> Floats:
    period = BIN_S * draw.random.integers(30, 90)
    return np.where(draw.times % period < 0.25 * period, draw.between(4.0, 8.0), 1.0)


def _noise(draw: _Draw) -> Floats:
    return draw.noise(0.2)


Shape = Callable[[_Draw], Floats]
# Kinds of loads without a single jump.
SHAPES: Mapping[str, Shape] = {
    "wave": _wave,
    "season changes": _season_changes,
    "peaks": _peaks,
    "spikes": _spikes,
    "VISP's walk": _visp_walk,
    "VISP's steps": _visp_steps,
    "steps": _steps,
    "bursts": _bursts,
    "short bursts": _short_bursts,
    "noise": _noise,
    "noise for two days": _noise,
}
ONE_STEP, ONE_BURST, NOISE, LONG_NOISE = "one step", "tenfold burst", "noise", "noise for two days"
KINDS = (*SHAPES, ONE_STEP, ONE_BURST)


def generated(kind: str, seed: int, hours: float) -> Course:
    draw = _Draw(kind, seed, hours * HOUR_S)
    if kind in SHAPES:
        return _course(draw, SHAPES[kind](draw))
    later = draw.seconds - HOUR_S
    begin = BIN_S * round((HOUR_S + draw.between(0.25, 0.35) * later) / BIN_S)
    if kind == ONE_STEP:
        jump, height = (begin, begin + BIN_S * round(0.35 * later / BIN_S)), draw.between(2.0, 4.0)
        return _course(draw, 1 + (height - 1) * draw.within(jump), jump)
    jump = (begin, begin + BURST_S)
    return _course(draw, 1 + (BURST - 1) * draw.within(jump), jump)


def _course(draw: _Draw, shape: Floats, jump: tuple[float, float] | None = None) -> Course:
    rates = shape / shape.mean() * draw.between(*FILLED) / WORK_S
    return Course(Pattern(tuple(Section(BIN_S, float(rate), float(rate)) for rate in rates)), jump)


def recorded_loads(places: Sequence[str]) -> tuple[str, ...]:
    """Return the recorded loads in `places`: arguments of `load_from`, or folders of files.

    Raises:
        InputError: A place holds no load, or one that never ends.
    """
    texts: list[str] = []
    for place in places:
        folder = Path(place)
        if folder.is_dir():
            files = sorted(each for each in folder.iterdir() if each.name.removesuffix(".gz").endswith(SUFFIXES))
            if not files:
                raise InputError(f"the folder {place} holds no file of rates ({', '.join(SUFFIXES)})")
            texts += [f"{file}:gaps=hold" for file in files]
        else:
            texts.append(place)
    for text in texts:
        if _recorded(text).endless:
            raise InputError(f"{text} never ends: recorded rates have an end")
        if _recorded(text).seconds < 2 * HOUR_S:
            raise InputError(f"{text} lasts {_recorded(text).seconds:g} s; two hours at least are needed")
    return tuple(texts)


def day_of(text: str, seed: int) -> Course:
    """Return a day of a recorded load, scaled; a shorter load as a whole. The seed draws among the busy days."""
    pattern, draw = _recorded(text), _Draw(text.rpartition("/")[2], seed, 0.0)
    days = int(pattern.seconds // DAY_S)
    if days > 1:
        counts = np.diff([pattern.count(number * DAY_S) for number in range(days + 1)])
        pattern = _part(pattern, DAY_S * int(draw.random.choice(np.flatnonzero(counts >= BUSY_DAY * counts.max()))))
    return Course(pattern.scaled(draw.between(*FILLED) / Course(pattern).fill))


@lru_cache(8)
def _recorded(text: str) -> Pattern:
    return load_from(text)


def _part(pattern: Pattern, begin: float) -> Pattern:
    edges = pairwise((0.0, *pattern.ends))
    inside = [low >= begin - 1e-6 and high <= begin + DAY_S + 1e-6 for low, high in edges]
    return Pattern(tuple(piece for piece, is_in in zip(pattern.pieces, inside, strict=True) if is_in))

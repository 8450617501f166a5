"""Synthetic loads: constant, steps, ramp, sine and random walk."""

import math
import random
from itertools import pairwise

from elastream.errors import DataflowError
from elastream.loads.pattern import Pattern, Section
from elastream.units import duration
from elastream.units import rate as rate_of

LINES_PER_PERIOD = 360  # linear pieces of a sine; the error is at most (pi / 360)^2 / 2 = 0.004 % of its amplitude

STEP_DOWN_BELOW, STEP_UP_ABOVE = 0.4, 0.6  # VISP's Eq. (6): a step down where R < 0.4, up where R > 0.6


def constant(rate: float | str, lasts: float | str | None = None) -> Pattern:
    """Return a constant `rate` (records/s, or `"5/s"`) for `lasts`, or endless."""
    level = rate_of(rate)
    seconds = 1.0 if lasts is None else duration(lasts)
    return Pattern((Section(seconds, level, level),), endless=lasts is None)


def steps(*levels: float | str | tuple[float | str, float | str], every: float | str | None = None) -> Pattern:
    """Return a sequence of rates: each lasts `every`, or is a pair (rate, duration)."""
    pieces = []
    for level in levels:
        rate, lasts = level if isinstance(level, tuple) else (level, every)
        if lasts is None:
            raise DataflowError(f"the step at {rate} has no duration: write every='30s' or ({rate!r}, '30s')")
        pieces.append(Section(duration(lasts), rate_of(rate), rate_of(rate)))
    return Pattern(tuple(pieces))


def ramp(start: float | str, end: float | str, over: float | str) -> Pattern:
    """Return a rate that changes linearly from `start` to `end`."""
    return Pattern((Section(duration(over), rate_of(start), rate_of(end)),))


def sine(low: float | str, high: float | str, period: float | str) -> Pattern:
    """Return an endless sine from `low` to `high` after half a `period`; `Pattern.lasting` limits it."""
    bottom, top, seconds = rate_of(low), rate_of(high), duration(period)
    # Rounded, because the last bit of a cosine differs between machines and a count must not.
    waves = [round((1 - math.cos(2 * math.pi * k / LINES_PER_PERIOD)) / 2, 12) for k in range(LINES_PER_PERIOD + 1)]
    rates = [bottom + (top - bottom) * wave for wave in waves]
    each = seconds / LINES_PER_PERIOD
    return Pattern(tuple(Section(each, a, b) for a, b in pairwise(rates)), endless=True)


def random_walk(
    start: float | str,
    step: float | str,
    *,
    low: float | str,
    high: float | str,
    every: float | str,
    lasts: float | str,
    seed: int,
) -> Pattern:
    """Return a random walk: each `every`, the rate moves a `step` down or up (probability 0.4 each) or stays.

    Steps beyond [`low`, `high`] are not taken. A seed gives the same load on every machine. Source: VISP, Eq. (6), there
    in machines (start 4, step 1, low 1, high 8).
    """
    level, size, bottom, top = (rate_of(value) for value in (start, step, low, high))
    each, left = duration(every), duration(lasts)
    if not bottom <= level <= top:
        raise DataflowError(f"a random walk between {bottom:g}/s and {top:g}/s cannot start at {level:g}/s")
    if not each > 0:
        raise DataflowError(f"a random walk has {each:g} s between its steps; it must be above 0")
    draw = random.Random(seed)
    pieces, place, began = [], 0, level
    for number in range(math.ceil(left / each)):
        level = began + place * size
        pieces.append(Section(min(each, left - number * each), level, level))
        chance = draw.random()
        moved = place - 1 if chance < STEP_DOWN_BELOW else place + 1 if chance > STEP_UP_ABOVE else place
        place = moved if bottom <= began + moved * size <= top else place
    return Pattern(tuple(pieces))

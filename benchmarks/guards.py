"""A round of 100 guards over 50 signals that all change: values, means over a minute, persistence and order.

Seconds are of processor time. The decisions are compared with those of plain Python functions of the same values.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from _common import Report, main, progress, with_median

from elastream.dataflow.signals import Signal, SignalReading
from elastream.guards.evaluator import Element, Evaluator, Guard
from elastream.guards.language import Language

GUARDS, SIGNALS, ALTERNATES = 100, 50, 4  # guards, signals, and guards of an element
WINDOW_S = 60
ROUND_BAR_MS = 5.0
ROUNDS, QUICK = 201, 21

History = dict[str, list[float]]  # values of each signal, one per second


@dataclass(frozen=True)
class Condition:
    """A condition as a guard and as a plain function of the signals' values."""

    text: str
    plain: Callable[[History], bool]


def values(a: str, b: str, c: str, low: float, high: float) -> Condition:
    return Condition(
        f"{a} >= {low} || ({b} > {high} && {c} < 0.5)",
        lambda of: of[a][-1] >= low or (of[b][-1] > high and of[c][-1] < 0.5),
    )


def means(a: str, b: str, c: str, low: float, high: float) -> Condition:
    return Condition(
        f"avg({a}, '{WINDOW_S} s') >= {low} || ({b} > {high} && {c} < 0.5)",
        lambda of: fmean(of[a][-WINDOW_S:]) >= low or (of[b][-1] > high and of[c][-1] < 0.5),
    )


def times(a: str, b: str, c: str, low: float, high: float) -> Condition:
    return Condition(
        f"held({a} < {low}, '3s') || then({b} > {high}, {c} < 0.5, '5s')",
        lambda of: all(value < low for value in of[a][-4:]) or _in_order(of[b], of[c], high),
    )


def _in_order(first: list[float], second: list[float], high: float) -> bool:
    """Return whether `second` is below 0.5 since a moment up to 5 s after `first` was last above `high`."""
    begin = len(second)
    while begin and second[begin - 1] < 0.5:
        begin -= 1
    # A condition holds until the round that finds it false: one second longer than its last true value.
    return begin < len(second) and any(value > high for value in first[max(0, begin - 6) : begin])


def measure(name: str, condition: Callable[..., Condition], rounds: int, report: Report) -> None:
    progress(f"{name}: {GUARDS} guards over {SIGNALS} signals")
    chance = random.Random(14)
    names = [f"s{n}" for n in range(SIGNALS)]
    conditions = [condition(*chance.sample(names, 3), chance.random(), chance.random()) for _ in range(GUARDS)]
    signals = [Signal(each) for each in names]
    language = Language(signals)
    guards = [Guard(f"a{n % ALTERNATES}", language.condition(each.text)) for n, each in enumerate(conditions)]
    elements = [Element(f"e{n}", tuple(guards[n : n + ALTERNATES])) for n in range(0, GUARDS, ALTERNATES)]
    evaluator = Evaluator(elements, signals)
    history: History = {each: [] for each in names}
    milliseconds = []
    gc.collect()
    gc.freeze()
    for now in range(WINDOW_S + rounds):
        for each in names:
            history[each].append(chance.random())
        readings = {each: SignalReading(of[-1], float(now)) for each, of in history.items()}
        began = time.process_time()
        evaluator.update(float(now), readings)
        if now >= WINDOW_S:
            milliseconds.append(1_000 * (time.process_time() - began))
    allowed = {f"{e.element}.{name}" for e in evaluator.standings.values() for name in e.allowed}
    plain = {f"e{n - n % ALTERNATES}.a{n % ALTERNATES}" for n, each in enumerate(conditions) if each.plain(history)}
    # A mean summed in another order may differ in its last digit, next to a bound.
    assert len(allowed ^ plain) <= GUARDS / 50, f"{len(allowed ^ plain)} of {GUARDS} guards differ"
    report.figures[name] = {"guards": GUARDS, "signals": SIGNALS, "ms a round": with_median(milliseconds)}
    report.median_at_most(f"{name}: a round of 100 guards over 50 signals, ms of CPU", milliseconds, ROUND_BAR_MS)


def run(options: argparse.Namespace) -> Report:
    report = Report()
    for name, condition in {"values": values, "means over a minute": means, "persistence and order": times}.items():
        measure(name, condition, QUICK if options.quick else ROUNDS, report)
    return report


if __name__ == "__main__":
    main("guards", __doc__, run)

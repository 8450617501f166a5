"""Guards beside the same conditions as plain Python functions: 10,000 guards over 1,000 signals, round by round.

The plain functions are what somebody would write who knows the conditions: one a guard, of a dictionary of values, called
one after the other; no unknown, no order, no record. Windows they keep as a list and a sum a signal. Both sides meet the
same values in turn. Seconds are of processor time.

Where one signal changes, it is the only thing that does: it comes a millisecond after the others. A second later every full
window has lost a sample besides, so that its mean is another one; that is measured too, and has no bar.

python benchmarks/guards.py [--quick] [--json FILE]
"""

import argparse
import gc
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from _common import Report, interleaved, main, progress

from elastream.dataflow.signals import Signal, SignalReading
from elastream.guards.elements import Element, GuardSet, guard_of
from elastream.guards.evaluator import Evaluator
from elastream.guards.language import Language
from elastream.guards.program import program_of

GUARDS, SIGNALS, ALTERNATES = 10_000, 1_000, 4
"""Guards, signals, and guards of an element."""
WINDOW = 60.0
"""Seconds of a window, sixty rounds."""
PLAIN_BAR, CHANGED_BAR = 10.0, 0.1
SOURCE = "the project's bar"
ROUNDS, QUICK = 41, 7

Plain = Callable[[Mapping[str, float], Mapping[str, float]], bool]


@dataclass(frozen=True)
class Case:
    """Guards of one shape, and the plain functions of the same conditions over values and means of windows."""

    name: str
    texts: list[str]
    plain: list[Plain]


def simple(chance: random.Random) -> Case:
    """Two comparisons and a switch, of three signals."""
    texts, plain = [], []
    for _ in range(GUARDS):
        (a, b, c), low, high = chance.sample(range(SIGNALS), 3), chance.random(), chance.random()
        texts.append(f"s{a} >= {low} || (s{b} > {high} && s{c} < 0.5)")
        plain.append(_simple(f"s{a}", low, f"s{b}", high, f"s{c}"))
    return Case("values", texts, plain)


def _simple(a: str, low: float, b: str, high: float, c: str) -> Plain:
    return lambda v, w: v[a] >= low or (v[b] > high and v[c] < 0.5)


def windowed(chance: random.Random) -> Case:
    """The same with the mean of one of them over a minute."""
    texts, plain = [], []
    for _ in range(GUARDS):
        (a, b, c), low, high = chance.sample(range(SIGNALS), 3), chance.random(), chance.random()
        texts.append(f"avg(s{a}, '{WINDOW} s') >= {low} || (s{b} > {high} && s{c} < 0.5)")
        plain.append(_windowed(f"s{a}", low, f"s{b}", high, f"s{c}"))
    return Case("means over a minute", texts, plain)


def _windowed(a: str, low: float, b: str, high: float, c: str) -> Plain:
    return lambda v, w: w[a] >= low or (v[b] > high and v[c] < 0.5)


class Both:
    """Both sides of one case, and the values that they meet."""

    def __init__(self, case: Case, chance: random.Random) -> None:
        self.case, self.chance, self.now = case, chance, 0.0
        signals = [Signal(f"s{n}") for n in range(SIGNALS)]
        language = Language(signals)
        began = time.process_time()
        trees = [language.condition(text) for text in case.texts]
        elements = tuple(
            Element(f"e{n}", tuple(guard_of(f"a{k}", when=tree) for k, tree in enumerate(trees[n : n + ALTERNATES])))
            for n in range(0, GUARDS, ALTERNATES)
        )
        self.evaluator = Evaluator(program_of(GuardSet(elements), signals))
        self.loading = time.process_time() - began
        self.values: dict[str, float] = {}
        self.readings: dict[str, SignalReading] = {}
        self.windows = {signal.name: deque[tuple[float, float]]() for signal in signals}
        self.sums = dict.fromkeys(self.windows, 0.0)

    def next(self, names: list[str], after: float = 1.0) -> None:
        """`after` seconds later, with new values of `names`."""
        self.now += after
        for name in names:
            value = self.chance.random()
            self.values[name] = value
            self.readings[name] = SignalReading(value, self.now)

    def guards(self) -> float:
        """Seconds of a round of the guards."""
        began = time.process_time()
        self.evaluator.update(self.now, self.readings)
        return time.process_time() - began

    def plain(self) -> float:
        """Seconds of a round of the plain functions."""
        began = time.process_time()
        means = self._means() if "means" in self.case.name else {}
        self.answers = [function(self.values, means) for function in self.case.plain]
        return time.process_time() - began

    def _means(self) -> dict[str, float]:
        means = {}
        for name, samples in self.windows.items():
            value = self.values[name]
            samples.append((self.now, value))
            total = self.sums[name] + value
            while samples[0][0] + WINDOW <= self.now:
                total -= samples.popleft()[1]
            self.sums[name] = total
            means[name] = total / len(samples)
        return means

    def check(self) -> None:
        """Whether both sides say the same."""
        allowed = [
            f"a{n % ALTERNATES}" in self.evaluator.standings[f"e{n - n % ALTERNATES}"].allowed for n in range(GUARDS)
        ]
        # Means that were added up in another order may differ in the last digit, next to a bound.
        differing = sum(one != other for one, other in zip(allowed, self.answers, strict=True))
        assert differing <= GUARDS / 1e4, f"{differing} of {GUARDS} guards differ from the plain functions"


def measure(case: Case, rounds: int, report: Report) -> None:
    """Interleaved rounds in which all signals change; then of one signal and of all."""
    both = Both(case, random.Random(14))
    everything = [f"s{n}" for n in range(SIGNALS)]
    for _ in range(int(WINDOW) + 5 if "means" in case.name else 3):
        both.next(everything)
        both.guards()
        both.plain()

    ran = {"guards", "plain"}

    def turn(side: str) -> None:
        """New values once both sides have met the last: who goes first alternates."""
        if side in ran or len(ran) == 2:
            ran.clear()
            both.next(everything)
        ran.add(side)

    def beside_plain() -> float:
        turn("guards")
        return both.guards()

    def plain() -> float:
        turn("plain")
        return both.plain()

    def all_changed() -> float:
        both.next(everything)
        return both.guards()

    def one_changed(after: float = 0.001) -> float:
        both.next([both.chance.choice(everything)], after)
        return both.guards()

    def a_second_later() -> float:
        return one_changed(1.0)

    gc.collect()
    gc.freeze()
    progress(f"{case.name}: guards beside plain functions")
    beside = interleaved(beside_plain, plain, rounds)
    both.check()
    both.next(everything)
    progress(f"{case.name}: one signal beside all")
    ratios = interleaved(one_changed, all_changed, rounds)
    progress(f"{case.name}: one signal, a second later, beside all")
    later = interleaved(a_second_later, all_changed, rounds)
    report.figures[case.name] = {
        "guards": GUARDS,
        "signals": SIGNALS,
        "seconds to check and compile": both.loading,
        "all changed": beside.figures("guards", "plain functions"),
        "one changed": ratios.figures("one changed", "all changed"),
        "one changed, a second later": later.figures("one changed", "all changed"),
    }
    report.median_at_most(f"{case.name}: a round over the plain functions", beside.ratios, PLAIN_BAR, SOURCE)
    report.median_at_most(f"{case.name}: one signal changed over all changed", ratios.ratios, CHANGED_BAR, SOURCE)


def run(options: argparse.Namespace) -> Report:
    report, chance = Report(), random.Random(1)
    for case in (simple(chance), windowed(chance)):
        measure(case, QUICK if options.quick else ROUNDS, report)
    return report


def line(report: Report) -> str:
    """Ratios by case."""
    found = []
    for name, each in report.figures.items():
        keys = ("all changed", "one changed", "one changed, a second later")
        all_of, one, later = (each[key]["ratio"]["median"] for key in keys)
        found.append(f"{name}: {all_of:.2g} x plain functions, one signal {one:.2g} of all, a second later {later:.2g}")
    return "; ".join(found)


if __name__ == "__main__":
    main("guards", __doc__ or "", run, line)

"""Evaluation of guards round by round (thesis, 3.2), from readings and times alone: a recorded run reproduces it.

Functions of time have a memory: windows, ages, persistence and order of conditions. `advance` runs once a round. Its value
is None (unknown) unless all possible inputs give the same.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from elastream.core.guarding import GuardDecision
from elastream.dataflow.signals import Signal, Signals, SignalValue
from elastream.guards.interpreter import Values, evaluate
from elastream.guards.language import OF_CONDITIONS, OF_SIGNALS, OVERLOADS, seconds_of
from elastream.guards.tree import Call, Literal, Node, signals_of, substitute

Truth: TypeAlias = bool | None

# parts of a window within which samples merge: bounds its memory and its edge's error
RESOLUTION = 5_000


class _Bucket:
    """Samples of one part of a window.

    `step` is the increase from the sample before, `rise` that after the first.
    """

    __slots__ = ("count", "end", "high", "low", "rise", "squares", "start", "step", "total")

    def __init__(self, time: float, value: float, step: float) -> None:
        self.start = self.end = time
        self.count, self.total, self.squares = 1, value, value * value
        self.low = self.high = value
        self.step, self.rise = step, 0.0

    def add(self, time: float, value: float, step: float) -> None:
        self.end = time
        self.count += 1
        self.total += value
        self.squares += value * value
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.rise += step

    def sums(self, origin: float) -> tuple[float, float, float]:
        """Return the sums of distances from `origin`, of their squares, and of increases."""
        squares = self.squares - 2 * origin * self.total + self.count * origin * origin
        return self.total - self.count * origin, squares, self.step + self.rise


class SampleWindow:
    """Samples of a signal in (now - seconds, now], and one aggregate.

    Samples no newer than the last are ignored. `aggregate`: avg, sum, stddev, rate, count, min or max.
    """

    def __init__(self, aggregate: str, seconds: float) -> None:
        self.aggregate, self.seconds = aggregate, seconds
        self._buckets: deque[_Bucket] = deque()
        self._newest, self._last = -math.inf, math.nan
        # Distances are from an origin near the samples: squares of large values would cancel each other badly.
        self._origin, self._expired = 0.0, 0
        self._count, self._sum, self._squares, self._rise = 0, 0.0, 0.0, 0.0

    def add(self, time: float, value: SignalValue) -> None:
        if time <= self._newest:
            return
        number = 0.0 if isinstance(value, str) else float(value)
        if not self._buckets:
            self._origin = number
            self._add_up()
        # A counter that decreases was restarted at zero.
        step = 0.0 if math.isnan(self._last) else number - self._last if number >= self._last else number
        self._newest, self._last = time, number
        if self._buckets and time - self._buckets[-1].start < self.seconds / RESOLUTION:
            self._buckets[-1].add(time, number, step)
        else:
            self._buckets.append(_Bucket(time, number, step))
        distance = number - self._origin
        self._count += 1
        self._sum += distance
        self._squares += distance * distance
        self._rise += step

    def advance(self, now: float) -> float | None:
        """Drop old samples and return the aggregate, None if undefined."""
        buckets = self._buckets
        while buckets and buckets[0].end + self.seconds <= now:
            oldest = buckets.popleft()
            total, squares, rise = oldest.sums(self._origin)
            self._count -= oldest.count
            self._sum -= total
            self._squares -= squares
            self._rise -= rise
            self._expired += 1
        if self._expired > len(buckets):  # once as many samples have left as remain: rounding errors must not accumulate
            self._origin = buckets[0].total / buckets[0].count if buckets else 0.0
            self._add_up()
        if self.aggregate == "count":
            return float(self._count)
        return self._aggregate() if buckets else None

    def _add_up(self) -> None:
        sums = [bucket.sums(self._origin) for bucket in self._buckets]
        self._count = sum(bucket.count for bucket in self._buckets)
        self._sum, self._squares, self._rise = (math.fsum(each[n] for each in sums) for n in range(3))
        self._expired = 0

    def _aggregate(self) -> float | None:
        buckets, count = self._buckets, self._count
        match self.aggregate:
            case "avg":
                return self._origin + self._sum / count
            case "sum":
                return count * self._origin + self._sum
            case "stddev":
                mean = self._sum / count
                return math.sqrt(max(0.0, self._squares / count - mean * mean))
            case "min":
                return min(bucket.low for bucket in buckets)
            case "max":
                return max(bucket.high for bucket in buckets)
        seconds = buckets[-1].end - buckets[0].start  # of a rate, from the first sample to the last
        return max(0.0, self._rise - buckets[0].step) / seconds if seconds > 0 else None


@dataclass(slots=True)
class Age:
    """Seconds since a signal's newest sample."""

    time: float = -math.inf

    def add(self, time: float, value: SignalValue) -> None:
        self.time = time

    def advance(self, now: float, value: SignalValue | None) -> float | None:
        return None if value is None else now - self.time


@dataclass(slots=True)
class Persistence:
    """Condition that must hold for `seconds`; it holds since `certain`, or maybe since `possible`."""

    seconds: float
    certain: float | None = None
    possible: float | None = None

    def advance(self, now: float, condition: Truth) -> Truth:
        if condition is False:
            self.certain = self.possible = None
            return False
        if self.possible is None:
            self.possible = now
        if condition is None:
            self.certain = None
        elif self.certain is None:
            self.certain = now
        if self.certain is not None and self.certain + self.seconds <= now:
            return True
        return None if self.possible + self.seconds <= now else False


class Order:
    """Second condition that begins at most `seconds` after the first held, in a later round.

    It stays true while the second holds. Unknown conditions leave several states.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._first: Truth = False  # in the last round
        self._certain = self._possible = -math.inf  # when the first condition last held for certain, and may have held
        self._states: frozenset[Truth] = frozenset({None})  # None: the second does not hold; else whether in order

    def advance(self, now: float, first: Truth, second: Truth) -> Truth:
        if self._first is not False:
            self._possible = now
            if self._first:
                self._certain = now
        orders: tuple[bool, ...] = (False,)
        if self._certain + self.seconds >= now:
            orders = (True,)
        elif self._possible + self.seconds >= now:
            orders = (True, False)
        states: set[Truth] = set()
        for state in self._states:
            if second is not True:
                states.add(None)
            if second is not False:
                states.update(orders if state is None else (state,))
        self._states, self._first = frozenset(states), first
        return True if states == {True} else None if True in states else False


DEFAULT_RATE_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Guard:
    """Guard of one alternate or branch (p. 49, step 4)."""

    alternate: str
    activate: Node | None = None  # condition to become active; None: always
    deactivate: Node | None = None  # condition to become inactive; None: not `activate`
    value: Node | float = 1.0  # number in [0, 1], or an expression relative to the best
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Element:
    """Operator with several alternates, or choice with several branches."""

    name: str
    guards: tuple[Guard, ...]


def held_for(condition: Node, seconds: float) -> Node:
    return Call("held", (condition, Literal("string", f"{seconds!r} s")), condition.at) if seconds else condition


@dataclass(frozen=True, slots=True)
class _Part:
    """Function of time; reads of `name` give its value."""

    name: str
    memory: SampleWindow | Age | Persistence | Order
    advance: Callable[..., SignalValue | None]
    inputs: tuple[Node, ...]
    signal: str


class Evaluator:
    """Evaluates a dataflow's guards; `standings` has the last decisions by element.

    Args:
        before: Previous evaluator, whose unchanged functions and guards keep their memory.
    """

    def __init__(self, elements: Iterable[Element], signals: Iterable[Signal], before: "Evaluator | None" = None) -> None:
        self.standings: dict[str, GuardDecision] = {}
        self._signals = {signal.name: signal for signal in signals}
        self._now: float = -math.inf if before is None else before._now
        self._values: dict[str, SignalValue | None] = dict.fromkeys(self._signals)
        # By signal: the moment of its last reading, and when it counts as sampled, which is never ahead of the round.
        self._moments: dict[str, float] = {} if before is None else dict(before._moments)
        self._sampled: dict[str, float] = {} if before is None else dict(before._sampled)
        self._newest = dict(self._values)
        self._parts: dict[Node, _Part] = {}
        self._names: dict[Node, str] = {}
        self._before = {} if before is None else before._parts
        self._elements = [(element, [self._interpretable(guard) for guard in element.guards]) for element in elements]
        self._windows: dict[str, list[SampleWindow | Age]] = {name: [] for name in self._signals}
        for part in self._parts.values():
            if isinstance(part.memory, SampleWindow | Age):
                self._windows[part.signal].append(part.memory)
        guards = {(element.name, guard.alternate): guard for element, _ in self._elements for guard in element.guards}
        self._active = {key for key, guard in guards.items() if guard.activate is None}
        if before is not None:
            self._active |= before._active & guards.keys()

    def _interpretable(self, guard: Guard) -> Guard:
        value = guard.value if isinstance(guard.value, float | int) else self._without_time(guard.value)
        activate, deactivate = (
            None if tree is None else self._without_time(tree) for tree in (guard.activate, guard.deactivate)
        )
        return replace(guard, activate=activate, deactivate=deactivate, value=value)

    def _without_time(self, tree: Node) -> Node:
        self._add_parts(tree)
        return substitute(tree, self._names)

    def _add_parts(self, tree: Node) -> None:
        if not isinstance(tree, Call) or tree in self._parts:
            return
        for arg in tree.args:
            self._add_parts(arg)
        function = OVERLOADS[tree.overload].function
        if function == "known" or function not in OF_SIGNALS | OF_CONDITIONS:
            return
        old = self._before.get(tree)
        memory = old.memory if old is not None else _memory(function, tree.args)
        operands = () if isinstance(memory, SampleWindow) else tree.args
        inputs = tuple(substitute(arg, self._names) for arg in operands if not isinstance(arg, Literal))
        self._names[tree] = name = f"#{len(self._parts)}"
        self._parts[tree] = _Part(name, memory, memory.advance, inputs, signals_of(tree.args[0])[0])

    def update(self, now: float, readings: Signals) -> None:
        """Decide anew.

        Args:
            now: Never decreases.
            readings: Newest ones; absent signals are unchanged.
        """
        now = self._now = max(now, self._now)
        values = self._values
        self._read(now, readings)
        for part in self._parts.values():
            values[part.name] = part.advance(now, *[evaluate(tree, values) for tree in part.inputs])
        decisions = [self._decide(element, guards) for element, guards in self._elements]
        self.standings = {standing.element: standing for standing in decisions}

    def _read(self, now: float, readings: Signals) -> None:
        for name, signal in self._signals.items():
            if (reading := readings.get(name)) is not None:
                if reading.time != self._moments.get(name):
                    self._moments[name], self._sampled[name] = reading.time, min(reading.time, now)
                value = reading.value if reading.value is not None and signal.kind.admits(reading.value) else None
                if value is not None:
                    for window in self._windows[name]:
                        window.add(self._sampled[name], value)
                self._newest[name] = value
            stale = self._sampled.get(name, -math.inf) + signal.stale <= now
            self._values[name] = None if stale else self._newest[name]

    def _decide(self, element: Element, guards: list[Guard]) -> GuardDecision:
        unknown: dict[str, tuple[str, ...]] = {}
        for written, guard in zip(element.guards, guards, strict=True):
            if guard.activate is None:
                continue
            key = element.name, guard.alternate
            begins = evaluate(guard.activate, self._values)
            if guard.deactivate is not None:
                ends = evaluate(guard.deactivate, self._values)
            else:
                ends = None if begins is None else not begins
            if key in self._active:
                undecided, active = ends is None, ends is not True
            else:  # of two conditions that both hold, the one to deactivate wins
                undecided = ends is not True and (begins is None or (begins is True and ends is None))
                active = begins is True and ends is False
            (self._active.add if active else self._active.discard)(key)
            if undecided:
                missing = [
                    *(self._missing(written.activate) if begins is None else ()),
                    *(self._missing(written.deactivate) if ends is None else ()),
                ]
                unknown[guard.alternate] = tuple(dict.fromkeys(missing))
        allowed = tuple(guard.alternate for guard in guards if (element.name, guard.alternate) in self._active)
        texts = {guard.alternate: guard.text for guard in guards}
        decision = GuardDecision(element.name, allowed, _relative(guards, self._values), unknown, texts)
        last = self.standings.get(element.name)
        return last if last is not None and last == decision else decision

    def _missing(self, tree: Node | None) -> tuple[str, ...]:
        signals = signals_of(tree)
        return tuple(name for name in signals if self._values[name] is None) or signals


def _memory(function: str, args: tuple[Node, ...]) -> SampleWindow | Age | Persistence | Order:
    duration = args[-1]
    seconds = seconds_of(duration) if isinstance(duration, Literal) else DEFAULT_RATE_WINDOW_S
    match function:
        case "age":
            return Age()
        case "held":
            return Persistence(seconds)
        case "then":
            return Order(seconds)
    return SampleWindow(function, seconds)


def _relative(guards: list[Guard], values: Values) -> dict[str, float]:
    """Return relative values v = F / max F (thesis, 3.2.4, Eq. 4.1)."""
    # Negative values count as 0; without a positive one all are NaN. Fixed values stay.
    if all(isinstance(guard.value, float | int) for guard in guards):
        return {guard.alternate: float(guard.value) for guard in guards if isinstance(guard.value, float | int)}
    absolute = {}
    for guard in guards:
        value = guard.value if isinstance(guard.value, float | int) else evaluate(guard.value, values)
        absolute[guard.alternate] = float(value) if value is not None and math.isfinite(value) else math.nan
    best = max((value for value in absolute.values() if value > 0), default=math.nan)
    return {name: max(0.0, value / best) if not math.isnan(value) else math.nan for name, value in absolute.items()}

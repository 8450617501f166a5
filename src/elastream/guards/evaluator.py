"""Evaluation of guards round by round (thesis, 3.2), from readings and times alone: a recorded run reproduces it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from elastream.core.guarding import GuardDecision
from elastream.dataflow.signals import Signal, Signals, SignalValue
from elastream.guards.interpreter import Values, evaluate
from elastream.guards.language import OF_CONDITIONS, OF_SIGNALS, OVERLOADS, seconds_of
from elastream.guards.tree import Call, Literal, Node, signals_of, substitute
from elastream.guards.windows import Age, Order, Persistence, SampleWindow

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
        """Return `guard` with functions of time replaced by reads."""
        value = guard.value if isinstance(guard.value, float | int) else self._without_time(guard.value)
        activate, deactivate = (
            None if tree is None else self._without_time(tree) for tree in (guard.activate, guard.deactivate)
        )
        return replace(guard, activate=activate, deactivate=deactivate, value=value)

    def _without_time(self, tree: Node) -> Node:
        self._add_parts(tree)
        return substitute(tree, self._names)

    def _add_parts(self, tree: Node) -> None:
        """Add each function of time in `tree` behind its inputs."""
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
    """Return relative values v = F / max F (thesis, 3.2.4, Eq. 4.1).

    Negative values count as 0; without a positive one all are NaN. Fixed values stay.
    """
    if all(isinstance(guard.value, float | int) for guard in guards):
        return {guard.alternate: float(guard.value) for guard in guards if isinstance(guard.value, float | int)}
    absolute = {}
    for guard in guards:
        value = guard.value if isinstance(guard.value, float | int) else evaluate(guard.value, values)
        absolute[guard.alternate] = float(value) if value is not None and math.isfinite(value) else math.nan
    best = max((value for value in absolute.values() if value > 0), default=math.nan)
    return {name: max(0.0, value / best) if not math.isnan(value) else math.nan for name, value in absolute.items()}

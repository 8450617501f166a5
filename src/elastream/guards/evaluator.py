"""Evaluates a guard set round by round: only what a new sample, or time, touches.

The one thing here that changes. Its answers depend on the readings that it was given and on their times alone, so that a
recorded run gives the same ones again.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from elastream.core.guarding import Standing
from elastream.dataflow.signals import SignalReading, Signals, SignalValue
from elastream.guards.compiling import UNKNOWN
from elastream.guards.program import Program, Remembered, Rule
from elastream.guards.windows import Held, SampleWindow, Then


@dataclass(slots=True)
class Evaluated:
    """What a round did. changed: elements whose standing is another one now. formulas, parts: evaluated."""

    changed: list[str] = field(default_factory=list)
    formulas: int = 0
    parts: int = 0


class Evaluator:
    """Runs `program`; `standings` by element after each `update`.

    before: the evaluator of the version of the guards that was in force until now: windows, persistences and orders that
    both have keep their memory, and so do guards that are active in both.
    """

    def __init__(self, program: Program, before: "Evaluator | None" = None) -> None:
        self.program = program
        self.standings: dict[str, Standing] = {}
        self._now: float = -math.inf if before is None else before._now
        self._slots: list[SignalValue | None] = [None] * program.slots
        self._numbers = {signal.name: n for n, signal in enumerate(program.signals)}
        self._kinds = [signal.kind for signal in program.signals]
        self._taken = [-math.inf] * len(program.signals)
        self._told = [-math.inf] * len(program.signals)  # the same as it was told, which may be ahead of the round
        self._first = len(program.signals)
        kept = {} if before is None else {part.tree: memory for part, memory in before.memories.items()}
        self.memories: dict[Remembered, SampleWindow | Held | Then | None] = {
            part: kept[part.tree] if part.tree in kept else _memory(part) for part in program.parts
        }
        self._memories = list(self.memories.values())
        self._windows: list[list[int]] = [[] for _ in program.signals]
        self._ages: list[int] = []
        for number, part in enumerate(program.parts):
            if part.kind == "age":
                self._ages.append(number)
            elif part.signal >= 0:
                self._windows[part.signal].append(number)
        self._fixed: list[dict[str, float] | None] = [
            {rule.alternate: rule.fixed for rule in rules} if all(rule.value < 0 for rule in rules) else None
            for rules in program.rules
        ]
        self._texts = [{rule.alternate: rule.text for rule in rules} for rules in program.rules]
        self._functions = [quick or function for quick, function in zip(program.quick, program.formulas, strict=True)]
        self._results: list[object] = [_NEVER] * len(program.formulas)
        self._active: list[list[bool]] = [[rule.activate < 0 for rule in rules] for rules in program.rules]
        if before is not None:
            self._keep_active(before)
            for name in self._numbers.keys() & before._numbers.keys():
                number, known = self._numbers[name], before._numbers[name]
                self._taken[number], self._told[number] = before._taken[known], before._told[known]
        # By time: (part, -1) where time alone may change a part, (-1, signal) where a value may become stale. One of each
        # matters, the time of which is kept besides.
        self._wakes: dict[float, list[tuple[int, int]]] = {}
        self._times: list[float] = []
        self._due = [math.inf] * len(self._memories)
        self._ages_at = [math.inf] * len(program.signals)
        for number, memory in enumerate(self._memories):
            if memory is not None:
                self._wake_at(number, memory.due)
        # Means of windows that nothing reads but comparisons with constants: until they reach one, nothing changes.
        self._compared = [
            program.bounds[part.slot]
            if part.kind == "avg" and not program.always[part.slot] and not program.readers[part.slot]
            else None
            for part in program.parts
        ]
        self._touched = list(
            zip(program.readers, program.formulas_of, program.always, program.bounds, program.bounded, strict=True)
        )
        self._flipped: set[int] = set()
        self._fresh = True

    def _keep_active(self, before: "Evaluator") -> None:
        were = {
            (name, rule.alternate)
            for name, rules, active in zip(before.program.elements, before.program.rules, before._active, strict=True)
            for rule, is_active in zip(rules, active, strict=True)
            if is_active
        }
        for name, rules, active in zip(self.program.elements, self.program.rules, self._active, strict=True):
            for n, rule in enumerate(rules):
                active[n] = active[n] or (name, rule.alternate) in were

    def update(self, now: float, readings: Signals) -> Evaluated:
        """Take the newest readings at `now`, which does not decrease; signals left out are as they were."""
        now = self._now = max(now, self._now)
        parts: set[int] = set(self._ages)
        formulas: set[int] = set()
        if self._fresh:
            parts.update(range(len(self._memories)))
            formulas.update(range(len(self.program.formulas)))
        self._read(now, readings, parts, formulas)
        self._wake(now, parts, formulas)
        done = Evaluated(parts=self._advance(now, parts, formulas))
        done.formulas = len(formulas)
        elements = self._evaluate(formulas)
        if self._fresh:
            elements.update(range(len(self.program.elements)))
            self._fresh = False
        done.changed = [self.program.elements[number] for number in sorted(elements) if self._stand(number)]
        return done

    def _read(self, now: float, readings: Mapping[str, SignalReading], parts: set[int], formulas: set[int]) -> None:
        numbers, taken, slots, windows, told = self._numbers, self._taken, self._slots, self._windows, self._told
        for name, reading in readings.items():
            if (number := numbers.get(name)) is None:
                continue
            again, value = reading.taken == told[number], reading.value
            if again and value == slots[number]:
                continue
            at = taken[number] if again else min(reading.taken, now)
            told[number] = reading.taken
            if value is not None and not self._kinds[number].admits(value):
                value = None
            stale = self.program.signals[number].stale
            if value is not None and windows[number]:
                for window in windows[number]:
                    self._memories[window].add(at, value)  # type: ignore[union-attr]
                parts.update(windows[number])
            taken[number] = at
            if stale < math.inf:
                if at + stale <= now:
                    value = None
                elif at + stale < self._ages_at[number]:
                    self._ages_at[number] = at + stale
                    self._push(at + stale, -1, number)
            if value != slots[number] or type(value) is not type(slots[number]):
                self._set(number, value, parts, formulas)

    def _set(self, slot: int, value: SignalValue | None, parts: set[int], formulas: set[int]) -> None:
        """Set a slot to another value; adds the parts and the formulas that it may change."""
        last = self._slots[slot]
        self._slots[slot] = value
        readers, every, always, bounds, bounded = self._touched[slot]
        if readers:
            parts.update(readers)
        if last is None or value is None:
            formulas.update(every)
            self._flipped.update(every)
            return
        if always:
            formulas.update(always)
        if bounds:
            low, high = (last, value) if last <= value else (value, last)  # type: ignore[operator]
            formulas.update(bounded[bisect_left(bounds, low) : bisect_right(bounds, high)])

    def _wake(self, now: float, parts: set[int], formulas: set[int]) -> None:
        while self._times and self._times[0] <= now:
            due = heappop(self._times)
            for part, signal in self._wakes.pop(due):
                if part < 0:
                    self._age(signal, now, parts, formulas)
                elif due == self._due[part]:
                    self._due[part] = math.inf
                    parts.add(part)

    def _age(self, signal: int, now: float, parts: set[int], formulas: set[int]) -> None:
        ends = self._taken[signal] + self.program.signals[signal].stale
        if ends > now:  # a newer value came meanwhile
            self._ages_at[signal] = ends
            self._push(ends, -1, signal)
            return
        self._ages_at[signal] = math.inf
        if self._slots[signal] is not None:
            self._set(signal, None, parts, formulas)

    def _wake_at(self, part: int, due: float) -> None:
        if due < self._due[part]:
            self._due[part] = due
            self._push(due, part, -1)

    def _push(self, due: float, part: int, signal: int) -> None:
        if (there := self._wakes.get(due)) is None:
            self._wakes[due] = [(part, signal)]
            heappush(self._times, due)
        else:
            there.append((part, signal))

    def _advance(self, now: float, parts: set[int], formulas: set[int]) -> int:
        """Advance the parts in `parts`, and those behind them that they change; each stands behind what it reads."""
        pending = sorted(parts, reverse=True)
        count = 0
        while pending:
            number = pending.pop()
            count += 1
            part, memory = self.program.parts[number], self._memories[number]
            value: SignalValue | None
            if memory is None:
                value = None if self._slots[part.signal] is None else now - self._taken[part.signal]
            elif isinstance(memory, SampleWindow):
                value = memory.answer(now)
            elif isinstance(memory, Held):
                value = memory.advance(now, part.inputs[0](self._slots))
            else:
                value = memory.advance(now, part.inputs[0](self._slots), part.inputs[1](self._slots))
            if memory is not None and memory.due < self._due[number]:
                due, bounds = memory.due, self._compared[number]
                if bounds is not None and value is not None and isinstance(memory, SampleWindow):
                    due = memory.steady(float(value), bounds)
                self._wake_at(number, due)
            if value != self._slots[part.slot]:
                more: set[int] = set()
                self._set(part.slot, value, more, formulas)
                if more := more - parts:
                    parts |= more
                    pending = sorted({*pending, *more}, reverse=True)
        return count

    def _evaluate(self, formulas: set[int]) -> set[int]:
        slots, functions, results, owner = self._slots, self._functions, self._results, self.program.owner
        elements = set()
        for number in formulas:
            try:
                result = functions[number](slots)
            except UNKNOWN:
                result = self.program.formulas[number](slots)
            if result is not results[number] and result != results[number]:
                results[number] = result
                elements.add(owner[number])
        for number in self._flipped:  # undecided as before, perhaps, but for want of other signals
            if results[number] is None:
                elements.add(owner[number])
        self._flipped.clear()
        return elements

    def _stand(self, number: int) -> bool:
        """Advance the guards of an element; returns whether its standing is another one now."""
        results, active, rules = self._results, self._active[number], self.program.rules[number]
        unknown: dict[str, tuple[str, ...]] = {}
        for place, rule in enumerate(rules):
            if rule.activate < 0:
                continue
            begins = results[rule.activate]
            ends = results[rule.deactivate] if rule.deactivate >= 0 else None if begins is None else not begins
            if active[place]:
                open_ = ends is None
                active[place] = ends is not True
            else:  # of two patterns that both match, the one to deactivate wins
                open_ = ends is not True and (begins is None or (begins is True and ends is None))
                active[place] = begins is True and ends is False
            if open_:
                missing = [*self._missing(rule.activate), *self._missing(rule.deactivate)]
                unknown[rule.alternate] = tuple(dict.fromkeys(missing))
        allowed = tuple([rule.alternate for rule, is_active in zip(rules, active, strict=True) if is_active])
        values = self._fixed[number]
        if values is None:
            values = self._values(rules)
        name = self.program.elements[number]
        last = self.standings.get(name)
        if last is not None and last.allowed == allowed and last.unknown == unknown and last.values == values:
            return False
        self.standings[name] = Standing(name, allowed, values, unknown, self._texts[number])
        return True

    def _missing(self, formula: int) -> tuple[str, ...]:
        """Signals of an undecided formula: the unknown ones, else all that it reads."""
        if formula < 0 or self._results[formula] is not None:
            return ()
        read = self.program.signals_of[formula]
        return tuple(name for name in read if self._slots[self._numbers[name]] is None) or read

    def _values(self, rules: tuple[Rule, ...]) -> dict[str, float]:
        """Relative values v = F / max F (thesis, 3.2.4, Eq. 4.1); below 0 counts as 0, and without a positive one none is
        known."""
        found = {}
        for rule in rules:
            value = rule.fixed if rule.value < 0 else self._results[rule.value]
            found[rule.alternate] = float(value) if isinstance(value, float | int) and math.isfinite(value) else math.nan
        best = max((value for value in found.values() if value > 0), default=math.nan)
        return {name: max(0.0, value / best) if not math.isnan(value) else math.nan for name, value in found.items()}


_NEVER = object()
"""The result of a formula that was not evaluated yet."""


def _memory(part: Remembered) -> SampleWindow | Held | Then | None:
    match part.kind:
        case "age":
            return None
        case "held":
            return Held(part.seconds)
        case "then":
            return Then(part.seconds)
    return SampleWindow(part.kind, part.seconds)

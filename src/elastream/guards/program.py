"""A guard set compiled: slots for signals and for all that has a memory, and functions of slots for everything else.

What several guards share (a window, a persistence) is kept and computed once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from elastream.dataflow.signals import Signal
from elastream.guards.compiling import COMPARED, Compiled, compiled, quick
from elastream.guards.elements import Element, GuardSet
from elastream.guards.language import OF_SIGNALS, OVERLOADS, seconds_of
from elastream.guards.tree import Call, Literal, Node, Read, nodes

MINUTE = 60.0
"""Seconds of the window of `rate` where it names none."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What has a slot because it has a memory: a window, an age, a persistence or an order.

    kind: its function. signal: slot of the signal of windows and ages. inputs: conditions of persistence and order.
    """

    tree: Node
    slot: int
    kind: str
    seconds: float = 0.0
    signal: int = -1
    inputs: tuple[Compiled, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A guard by numbers of formulas: of its two patterns and of its value, -1 where it has none; text: as written."""

    alternate: str
    activate: int
    deactivate: int
    value: int
    fixed: float
    text: str = ""


@dataclass(frozen=True)
class Program:
    """What an evaluator runs.

    signals: their slots come first. parts: in an order in which each comes behind those that it reads. formulas: conditions
    and value functions. quick: the same for known operands, where there is such. rules: of each element. readers,
    formulas_of: by slot, the numbers of the parts and of the formulas that read it. owner: by formula, its element.
    signals_of: by formula, the signals that it depends on.
    """

    signals: tuple[Signal, ...]
    parts: tuple[Remembered, ...]
    formulas: tuple[Compiled, ...]
    quick: tuple[Compiled | None, ...]
    elements: tuple[str, ...]
    rules: tuple[tuple[Rule, ...], ...]
    readers: tuple[tuple[int, ...], ...]
    formulas_of: tuple[tuple[int, ...], ...]
    always: tuple[tuple[int, ...], ...]
    bounds: tuple[tuple[float, ...], ...]
    bounded: tuple[tuple[int, ...], ...]
    owner: tuple[int, ...]
    signals_of: tuple[tuple[str, ...], ...]

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.readers)


def program_of(guards: GuardSet, signals: Iterable[Signal]) -> Program:
    """Compile `guards`, whose trees are checked against `signals`."""
    return _Builder(tuple(signals)).built(guards.elements)


class _Builder:
    def __init__(self, signals: tuple[Signal, ...]) -> None:
        self.signals = signals
        self.slots: dict[Node, int] = {Read(signal.name): n for n, signal in enumerate(signals)}
        self.parts: list[Remembered] = []
        self.part_inputs: list[set[int]] = []
        self.formulas: list[Compiled] = []
        self.quick: list[Compiled | None] = []
        self.inputs: list[set[int]] = []
        self.trees: list[Node] = []
        self.owner: list[int] = []

    def built(self, elements: tuple[Element, ...]) -> Program:
        rules = []
        for number, element in enumerate(elements):
            rules.append(
                tuple(
                    Rule(
                        guard.alternate,
                        self._formula(guard.activate, number),
                        self._formula(guard.deactivate, number),
                        self._formula(None if isinstance(guard.value, float | int) else guard.value, number),
                        float(guard.value) if isinstance(guard.value, float | int) else 0.0,
                        guard.text,
                    )
                    for guard in element.guards
                )
            )
        count = len(self.signals) + len(self.parts)
        always, bounds = self._compared(count)
        return Program(
            self.signals,
            tuple(self.parts),
            tuple(self.formulas),
            tuple(self.quick),
            tuple(element.name for element in elements),
            tuple(rules),
            _inverted(self.part_inputs, count),
            _inverted(self.inputs, count),
            always,
            tuple(tuple(constant for constant, _ in each) for each in bounds),
            tuple(tuple(formula for _, formula in each) for each in bounds),
            tuple(self.owner),
            tuple(tuple(dict.fromkeys(n.signal for n in nodes(tree) if isinstance(n, Read))) for tree in self.trees),
        )

    def _compared(self, count: int) -> tuple[tuple[tuple[int, ...], ...], list[list[tuple[float, int]]]]:
        """(formulas that any other value may change, constants with the formulas that compare with them), by slot."""
        always: list[set[int]] = [set() for _ in range(count)]
        bounds: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        for number, tree in enumerate(self.trees):
            others: set[int] = set()
            for slot, constant in _comparisons(tree, self.slots, others):
                bounds[slot].append((constant, number))
            for slot in others:
                always[slot].add(number)
        return tuple(tuple(sorted(each)) for each in always), [sorted(each) for each in bounds]

    def _formula(self, tree: Node | None, owner: int) -> int:
        if tree is None:
            return -1
        inputs = self._prepare(tree)
        self.formulas.append(compiled(tree, self.slots))
        self.quick.append(quick(tree, self.slots))
        self.inputs.append(inputs)
        self.trees.append(tree)
        self.owner.append(owner)
        return len(self.formulas) - 1

    def _prepare(self, tree: Node) -> set[int]:
        """Give all that has a memory in `tree` a slot; returns the slots that `tree` itself reads."""
        if (slot := self.slots.get(tree)) is not None:
            return {slot}
        if not isinstance(tree, Call):
            return set()
        function = OVERLOADS[tree.overload].function
        if function in ("held", "then"):
            *conditions, duration = tree.args
            inputs = set().union(*map(self._prepare, conditions))
            seconds = seconds_of(duration) if isinstance(duration, Literal) else 0.0
            part = Remembered(
                tree, self._next, function, seconds, inputs=tuple(compiled(c, self.slots) for c in conditions)
            )
            return {self._added(part, inputs)}
        if tree.overload in OF_SIGNALS and function != "known":
            read, *rest = tree.args
            seconds = seconds_of(rest[0]) if rest and isinstance(rest[0], Literal) else MINUTE
            return {self._added(Remembered(tree, self._next, function, seconds, signal=self.slots[read]), set())}
        return set().union(*map(self._prepare, tree.args))

    @property
    def _next(self) -> int:
        return len(self.signals) + len(self.parts)

    def _added(self, part: Remembered, inputs: set[int]) -> int:
        self.slots[part.tree] = part.slot
        self.parts.append(part)
        self.part_inputs.append(inputs)
        return part.slot


def _comparisons(tree: Node, slots: Mapping[Node, int], others: set[int]) -> Iterator[tuple[int, float]]:
    """The comparisons of a slot with a constant in `tree`; slots that it reads in any other way are put into `others`."""
    if (slot := slots.get(tree)) is not None:
        others.add(slot)
        return
    if not isinstance(tree, Call):
        return
    function = OVERLOADS[tree.overload].function
    if function in COMPARED and len(tree.args) == 2:
        left, right = tree.args
        term, constant = (left, right) if isinstance(right, Literal) else (right, left)
        slot = slots.get(term)
        if slot is not None and isinstance(constant, Literal) and constant.kind in ("int", "double"):
            yield slot, constant.value  # type: ignore[misc]  # a whole number as it is: large ones are no floats
            return
    for each in tree.args:
        yield from _comparisons(each, slots, others)


def _inverted(inputs: list[set[int]], count: int) -> tuple[tuple[int, ...], ...]:
    readers: list[list[int]] = [[] for _ in range(count)]
    for number, slots in enumerate(inputs):
        for slot in slots:
            readers[slot].append(number)
    return tuple(map(tuple, readers))

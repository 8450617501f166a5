"""Shapes of a benchmark's load, by name or from a recorded load, with their highest rate at a given rate."""

from collections.abc import Callable, Mapping
from pathlib import Path

from elastream.errors import InputError
from elastream.loads.document import load_from
from elastream.loads.pattern import Pattern, constant, sine, steps

LOW = 0.1  # of the rate, where a wave is lowest
SHAPES: Mapping[str, Callable[[float, float], Pattern]] = {
    "constant": lambda rate, seconds: constant(rate, lasts=seconds),
    "wave": lambda rate, seconds: sine(LOW * rate, rate, period=seconds).lasting(seconds),
    "steps": lambda rate, seconds: steps(*(rate * part for part in (0.25, 0.5, 1.0, 0.5, 0.25)), every=seconds / 5),
    "burst": lambda rate, seconds: steps((0.2 * rate, 0.4 * seconds), (rate, 0.2 * seconds), (0.2 * rate, 0.4 * seconds)),
}


def load_of(shape: str, rate: float, seconds: float) -> Pattern:
    """Return a load of `seconds` with the highest rate `rate` (events/s).

    Args:
        shape: Name in `SHAPES`, or a recorded load as `--load` of the other commands takes it; its time is compressed or
            stretched to `seconds`.

    Raises:
        InputError: There is no such shape or file, or the recorded load has no end or no record.
    """
    if shape in SHAPES:
        return SHAPES[shape](rate, seconds)
    if shape.isidentifier() and not Path(shape).exists():
        raise InputError(f"there is no load {shape!r} (there are: {', '.join(SHAPES)}, and files of recorded loads)")
    recorded = load_from(shape)
    if recorded.endless:
        raise InputError(f"the load {shape!r} is endless; give it an end with lasting")
    highest = max(max(piece.first, piece.last) for piece in recorded.pieces)
    if not highest > 0:
        raise InputError(f"the load {shape!r} has no record")
    compressed = recorded.faster(recorded.seconds / seconds)
    return compressed.scaled(rate / highest * seconds / recorded.seconds)

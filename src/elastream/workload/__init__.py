"""Arrival patterns: how many records are due when. Shapes, recorded traces, and how documents write them down.

Reading the records themselves is left to the plants.
"""

from elastream.workload.document import load_from, pattern_from
from elastream.workload.pattern import Pattern, Piece, counts, dues
from elastream.workload.shapes import constant, ramp, random_walk, sine, steps
from elastream.workload.trace import trace

__all__ = [
    "Pattern",
    "Piece",
    "constant",
    "counts",
    "dues",
    "load_from",
    "pattern_from",
    "ramp",
    "random_walk",
    "sine",
    "steps",
    "trace",
]

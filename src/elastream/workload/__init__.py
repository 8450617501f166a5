"""Arrival patterns: how many records are due at which time, as shapes, recorded traces and document entries.

The records themselves are read by the plants.
"""

from elastream.workload.document import load_from, pattern_from
from elastream.workload.pattern import Pattern, Section, counts, dues
from elastream.workload.shapes import constant, ramp, random_walk, sine, steps
from elastream.workload.trace import trace

__all__ = [
    "Pattern",
    "Section",
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

"""Loads, host speeds and links of a run, as shapes and recorded traces.

Hosts and links vary in simulation only.
"""

from elastream.loads.document import load_from, pattern_from
from elastream.loads.links import Ec2Links, LinkSource, LinkTrace
from elastream.loads.pattern import Pattern, Section, counts, dues
from elastream.loads.recorded import SpeedSpread, recorded_links, recorded_speeds
from elastream.loads.shapes import constant, ramp, random_walk, sine, steps
from elastream.loads.speeds import Ec2Speeds, SpeedSource, SpeedTrace, SpeedWalk
from elastream.loads.trace import trace

__all__ = [
    "Ec2Links",
    "Ec2Speeds",
    "LinkSource",
    "LinkTrace",
    "Pattern",
    "Section",
    "SpeedSource",
    "SpeedSpread",
    "SpeedTrace",
    "SpeedWalk",
    "constant",
    "counts",
    "dues",
    "load_from",
    "pattern_from",
    "ramp",
    "random_walk",
    "recorded_links",
    "recorded_speeds",
    "sine",
    "steps",
    "trace",
]

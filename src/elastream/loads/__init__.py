"""What a run meets: how many records are due when, how fast hosts are and how far apart, as shapes and recorded traces.

The records themselves are read by the plants; hosts and links vary in simulation only.
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

"""Loads that a run meets, and speeds of hosts and links in simulation, as shapes and recorded traces."""

from typing import TYPE_CHECKING

from elastream._lazy import lazy_names

if TYPE_CHECKING:
    from elastream.loads.document import load_from as load_from
    from elastream.loads.document import pattern_from as pattern_from
    from elastream.loads.links import Ec2Links as Ec2Links
    from elastream.loads.links import LinkSource as LinkSource
    from elastream.loads.links import LinkTrace as LinkTrace
    from elastream.loads.pattern import Pattern as Pattern
    from elastream.loads.pattern import Section as Section
    from elastream.loads.pattern import constant as constant
    from elastream.loads.pattern import counts as counts
    from elastream.loads.pattern import dues as dues
    from elastream.loads.pattern import ramp as ramp
    from elastream.loads.pattern import random_walk as random_walk
    from elastream.loads.pattern import sine as sine
    from elastream.loads.pattern import steps as steps
    from elastream.loads.recorded import SpeedSpread as SpeedSpread
    from elastream.loads.recorded import recorded_links as recorded_links
    from elastream.loads.recorded import recorded_speeds as recorded_speeds
    from elastream.loads.speeds import Ec2Speeds as Ec2Speeds
    from elastream.loads.speeds import SpeedSource as SpeedSource
    from elastream.loads.speeds import SpeedTrace as SpeedTrace
    from elastream.loads.speeds import SpeedWalk as SpeedWalk
    from elastream.loads.traces import trace as trace

# No submodule may have the name of one of these: once imported, it would take its place.
__getattr__, __dir__, __all__ = lazy_names(
    "elastream.loads",
    {
        "elastream.loads.document": ("load_from", "pattern_from"),
        "elastream.loads.links": ("Ec2Links", "LinkSource", "LinkTrace"),
        "elastream.loads.pattern": (
            "Pattern",
            "Section",
            "constant",
            "counts",
            "dues",
            "ramp",
            "random_walk",
            "sine",
            "steps",
        ),
        "elastream.loads.recorded": ("SpeedSpread", "recorded_links", "recorded_speeds"),
        "elastream.loads.speeds": ("Ec2Speeds", "SpeedSource", "SpeedTrace", "SpeedWalk"),
        "elastream.loads.traces": ("trace",),
    },
)

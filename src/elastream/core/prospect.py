"""What a simulated run will be, known before it begins, for policies that take something from it: sizes, or an oracle.

Where several policies are compared, one object of each serves; what it takes from the load makes another value of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.stages import Layout

Course = Callable[[str, Floats], Floats]
"""Factors at times, seconds, on what is measured of the row called so: a host, or a link `"h1>h2"`; NaN where unknown."""


@dataclass(frozen=True)
class Prospect:
    """The run to come.

    loads: by source. seconds: how long; None: as long as the loads. window: seconds over which a peak is a mean. costs:
    (core-seconds per record, records out per record in) by operator in place of declared ones, None for what was not
    measured. speeds, bandwidths: how those of hosts and links vary; None where they do not.
    """

    layout: Layout
    host_types: Sequence[HostType]
    loads: Mapping[str, ArrivalPattern]
    seconds: float | None = None
    window: float | None = None
    costs: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    speeds: Course | None = None
    bandwidths: Course | None = None

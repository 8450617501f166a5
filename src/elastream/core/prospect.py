"""Prospect of a simulated run, for policies that prepare with its sizes or an oracle.

Preparing returns a new policy, because runs share policy objects.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.stages import Layout

# Factors over times (seconds) on the speed of a host or the bandwidth of a link "h1>h2"; NaN where unknown.
Variation = Callable[[str, Floats], Floats]


@dataclass(frozen=True)
class Prospect:
    """Simulated run before its start."""

    layout: Layout
    host_types: Sequence[HostType]
    loads: Mapping[str, ArrivalPattern]
    seconds: float | None = None  # length; None: that of the loads
    window: float | None = None  # averaging window of a peak (seconds)
    # measured core-seconds per record and selectivity by operator, or None
    costs: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    speeds: Variation | None = None  # variation of host speeds, or None
    bandwidths: Variation | None = None  # variation of link bandwidths, or None

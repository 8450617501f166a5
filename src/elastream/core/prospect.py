"""Prospect of a simulated run, for policies that prepare with its sizes or an oracle.

A comparison shares policy objects between runs, so that preparing returns a new policy.
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
    """A simulated run before its start.

    Attributes:
        loads: Arrival pattern by source.
        seconds: Length of the run; None: as long as the loads.
        window: Window over which a peak is a mean (seconds).
        costs: Core-seconds per record and selectivity by operator, in place of declared ones; None if not measured.
        speeds: Variation of host speeds; None without.
        bandwidths: Variation of link bandwidths; None without.
    """

    layout: Layout
    host_types: Sequence[HostType]
    loads: Mapping[str, ArrivalPattern]
    seconds: float | None = None
    window: float | None = None
    costs: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    speeds: Variation | None = None
    bandwidths: Variation | None = None

"""Constants of the simulator with a queue per instance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elastream.core.composition import Consistency
from elastream.core.frames import Floats
from elastream.errors import InputError
from elastream.simulator import Settings


@dataclass(frozen=True, slots=True)
class Background:
    """Load of other processes on a host, served first: cores, and bytes/s of its link."""

    cores: float = 0.0
    link: float = 0.0

    def __post_init__(self) -> None:
        if self.cores < 0 or self.link < 0:
            raise InputError(f"background load: {self.cores:g} cores, {self.link:g} bytes/s; neither may be negative")


@dataclass(frozen=True)
class TaskSettings(Settings):
    """Constants of a plant of tasks.

    shares, efforts: weights and cost factors by instance. pending: most records of a source in flight (Storm's
    max.spout.pending). machine_link: bytes/s shared by a region's hosts, within which records need no link. None: each
    host is a machine.
    """

    # Seconds. Assumed: from a record's last result until its successor enters, under `pending`; then transit counts as in
    # flight. 0: senders react at once.
    turnaround: float = 0.0
    efforts: Mapping[str, Floats | Sequence[float]] = field(default_factory=dict)
    pending: float = math.inf
    machine_link: float | None = None
    background: Mapping[str, Background] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pending > 0:
            raise InputError(f"the simulator's pending is {self.pending:g}; it must be above 0")
        if self.turnaround < 0:
            raise InputError(f"the simulator's turnaround is negative ({self.turnaround:g})")
        if self.machine_link is not None and not self.machine_link > 0:
            raise InputError(f"the link of a machine has {self.machine_link:g} bytes/s; it must be above 0")
        if self.consistency is Consistency.WAVE:
            raise InputError("queues per task keep no records apart: consistency is batch, drain or rewired, not wave")
        if self.link_trace is not None:
            raise InputError("queues per task have one link a host: no trace of links by pair of hosts")
        if self.joins:
            raise InputError(f"operator {min(self.joins)!r} joins its inputs; queues per task do not support joins")

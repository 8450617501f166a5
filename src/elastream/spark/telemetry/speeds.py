"""How fast hosts are, from what the probes beside their Python workers read (`worker.probe`).

A host's speed is what each core of its type is worth to a plan: records a second, relative to the standard core. It is
lower where a core takes more CPU seconds for the same work, and where the host does not get all of its cores. The
standard is the fastest host there is: the thesis (Kumbhare 2015, section 1.3) divides by the best that is observed, and
takes that for what hosts are rated at. So the fastest host has the speed that its type declares, and costs in CPU
seconds, which operators are measured in, need no other machine to refer to.
"""

import contextlib
import json
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from elastream.core.hosts import HostState, Lease
from elastream.spark.worker.probe import PERIOD_S, SpeedReading, file_of

READINGS = 5
"""Newest readings of a host of whose work the median counts: a single one is a millisecond of a busy machine."""
STALE = 6 * PERIOD_S
"""Seconds without a new reading after which a speed is unknown: a probe waits for its turn behind busy workers."""
LEAST_SHARE = 0.01
"""Least part of its cores that a host is taken to get."""
TELLABLE = 0.1
"""Part by which hosts must differ from each other, and from what they are to get, for it to be told from noise: medians of
five readings of alike hosts differed by up to 6 % on two cores that a dozen processes wanted."""


class HostSpeed(NamedTuple):
    """speed: of a core, relative to the standard one. share: part of its cores that the host gets. age: seconds."""

    speed: float
    share: float
    age: float


@dataclass(slots=True)
class _Probed:
    """Readings of one executor. seen: when the newest was first seen here; clocks of hosts are not compared."""

    stamp: int = -1
    seen: float = 0.0
    readings: deque[SpeedReading] = field(default_factory=lambda: deque(maxlen=READINGS))

    @property
    def piece(self) -> float:
        return statistics.median(each.piece for each in self.readings)

    def share(self, cores: float) -> float:
        """Part of `cores` cores that the host gets: as its quota is now, less what was stolen lately."""
        kept = statistics.median(each.kept for each in self.readings)
        kept = kept if kept < 1 - TELLABLE else 1.0
        return max(LEAST_SHARE, min(1.0, self.readings[-1].cores / cores) * kept)


class SpeedProbes:
    """Speed probes of the executors, which write a file each into `folder`.

    stretch: seconds for which a core is taken for a second of CPU time, as of the last look: 1 where hosts get their cores.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._probed: dict[str, _Probed] = {}
        self.stretch = 1.0

    def look(self, host_of: Mapping[str, str], leases: Mapping[str, Lease], now: float) -> Mapping[str, HostSpeed]:
        """Return the speed of each working host whose probe has reported. host_of: by executor."""
        working = {
            name: lease.type for name, lease in leases.items() if lease.state in (HostState.RUNNING, HostState.DRAINING)
        }
        found: dict[str, _Probed] = {}
        for executor, host in host_of.items():
            if host in working and (probed := self._read(executor, now)).readings and now - probed.seen <= STALE:
                found[host] = probed
        self._probed = {executor: each for executor, each in self._probed.items() if executor in host_of}
        standard = min((each.piece * working[host].speed for host, each in found.items()), default=0.0)
        shares = {host: each.share(working[host].cores) for host, each in found.items()}
        # Hosts have equal parts of the records: one that gets half of its cores is busy for twice as long with its part.
        cores = sum(type.cores for type in working.values())
        taken = sum(type.cores / shares.get(host, 1.0) for host, type in working.items())
        self.stretch = taken / cores if cores else 1.0
        speeds = {host: standard / each.piece for host, each in found.items()}
        for host, speed in speeds.items():
            if speed > (1 - TELLABLE) * working[host].speed:
                speeds[host] = working[host].speed
        return {host: HostSpeed(speeds[host] * shares[host], shares[host], now - each.seen) for host, each in found.items()}

    def _read(self, executor: str, now: float) -> _Probed:
        probed = self._probed.setdefault(executor, _Probed())
        with contextlib.suppress(OSError, ValueError, TypeError):  # not there yet
            file = file_of(self._folder, executor)
            if (stamp := file.stat().st_mtime_ns) != probed.stamp:
                reading = SpeedReading(**json.loads(file.read_text()))
                if reading.piece > 0 and reading.cores > 0 and reading.kept > 0:
                    probed.readings.append(reading)
                    probed.stamp, probed.seen = stamp, now
        return probed

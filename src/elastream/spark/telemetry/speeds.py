"""Speed of hosts, from the probes beside their Python workers (`worker.probe`).

It is the rate of one core relative to the fastest host present (cf. the thesis, section 1.3), which has its type's declared
speed. It is lower if a core needs more CPU seconds for the same work, and if the host does not get all of its cores.
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

# Newest readings whose median counts: a single one is a millisecond of a busy machine.
READINGS = 5
# Seconds without a new reading until a speed is unknown: a probe waits for its turn behind busy workers.
STALE_S = 6 * PERIOD_S
# Least share of its cores that a host is assumed to get.
LEAST_SHARE = 0.01
# Least relative difference between hosts that counts as signal. Medians of five readings of equal hosts differed by up to 6
# % on two cores that a dozen processes shared.
LEAST_DIFFERENCE = 0.1


class HostSpeed(NamedTuple):
    """Speed of a core relative to the standard one, share of its cores that the host gets, and age [s]."""

    speed: float
    share: float
    age: float


@dataclass(slots=True)
class _Probed:
    stamp: int = -1
    read_at: float = 0.0
    readings: deque[SpeedReading] = field(default_factory=lambda: deque(maxlen=READINGS))

    @property
    def piece(self) -> float:
        return statistics.median(each.piece for each in self.readings)

    def share(self, cores: float) -> float:
        """Return the share of `cores` of the host: its quota less recent steal time."""
        unstolen = statistics.median(each.kept for each in self.readings)
        unstolen = unstolen if unstolen < 1 - LEAST_DIFFERENCE else 1.0
        return max(LEAST_SHARE, min(1.0, self.readings[-1].cores / cores) * unstolen)


class SpeedProbes:
    """Speed probes of the executors, which write one file each into `folder`.

    stretch: seconds of a core per second of CPU time at the last look; 1 if hosts get all of their cores.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._probed: dict[str, _Probed] = {}
        self.stretch = 1.0

    def look(self, host_of: Mapping[str, str], leases: Mapping[str, Lease], now: float) -> Mapping[str, HostSpeed]:
        """Return the speed of each working host whose probe has reported. host_of: by executor."""
        works = (HostState.RUNNING, HostState.DRAINING)
        working = {name: lease.type for name, lease in leases.items() if lease.state in works}
        probes: dict[str, _Probed] = {}
        for executor, host in host_of.items():
            if host in working and (probed := self._read(executor, now)).readings and now - probed.read_at <= STALE_S:
                probes[host] = probed
        self._probed = {executor: each for executor, each in self._probed.items() if executor in host_of}
        standard = min((each.piece * working[host].speed for host, each in probes.items()), default=0.0)
        shares = {host: each.share(working[host].cores) for host, each in probes.items()}
        # Hosts have equal parts of the records: one that gets half of its cores is busy for twice as long with its part.
        cores = sum(type.cores for type in working.values())
        occupied = sum(type.cores / shares.get(host, 1.0) for host, type in working.items())
        self.stretch = occupied / cores if cores else 1.0
        speeds = {}
        for host, each in probes.items():
            rated, speed = working[host].speed, standard / each.piece
            speeds[host] = rated if speed > (1 - LEAST_DIFFERENCE) * rated else speed
        ages = {host: now - each.read_at for host, each in probes.items()}
        return {host: HostSpeed(speeds[host] * shares[host], shares[host], age) for host, age in ages.items()}

    def memory(self, executor: str) -> SpeedReading | None:
        """Return the newest reading of an executor seen by `look`; None without one."""
        probed = self._probed.get(executor)
        return probed.readings[-1] if probed is not None and probed.readings else None

    def _read(self, executor: str, now: float) -> _Probed:
        probed = self._probed.setdefault(executor, _Probed())
        with contextlib.suppress(OSError, ValueError, TypeError):  # not there yet
            file = file_of(self._folder, executor)
            if (stamp := file.stat().st_mtime_ns) != probed.stamp:
                reading = SpeedReading(**json.loads(file.read_text()))
                if reading.piece > 0 and reading.cores > 0 and reading.kept > 0:
                    probed.readings.append(reading)
                    probed.stamp, probed.read_at = stamp, now
        return probed

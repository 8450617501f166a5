"""Packet delays between the regions of a local cluster, without the kernel's netem, which many machines lack.

`python -m elastream.clouds.local.wire SETTINGS` forwards frames between TAP devices after their pair's latency, in order.
"""

import contextlib
import fcntl
import heapq
import json
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elastream.clouds.local.processes import end_with_parent

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # <linux/if_tun.h>
MAX_FRAME_BYTES = 1 << 16
MAX_FRAMES_PER_READ = 64  # frames read from one end before the next end


def open_tap(name: str) -> int:
    """Create a TAP device and return its descriptor; closing it removes the device."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@dataclass
class Wire:
    """Frames in transit between `ends` ends, with delays in seconds by (from, to)."""

    ends: int
    delays: Mapping[tuple[int, int], float]
    _at: dict[bytes, int] = field(default_factory=dict, repr=False)
    _queues: dict[tuple[int, int], deque[tuple[float, bytes]]] = field(default_factory=dict, repr=False)

    def arrived(self, end: int, frame: bytes, now: float) -> None:
        """Queue a frame for the end of its receiver, or for all ends while that is unknown."""
        receiver, sender = frame[:6], frame[6:12]
        self._at[sender] = end
        end_of_receiver = None if receiver[0] & 1 else self._at.get(receiver)  # multicast: the first byte is odd
        for other in range(self.ends) if end_of_receiver is None else (end_of_receiver,):
            if other != end:
                due = now + self.delays.get((end, other), 0.0)
                self._queues.setdefault((end, other), deque()).append((due, frame))

    @property
    def next_due(self) -> float:
        """Time of the next due frame; inf without frames in transit."""
        return min((queue[0][0] for queue in self._queues.values() if queue), default=float("inf"))

    def due(self, now: float) -> Sequence[tuple[int, bytes]]:
        """Remove and return (end, frame) of all frames due by `now`, earliest first."""
        ready: list[tuple[float, int, int, bytes]] = []
        for (_, other), queue in self._queues.items():
            while queue and queue[0][0] <= now:
                when, frame = queue.popleft()
                heapq.heappush(ready, (when, len(ready), other, frame))
        return [heapq.heappop(ready)[2:] for _ in range(len(ready))]


def carry(wire: Wire, taps: Sequence[int]) -> None:
    """Forward frames between the devices forever."""
    ends = {tap: end for end, tap in enumerate(taps)}
    while True:
        wait = max(0.0, wire.next_due - time.monotonic())
        readable, _, _ = select.select(taps, (), (), None if wait == float("inf") else wait)
        for tap in readable:
            for _ in range(MAX_FRAMES_PER_READ):
                try:
                    frame = os.read(tap, MAX_FRAME_BYTES)
                except BlockingIOError:
                    break
                wire.arrived(ends[tap], frame, time.monotonic())
        for end, frame in wire.due(time.monotonic()):
            with contextlib.suppress(OSError):  # the region is being removed
                os.write(taps[end], frame)


def main(settings: str) -> None:
    end_with_parent()
    parsed = json.loads(settings)
    wire = Wire(len(parsed["ends"]), {(source, target): seconds for source, target, seconds in parsed["delays"]})
    try:
        taps = [open_tap(name) for name in parsed["ends"]]
    except OSError as error:
        sys.exit(f"/dev/net/tun: {error.strerror}")
    os.setpriority(os.PRIO_PROCESS, 0, -20)  # waiting for a CPU would delay every packet
    print("ready", flush=True)
    carry(wire, taps)


if __name__ == "__main__":
    main(sys.argv[1])

"""What lies between the regions of a local cluster: a wire on which every packet takes as long as it was told to.

Each region is a bridge of its own on this machine; within one, packets pass in the kernel. This small process
(`python -m elastream.clouds.local.wire SETTINGS`) has an end (a TAP device) in each bridge, and hands a frame that arrives
at one on to another, the latency of that pair of regions later, in order and losing none. It needs a kernel with network
namespaces and TAP devices, and not its delaying queue (netem), which many kernels of virtual machines lack.
"""

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import select
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Wire", "main", "open_tap"]

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # <linux/if_tun.h>
SET_PARENT_DEATH_SIGNAL = 1  # prctl(2)
LARGEST = 1 << 16
"""Bytes of the largest frame a device hands over."""
AT_ONCE = 64
"""Frames read from one end before the others have their turn."""


def open_tap(name: str) -> int:
    """The descriptor of a new TAP device called `name`, which is gone when that is closed; raises OSError."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@dataclass
class Wire:
    """Frames on their way between `ends` ends.

    delays: seconds by (from, to), 0 where not given. `arrived` takes a frame in, `due` gives out those whose time has come.
    """

    ends: int
    delays: Mapping[tuple[int, int], float]
    _at: dict[bytes, int] = field(default_factory=dict, repr=False)
    _queues: dict[tuple[int, int], deque[tuple[float, bytes]]] = field(default_factory=dict, repr=False)

    def arrived(self, end: int, frame: bytes, now: float) -> None:
        """A frame at `end`: it leaves for where its receiver was last heard, or for every other end."""
        receiver, sender = frame[:6], frame[6:12]
        self._at[sender] = end
        known = None if receiver[0] & 1 else self._at.get(receiver)  # an odd first byte addresses many
        for other in range(self.ends) if known is None else (known,):
            if other != end:
                due = now + self.delays.get((end, other), 0.0)
                self._queues.setdefault((end, other), deque()).append((due, frame))

    @property
    def next_due(self) -> float:
        """When the next frame is to come out; infinite while none is on its way."""
        return min((queue[0][0] for queue in self._queues.values() if queue), default=float("inf"))

    def due(self, now: float) -> Sequence[tuple[int, bytes]]:
        """(end, frame) of all frames whose time has come, the earliest first."""
        ready: list[tuple[float, int, int, bytes]] = []
        for (_, other), queue in self._queues.items():
            while queue and queue[0][0] <= now:
                when, frame = queue.popleft()
                heapq.heappush(ready, (when, len(ready), other, frame))
        return [heapq.heappop(ready)[2:] for _ in range(len(ready))]


def carry(wire: Wire, taps: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
    """Carry frames between the devices for ever."""
    ends = {tap: end for end, tap in enumerate(taps)}
    while True:
        wait = max(0.0, wire.next_due - clock())
        readable, _, _ = select.select(taps, (), (), None if wait == float("inf") else wait)
        for tap in readable:
            for _ in range(AT_ONCE):
                try:
                    frame = os.read(tap, LARGEST)
                except BlockingIOError:
                    break
                wire.arrived(ends[tap], frame, clock())
        for end, frame in wire.due(clock()):
            with contextlib.suppress(OSError):  # that region is being taken down
                os.write(taps[end], frame)


def main(settings: str) -> None:
    """Open the ends that `settings` (JSON) names, say so with a line on stdout, and carry frames for ever.

    settings: `ends`, the names of the devices, and `delays`, a list of (from, to, seconds). Who started it joins the
    devices to their bridges.
    """
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    given = json.loads(settings)
    wire = Wire(len(given["ends"]), {(source, target): seconds for source, target, seconds in given["delays"]})
    try:
        taps = [open_tap(name) for name in given["ends"]]
    except OSError as error:
        sys.exit(f"/dev/net/tun: {error.strerror}")
    os.setpriority(os.PRIO_PROCESS, 0, -20)  # who waits for the processor here would make every packet late
    print("ready", flush=True)
    carry(wire, taps)


if __name__ == "__main__":
    main(sys.argv[1])

"""Gives a host a network of its own: a namespace, a link that is limited, and other regions that are far away.

Knows the commands `ip` and `tc`, and nothing of Spark. What this machine allows is found by trying; where something is
missing an OSError says what, and the supervisor says it in a sentence and goes on without. Imports nothing heavy.
"""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastream.model.errors import CloudError, ElastreamError
from elastream.model.units import bytes_per_second, duration

__all__ = ["Link", "Network"]

# The range that RFC 2544 sets aside for benchmarks: it collides with no network that a machine is really on.
SUBNET = "198.18"


@dataclass(frozen=True, slots=True)
class Link:
    """What joins a host to the others: `rate` such as `"100mbit"` or None, one-way `delay` such as `"5ms"` or None.

    Raises CloudError for a text that is neither, for a rate of zero and for a link that limits nothing.
    """

    rate: str | float | None = None
    delay: str | float | None = None

    def __post_init__(self) -> None:
        try:
            rate = None if self.rate is None else bytes_per_second(self.rate)
            if self.delay is not None:
                duration(self.delay)
        except ElastreamError as error:
            raise CloudError(f"a link of a host: {error}") from None
        if rate == 0:
            raise CloudError("a link of a host has a rate of 0: it must be above 0")
        if self.rate is None and self.delay is None:
            raise CloudError("a link of a host limits nothing: give it a rate, a delay or both")

    @property
    def bits_per_second(self) -> int | None:
        """The rate, whole bits a second."""
        return None if self.rate is None else max(1, round(8 * bytes_per_second(self.rate)))

    @property
    def delay_microseconds(self) -> int | None:
        """The one-way delay."""
        return None if self.delay is None else round(1e6 * duration(self.delay))

    def __str__(self) -> str:
        return " and ".join(
            ([f"{self.bits_per_second / 1e6:g} Mbit/s"] if self.bits_per_second else [])
            + ([f"{self.delay_microseconds / 1e3:g} ms one way"] if self.delay_microseconds is not None else [])
        )


@dataclass(frozen=True, slots=True)
class Network:
    """Bridges on this machine, one a region, and per host a network namespace joined to its region's bridge by a pair of
    virtual Ethernet devices.

    `number` (1 to 254) sets the bridges' names and the addresses 198.18.number.0/24, which are one network over all
    regions. `netem`: whether the kernel can delay packets. `regions`: how many there are; the machine itself is in the
    first. Namespaces see only their bridge, no route leads out of it.
    """

    number: int
    netem: bool = True
    regions: int = 1

    @property
    def bridge(self) -> str:
        """Name of the first region's bridge."""
        return self.bridge_of(0)

    def bridge_of(self, region: int) -> str:
        """Name of a region's bridge."""
        return f"elastream{self.number}r{region}" if region else f"elastream{self.number}"

    def end_of(self, region: int) -> str:
        """Name of the end that the wire between the regions has at a region's bridge."""
        return f"es{self.number}w{region}"

    def address(self, index: int) -> str:
        """Address of host number `index`; 1 is the machine itself, where master and driver listen."""
        return f"{SUBNET}.{self.number}.{index}"

    def namespace(self, index: int) -> str:
        """Name of the namespace of host number `index`."""
        return f"{self.bridge}-{index}"

    def device(self, index: int) -> str:
        """Name of this machine's end of the link of host number `index`; the other end is `eth0` in the namespace."""
        return f"es{self.number}-{index}"

    def open(self) -> "Network":
        """Make the bridges and find out what can be done; raises OSError saying what could not be."""
        for command in ("ip", "tc", "nsenter"):
            if shutil.which(command) is None:
                raise OSError(f"the command {command} is missing")
        # What bears this name is left from a supervisor that was killed: numbers are claimed before they are used.
        self.close()
        for left in Path("/run/netns").glob(f"{self.bridge}-*"):
            _run("ip", "netns", "delete", left.name)
        try:
            for region in range(self.regions):
                _run("ip", "link", "add", self.bridge_of(region), "type", "bridge")
                _run("ip", "link", "set", self.bridge_of(region), "up")
            _run("ip", "address", "add", f"{self.address(1)}/24", "dev", self.bridge)
            _run("ip", "netns", "add", self.namespace(1))
            _run("ip", "netns", "delete", self.namespace(1))
        except OSError:
            self.close()
            raise
        try:
            _run("tc", "qdisc", "add", "dev", self.bridge, "root", "netem", "delay", "1us")
            _run("tc", "qdisc", "delete", "dev", self.bridge, "root")
        except OSError:
            return Network(self.number, netem=False, regions=self.regions)
        return self

    def join(self, delays: Mapping[tuple[int, int], float]) -> subprocess.Popen[str]:
        """Join the regions by a wire with these delays (seconds by pair of regions); the process that is it.

        Raises OSError where it cannot be had, with the regions then joined by nothing.
        """
        ends = [self.end_of(region) for region in range(self.regions)]
        told = {"ends": ends, "delays": [(source, target, seconds) for (source, target), seconds in delays.items()]}
        wire = subprocess.Popen(
            [sys.executable, "-m", "elastream.clouds.local.wire", json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert wire.stdout is not None
        try:
            if wire.stdout.readline() != "ready\n":
                _, said = wire.communicate()
                raise OSError(said.strip().splitlines()[-1] if said.strip() else "the wire between the regions ended")
            for region, end in enumerate(ends):
                # All that may be on its way at a time: a queue that is full would lose packets.
                _run("ip", "link", "set", end, "txqueuelen", "20000", "master", self.bridge_of(region), "up")
        except OSError:
            wire.kill()
            wire.wait()
            raise
        return wire

    def close(self) -> None:
        """Remove the bridges."""
        for region in range(self.regions):
            with contextlib.suppress(OSError):
                _run("ip", "link", "delete", self.bridge_of(region))

    def add(self, index: int, link: Link | None = None, region: int = 0) -> None:
        """Make the namespace of host number `index` in a region, limited by `link` in both directions; raises OSError."""
        name, device = self.namespace(index), self.device(index)
        _run("ip", "netns", "add", name)
        # The kernel takes a namespace that was deleted apart in its own time: the outer end of its link may still be there.
        with contextlib.suppress(OSError):
            _run("ip", "link", "delete", device)
        _run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", device, "master", self.bridge_of(region), "up")
        _run("ip", "-n", name, "address", "add", f"{self.address(index)}/24", "dev", "eth0")
        for inner in ("eth0", "lo"):
            _run("ip", "-n", name, "link", "set", inner, "up")
        if link is not None and (discipline := self.discipline(link)):
            _run("tc", "qdisc", "add", "dev", device, "root", *discipline)
            _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *discipline)

    def remove(self, index: int) -> None:
        """Remove the namespace, and with it both ends of its link."""
        with contextlib.suppress(OSError):
            _run("ip", "netns", "delete", self.namespace(index))

    def inside(self, index: int) -> list[str]:
        """What to put before a command to run it in the namespace; it becomes the command, with the same process id."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(index)}"]

    def discipline(self, link: Link) -> list[str]:
        """The queueing discipline of `link` in tc's words: netem where there is one, for the rate alone a token bucket."""
        rate, delay = link.bits_per_second, link.delay_microseconds
        if delay is not None and self.netem:
            return ["netem", "delay", f"{delay}us"] + (["rate", f"{rate}bit"] if rate else [])
        if rate is None:
            return []
        # The bucket must hold the largest packet that segmentation offload hands down (64 KiB), and what falls due between
        # two ticks of a 250 Hz clock.
        return ["tbf", "rate", f"{rate}bit", "burst", f"{max(2 * 65536, rate // 8 // 250)}", "latency", "50ms"]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise OSError(f"{' '.join(command)}: {said}")

"""Network of each host, made with `ip` and `tc`: a namespace, a limited link, and delays between regions.

An OSError names what this machine does not allow. Runs in the supervisor and imports little.
"""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastream.errors import CloudError, ElastreamError
from elastream.units import bytes_per_second, duration

# The range that RFC 2544 reserves for benchmarks: it does not collide with a real network.
SUBNET = "198.18"


@dataclass(frozen=True, slots=True)
class Link:
    """Limits of a host's network link.

    Args:
        rate: Rate such as `"100mbit"`; None for no limit.
        delay: One-way delay such as `"5ms"`; None for none.

    Raises:
        CloudError: A malformed rate or delay, a rate of 0, or no limit at all.
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
        return None if self.rate is None else max(1, round(8 * bytes_per_second(self.rate)))

    @property
    def delay_microseconds(self) -> int | None:
        return None if self.delay is None else round(1e6 * duration(self.delay))

    def __str__(self) -> str:
        return " and ".join(
            ([f"{self.bits_per_second / 1e6:g} Mbit/s"] if self.bits_per_second else [])
            + ([f"{self.delay_microseconds / 1e3:g} ms one way"] if self.delay_microseconds is not None else [])
        )


@dataclass(frozen=True, slots=True)
class Network:
    """One bridge per region on this machine, and one network namespace per host, without routes beyond the bridges.

    Args:
        number: 1 to 254; determines the bridges' names and the subnet 198.18.number.0/24.
    """

    number: int
    netem: bool = True
    regions: int = 1

    @property
    def bridge(self) -> str:
        return self.bridge_of(0)

    def bridge_of(self, region: int) -> str:
        return f"elastream{self.number}r{region}" if region else f"elastream{self.number}"

    def end_of(self, region: int) -> str:
        return f"es{self.number}w{region}"

    def address(self, index: int) -> str:
        """Return the address of host number `index`; 1 is this machine, with master and driver."""
        return f"{SUBNET}.{self.number}.{index}"

    def namespace(self, index: int) -> str:
        return f"{self.bridge}-{index}"

    def device(self, index: int) -> str:
        """Return the name of this machine's end of a host's link; the other end is `eth0`."""
        return f"es{self.number}-{index}"

    def open(self) -> "Network":
        """Create the bridges and test for netem."""
        for command in ("ip", "tc", "nsenter"):
            if shutil.which(command) is None:
                raise OSError(f"the command {command} is missing")
        # Numbers are claimed before use: existing devices of this name belong to a killed supervisor.
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
        except OSError:  # a kernel without it: the wire delays instead
            return Network(self.number, netem=False, regions=self.regions)
        return self

    def join(self, delays: Mapping[tuple[int, int], float]) -> subprocess.Popen[str]:
        """Connect the regions by a wire with these delays (seconds); return its process.

        Raises:
            OSError: It failed; the regions are not connected.
        """
        ends = [self.end_of(region) for region in range(self.regions)]
        settings = {"ends": ends, "delays": [(source, target, seconds) for (source, target), seconds in delays.items()]}
        wire = subprocess.Popen(
            [sys.executable, "-m", "elastream.clouds.local.wire", json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert wire.stdout is not None
        try:
            if wire.stdout.readline() != "ready\n":
                _, errors = wire.communicate()
                raise OSError(errors.strip().splitlines()[-1] if errors.strip() else "the wire between the regions ended")
            for region, end in enumerate(ends):
                # The queue must hold all packets in transit, because a full one drops packets.
                _run("ip", "link", "set", end, "txqueuelen", "20000", "master", self.bridge_of(region), "up")
        except OSError:
            wire.kill()
            wire.wait()
            raise
        return wire

    def close(self) -> None:
        for region in range(self.regions):
            with contextlib.suppress(OSError):  # it is gone already
                _run("ip", "link", "delete", self.bridge_of(region))

    def add(self, index: int, link: Link | None = None, region: int = 0) -> None:
        """Create the namespace of a host in a region, limited by `link` in both directions."""
        name, device = self.namespace(index), self.device(index)
        _run("ip", "netns", "add", name)
        # The kernel deletes a namespace asynchronously: the outer end of its link may still exist.
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
        # The kernel would remove the link with the namespace, but only some time later.
        for command in (("link", "delete", self.device(index)), ("netns", "delete", self.namespace(index))):
            with contextlib.suppress(OSError):  # it is gone already
                _run("ip", *command)

    def inside(self, index: int) -> list[str]:
        """Return the command prefix that runs a command in the namespace, under the same process id."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(index)}"]

    def discipline(self, link: Link) -> list[str]:
        """Return the queueing discipline of `link` for `tc`: netem if possible and needed, else a token bucket."""
        rate, delay = link.bits_per_second, link.delay_microseconds
        if delay is not None and self.netem:
            return ["netem", "delay", f"{delay}us"] + (["rate", f"{rate}bit"] if rate else [])
        if rate is None:
            return []
        # The bucket must hold the largest packet of segmentation offload (64 KiB), and the bytes due between two ticks of
        # a 250 Hz clock.
        return ["tbf", "rate", f"{rate}bit", "burst", f"{max(2 * 65536, rate // 8 // 250)}", "latency", "50ms"]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        error = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise OSError(f"{' '.join(command)}: {error}")

"""Network latency between hosts, measured by pings from inside their own networks; unknown for hosts without.

The driver holds one socket in each host's namespace. The target's kernel answers and timestamps the arrival, so neither
busy hosts nor a late reader distort the result.
"""

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elastream.clouds.provider import HostStatus
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric

# Seconds between two rounds of pings: latency changes rarely, and 20 hosts are 380 packets.
PERIOD = 5.0
CLONE_NEWNET = 0x40000000
SO_TIMESTAMPNS = 35
NAN = float("nan")
ECHO_REQUEST, ECHO_REPLY = 8, 0
MARK = b"elastream"


class LinkProbes:
    """Latencies of pairs of hosts. status: returns a host's status as its provider reports it."""

    def __init__(self, status: Callable[[str], HostStatus | None]) -> None:
        self._status = status
        self._sockets: dict[str, socket.socket] = {}
        self._measured: dict[tuple[str, ...], tuple[float, float]] = {}
        self._last, self._offset = -PERIOD, 0.0

    def onto(self, links: Frame, leases: Mapping[str, Lease], now: float) -> Frame:
        """Return `links` (a row per ordered pair of hosts) with one-way latency [s], half of a round trip.

        The age is that of the oldest answer.
        """
        measured = self._look(leases, now)
        if not measured:
            return links
        pairs = [tuple(link.split(">")) for link in links]
        seconds = [measured[pair][0] if pair in measured else NAN for pair in pairs]
        columns = {metric: links.column(metric) for metric in links.metrics}
        ages = {metric: links.age(metric) for metric in links.metrics}
        oldest = max(now - at for _, at in measured.values())
        return Frame(links.ids, {**columns, Metric.NETWORK_LATENCY: seconds}, {**ages, Metric.NETWORK_LATENCY: oldest})

    def _look(self, leases: Mapping[str, Lease], now: float) -> Mapping[tuple[str, ...], tuple[float, float]]:
        up = (name for name, lease in leases.items() if lease.state in (HostState.RUNNING, HostState.DRAINING))
        running = [name for name in up if self._namespace(name) is not None]
        self._offset = time.time() - now
        for gone in set(self._sockets).difference(running):
            self._sockets.pop(gone).close()
        for host, sock in self._sockets.items():
            self._read(host, sock)
        if now - self._last >= PERIOD:
            self._last = now
            self._ask(running)
        self._measured = {pair: latency for pair, latency in self._measured.items() if set(pair) <= set(running)}
        return self._measured

    def close(self) -> None:
        """Close the sockets; an open socket would keep its namespace alive."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def _namespace(self, host: str) -> Path | None:
        status = self._status(host)
        return None if status is None else status.namespace

    def _ask(self, hosts: list[str]) -> None:
        for source in hosts:
            with contextlib.suppress(OSError):  # the host is on its way out, or may not be pinged: nothing is known then
                if source not in self._sockets and (namespace := self._namespace(source)):
                    self._sockets[source] = open_socket_in(namespace, socket.SOCK_RAW, socket.IPPROTO_ICMP)
                    self._sockets[source].setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                for number, target in enumerate(hosts):
                    if target != source and (status := self._status(target)) is not None:
                        self._sockets[source].sendto(_request(number, target), (status.address, 0))

    def _read(self, host: str, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, extra, _, _ = sock.recvmsg(512, 512)
                message = packet[4 * (packet[0] & 15) :]  # behind the IP header
                if message[0] == ECHO_REPLY and message[8:].startswith(MARK):
                    (sent,) = struct.unpack_from("!d", message, 8 + len(MARK))
                    target = message[16 + len(MARK) :].decode()
                    seconds, nanoseconds = struct.unpack("ll", extra[0][2][:16])
                    arrived = seconds + nanoseconds * 1e-9
                    self._measured[host, target] = ((arrived - sent) / 2, arrived - self._offset)


def open_socket_in(namespace: Path, kind: int, protocol: int = 0) -> socket.socket:
    """Open a non-blocking socket inside a network namespace. Raises OSError."""

    def enter_and_open() -> socket.socket:
        libc = ctypes.CDLL(None, use_errno=True)
        with namespace.open("rb") as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        sock = socket.socket(socket.AF_INET, kind, protocol)
        sock.setblocking(False)
        return sock

    with ThreadPoolExecutor(1) as alone:  # only this thread changes its namespace, and it ends at once
        return alone.submit(enter_and_open).result()


def _request(number: int, target: str) -> bytes:
    body = MARK + struct.pack("!d", time.time()) + target.encode()
    header = struct.pack("!BBHHH", ECHO_REQUEST, 0, 0, os.getpid() & 0xFFFF, number)
    words = header + body + b"\0" * (len(body) % 2)
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return header[:2] + struct.pack("!H", checksum) + header[4:] + body

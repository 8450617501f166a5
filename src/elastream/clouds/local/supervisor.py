"""Owns every process of a local cluster, so that none outlives the driver, whatever ends it.

One small process (`python -m elastream.clouds.local.supervisor FD`) in a session of its own. The driver sends it requests,
one JSON object a line, over a socket; when that socket ends, or the driver is no longer its parent, it kills all it ever
started and removes what it made. `supervision.Connection` is the driver's side of it. It knows commands, environments and
hosts, but nothing of Spark, and imports little.

Processes are found again by three marks: their control group, where there are any; the environment variable
`ELASTREAM_HOST`, which executors and Python workers inherit (the pyspark daemon leaves its process group); and being
descendants of this process, which adopts the orphans among them.
"""

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from elastream.clouds.local.confinement import TAG, Cgroups, cpu_seconds, find_cgroups, group_of, kill, megabytes, tagged
from elastream.clouds.local.forks import ALIKE, command_for
from elastream.clouds.local.network import Link, Network
from elastream.clouds.local.processes import adopt_orphans, end_with_parent
from elastream.errors import in_one_line
from elastream.recording.directory import create_private

BUSY_TICK, IDLE_TICK = 0.05, 1.0  # seconds between polls while a child is ending, and otherwise
MEMORY_SHARE = 0.02  # of a core, for reading what processes hold: the kernel walks all of their pages, 30 ms a gigabyte
FINISH = 30.0
"""Seconds after which the end of everything is given up: a process in the kernel (a hung disk) outlives even SIGKILL."""


@dataclass(slots=True)
class Child:
    """One host (or the master): its first process and its state.

    exit: status of the first process as `subprocess` gives it, None while it runs. doomed: time from which on all of it
    is killed. retiring: whether the first process is to end once it has no child left.
    """

    name: str
    pid: int
    group: str | None = None
    namespace: int | None = None
    exit: int | None = None
    killed: bool = False
    doomed: float | None = None
    retiring: bool = False
    gone: bool = False
    cpu: float | None = None
    scratch: list[str] = field(default_factory=list)


class Supervisor:
    """The state behind the requests; `run` names this cluster in tags and control groups.

    network: where hosts are to have one of their own. link: what limits it. delays: seconds from one region to another, by
    their numbers; empty where there is but one.
    """

    def __init__(
        self,
        run: str,
        network: Network | None = None,
        link: Link | None = None,
        delays: Mapping[tuple[int, int], float] = MappingProxyType({}),
    ) -> None:
        self.run, self.children, self.link = run, dict[str, Child](), link
        self.wire: subprocess.Popen[str] | None = None
        self.asides: set[int] = set()
        self.memory: dict[int, float] = {}
        self.memory_until = 0.0
        self.forks = 0
        self.apart = bool(delays)
        self.cgroups: Cgroups | None
        self.cgroups, self.why_no_cgroups = find_cgroups(f"elastream-{run}")
        self.network, self.why_no_network = None, ""
        if network is not None:
            try:
                self.network = network.open()
                if delays:
                    self.wire = self.network.join(delays)
            except OSError as error:
                self.why_no_network = str(error)
                if self.network is not None:
                    self.network.close()
                    self.network = None

    # Requests: each takes and returns what JSON can carry.

    def about(self) -> dict[str, Any]:
        """What was found out about this machine, and where master and driver are to listen where there is a network."""
        return {
            "confinement": self.confinement(),
            "address": self.network.address(1) if self.network else None,
            "namespaces": self.network.bridge if self.network else None,
        }

    def confinement(self) -> str:
        """One sentence on how hosts are held to what they were leased with."""
        if self.cgroups:
            said = f"each host is held to its cores by a CPU quota (control groups version {self.cgroups.version})"
        else:
            said = f"hosts share this machine's cores unconfined: {self.why_no_cgroups}"
        if self.network and self.link:
            limits = Link(self.link.rate) if self.link.rate is not None else None
            if self.link.delay is None or self.network.netem:
                said += f"; its network is a link of {self.link}"
            elif limits:
                said += f"; its network is a link of {limits}, without the delay, as this kernel has no netem"
            else:
                said += "; its network is a namespace of its own, without the delay, as this kernel has no netem"
        elif self.link:
            said += f"; the network is not limited: {self.why_no_network}"
        if self.apart:
            said += (
                "; regions are as far apart as declared"
                if self.wire
                else (f"; regions are not apart, all hosts share this machine's own network: {self.why_no_network}")
            )
        return said

    def spawn(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        log: str,
        scratch: list[str],
        index: int | None,
        region: int = 0,
    ) -> None:
        """Start `command` as `name`, its output into the file `log`; `scratch` are folders to delete when it is gone.

        `index`: number of the host, which is then confined and, where there is a network, put into its namespace, in the
        region of that number; None for the master.
        """
        self.reap()
        child = self.children[name] = Child(name, 0, scratch=scratch)
        try:
            if index is not None and self.cgroups:
                child.group = group_of(self.run, name)
                self.cgroups.create(child.group)
                if not self.network and not self.forks:  # forks are told apart by their control groups
                    serving = command_for(self.run, astuple(self.cgroups))
                    self.forks = self._start("", serving, os.environ | ALIKE, str(Path(log).with_name("forks.log")), None)
                    self.asides.add(self.forks)
            if index is not None and self.network:
                child.namespace = index
                self.network.add(index, self.link, region)
                command = [*self.network.inside(index), *command]
            child.pid = self._start(name, command, environment, log, child.group)
        except (OSError, subprocess.SubprocessError) as error:
            # The host never came up: its status and its log say so, as with one that dies a second later.
            child.exit = 127
            with contextlib.suppress(OSError):
                Path(log).write_text(f"{error}\n")

    def _start(self, name: str, command: list[str], environment: Mapping[str, str], log: str, group: str | None) -> int:
        """Start a process that is the kernel's to end should this one be killed; `name` is what it is tagged with."""

        def settle() -> None:
            end_with_parent()
            if group and self.cgroups:
                self.cgroups.join(group)

        with create_private(Path(log)).open("ab") as out:
            process = subprocess.Popen(
                command,
                env={**environment, TAG: f"{self.run}/{name}"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=settle,
            )
        process.returncode = 0  # it is waited for in `reap`, together with adopted orphans
        return process.pid

    def aside(self, command: list[str], log: str) -> None:
        """Start `command`, which is no host; it is killed when everything ends."""
        self.asides.add(self._start("", command, os.environ, log, None))

    def status(self) -> dict[str, Any]:
        """By name: whether its first process runs, the status it ended with, and whether all behind it is cleared up."""
        self.reap()
        return {
            child.name: {
                "alive": child.exit is None and not child.killed,
                "exit": child.exit,
                "gone": child.gone,
                "pid": child.pid,
            }
            for child in self.children.values()
        }

    def forget(self, name: str) -> None:
        """Know a child no longer of which nothing is left; others are kept."""
        if self.children[name].gone:
            del self.children[name]

    def confine(self, name: str, cores: float | None, weight: float = 1.0) -> None:
        """Set or lift the CPU quota of a host, and set its weight; nothing without control groups or once it has ended."""
        child = self.children[name]
        if self.cgroups and child.group and child.exit is None:
            self.cgroups.limit(child.group, cores, weight)

    def measure(self) -> dict[str, tuple[float | None, float | None]]:
        """By name: CPU seconds used so far (of one that has ended, those last read), and the megabytes that its processes
        hold, pages that forked workers share counted once (None once it is gone); these are some seconds old where there is
        much to read."""
        known = tagged(self.run)
        pids = {child.name: self.members(child, known) for child in self.children.values()}
        memory = self.held(set().union(*pids.values()))
        return {
            child.name: (
                self.cpu(child, mine := pids[child.name]),
                sum(memory[pid] for pid in mine) if mine else None,
            )
            for child in self.children.values()
        }

    def held(self, pids: set[int]) -> Mapping[int, float]:
        """Megabytes of processes: all read again once that takes no more than MEMORY_SHARE, before that only new ones."""
        if time.monotonic() >= self.memory_until:
            began = time.thread_time()
            self.memory = {pid: megabytes(pid) for pid in pids}
            self.memory_until = time.monotonic() + (time.thread_time() - began) / MEMORY_SHARE
        else:
            self.memory = {pid: self.memory[pid] if pid in self.memory else megabytes(pid) for pid in pids}
        return self.memory

    def cpu(self, child: Child, pids: set[int]) -> float | None:
        """CPU seconds that a host has used so far, of which `pids` still live."""
        if self.cgroups and child.group:
            with contextlib.suppress(OSError):  # the group is being removed, or is gone
                child.cpu = self.cgroups.cpu_seconds(child.group)
        elif not child.gone:
            child.cpu = max(child.cpu or 0.0, sum(map(cpu_seconds, pids)))
        return child.cpu

    def decommission(self, name: str) -> None:
        """SIGPWR to the first process; once it has no child left it is ended."""
        child = self.children[name]
        if child.exit is None and not child.retiring:
            child.retiring = True
            os.kill(child.pid, signal.SIGPWR)

    def end(self, name: str, grace: float) -> None:
        """SIGTERM to the first process, and SIGKILL to all that is left of the host after `grace` seconds, or at once."""
        child = self.children[name]
        if grace > 0 and child.exit is None and child.doomed is None:
            child.doomed = time.monotonic() + grace
            os.kill(child.pid, signal.SIGTERM)
        elif grace <= 0:
            child.killed, child.doomed = True, time.monotonic()
            kill(self.members(child))

    # What happens by itself.

    def members(self, child: Child, known: Mapping[int, str] | None = None) -> set[int]:
        """Ids of all living processes of a host."""
        found = {pid for pid, host in (tagged(self.run) if known is None else known).items() if host == child.name}
        if self.cgroups and child.group:
            found |= self.cgroups.members(child.group)
        return found

    @property
    def busy(self) -> bool:
        """Whether something is on its way out and must be looked at soon."""
        return any(
            not child.gone and (child.exit is not None or child.doomed is not None or child.retiring)
            for child in self.children.values()
        )

    def reap(self) -> None:
        """Take note of every process that ended, orphans that were adopted included."""
        with contextlib.suppress(ChildProcessError):  # there is no child left
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self.asides.discard(ended[0])
                if ended[0] == self.forks:
                    self.forks = 0  # the next host brings another
                for child in self.children.values():
                    if child.pid == ended[0] and child.exit is None:
                        child.exit = os.waitstatus_to_exitcode(ended[1])

    def tick(self) -> None:
        """One look at everything: end what is due, clear up behind what has ended."""
        self.reap()
        if not self.busy:
            return
        known = tagged(self.run)
        for child in self.children.values():
            if child.gone:
                continue
            pids = self.members(child, known)
            if child.retiring and child.exit is None and child.doomed is None and pids <= {child.pid}:
                self.end(child.name, grace=2.0)
            if child.exit is not None or (child.doomed is not None and time.monotonic() >= child.doomed):
                if pids:
                    self.cpu(child, pids)
                    kill(pids)
                elif child.exit is not None:
                    self.clear(child)

    def clear(self, child: Child) -> None:
        """Remove what a host leaves behind; tried again at the next tick where the kernel is not done with it yet."""
        self.cpu(child, set())
        if self.cgroups and child.group and not self.cgroups.remove(child.group):
            return
        if self.network and child.namespace is not None:
            self.network.remove(child.namespace)
        for folder in child.scratch:
            shutil.rmtree(folder, ignore_errors=True)
        child.gone = True

    def finish(self, grace: float) -> None:
        """End everything within `grace` seconds, by force after that, and return when nothing is left."""
        for child in self.children.values():
            self.end(child.name, grace)
        kill(self.asides)
        until = time.monotonic() + grace + FINISH
        while self.asides or any(not child.gone for child in self.children.values()):
            self.tick()
            time.sleep(BUSY_TICK / 5)
            if time.monotonic() > until:
                left = [child.name for child in self.children.values() if not child.gone]
                print(f"given up after {FINISH:g} s: something of {', '.join(left)} is left", file=sys.stderr)
                break
        if self.wire:
            self.wire.kill()
        if self.network:
            self.network.close()


def _opened(
    run: str, number: int, link: Mapping[str, Any] | None, regions: int = 1, delays: Sequence[tuple[int, int, float]] = ()
) -> Supervisor:
    """A supervisor as the driver asks for it; delays: (from, to, seconds)."""
    network = Network(number, regions=regions) if link or delays else None
    apart = {(source, target): seconds for source, target, seconds in delays}
    return Supervisor(run, network, Link(**link) if link else None, apart)


def _lines(connection: socket.socket, awake: socket.socket, tick: Callable[[], float]) -> Iterator[bytes]:
    """Lines as they arrive, until the other end is closed or the parent changes; calls `tick` meanwhile, which returns
    the seconds until it wants to be called again. A byte in `awake` makes it look earlier."""
    parent, pending = os.getppid(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(awake, selectors.EVENT_READ)
        while os.getppid() == parent:
            for key, _ in selector.select(tick()):
                if key.fileobj is awake:
                    awake.recv(4096)
                    continue
                try:
                    arrived = connection.recv(1 << 16)
                except OSError:  # the driver is gone
                    return
                if not arrived:
                    return
                *lines, pending = (pending + arrived).split(b"\n")
                yield from lines


def main(descriptor: int) -> None:
    """Serve the requests that arrive on the socket `descriptor` until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    connection = socket.socket(fileno=descriptor)
    supervisor: Supervisor | None = None

    def tick() -> float:
        if supervisor is None:
            return IDLE_TICK
        supervisor.tick()
        return BUSY_TICK if supervisor.busy else IDLE_TICK

    def answer(request: dict[str, Any]) -> Any:
        nonlocal supervisor
        wanted = request.pop("do")
        if wanted == "open":
            supervisor = _opened(**request)
            return supervisor.about()
        return getattr(supervisor, wanted)(**request)

    def stop(*_: object) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    awake, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a child's end wakes the loop through the descriptor
    try:
        for line in _lines(connection, awake, tick):
            request = json.loads(line)
            asked = request.pop("asked")
            try:
                reply = {"value": answer(request)}
            except OSError as error:
                reply = {"error": str(error)}
            except Exception as error:
                # One request that fails must not end the hosts of all others.
                traceback.print_exc()
                reply = {"error": in_one_line(error)}
            connection.sendall(json.dumps({"asked": asked, **reply}).encode() + b"\n")
    except (BrokenPipeError, ConnectionResetError):  # the driver is gone; what it started is ended below
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if supervisor is not None:
            supervisor.finish(grace=0.0)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The processes of hosts on this machine: a Spark Standalone master, and per host one worker with an address of its own.

They belong to a supervisor (`supervisor.py`), which ends them when this process does. What a host may use is held to its
type where the machine allows (`confinement.py`). Sessions, executors and tasks are left to the other modules here.
"""

import contextlib
import http.client
import json
import math
import re
import secrets
import shutil
import signal
import socket
import time
import zlib
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from elastream.clouds.local.archive import RECORDED, Classes
from elastream.clouds.local.closed import Secrets, quiet_executors
from elastream.clouds.local.java import daemon_command, daemon_environment, find_java, temporary_folder
from elastream.clouds.local.network import Link
from elastream.clouds.local.supervision import Connection
from elastream.clouds.provider import Measured
from elastream.core.hosts import HostType
from elastream.errors import CloudError, EnvironmentProblem
from elastream.recording.directory import PRIVATE

HEAP_SHARE = 0.7
"""Of a host's memory, what the executor's heap takes; the rest is for its Python workers, RocksDB and the worker."""
MOST_HOSTS = 200
"""Addresses 127.0.x.10 to .209."""
LEAST_FREE = 50e6
"""Bytes that must be free in the cluster's folder: logs and shuffle files of a few minutes."""
MASTER = "master"
"""What the supervisor and the log file call the master; no host can have this name."""
KEPT = 50
"""Ended hosts of which the logs are kept."""
USUAL = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO |WARN NativeCodeLoader)|Using Spark's default log4j")
"""How lines begin that Spark's daemons write of their usual work."""
GRACE = 3.0
"""Seconds that a worker has to end its executors before its whole tree is killed."""


def executor_memory(host: HostType) -> int:
    """Mebibytes of heap for the executor on a host of type `host`: what `spark.executor.memory` should say, with an `m`."""
    return int(host.memory * 1e6 * HEAP_SHARE / 2**20)


def told(log: Path, lines: int) -> str:
    """How a sentence about a process that ended goes on: with the last lines of its log that are not its usual ones."""
    try:
        written = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        written = []
    if not written:
        return f" and wrote nothing into {log}"
    telling = [line for line in written if not USUAL.match(line)][-lines:]
    return f"; the end of {log}: " + "\n".join(telling) if telling else f"; {log} says nothing of why"


class ClusterShape(Protocol):
    """Host types, regions and limits of a cluster; `elastream.Local` is one."""

    @property
    def types(self) -> tuple[HostType, ...]:
        """Host types; the first is that of hosts of which nothing else is said."""
        ...

    @property
    def network(self) -> Link | None:
        """What limits the link of each host."""
        ...

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions that hosts may be in, beginning with the driver's."""
        ...

    @property
    def delays(self) -> Mapping[tuple[str, str], float]:
        """Seconds one way by (from, to)."""
        ...


class LocalCluster:
    """The processes of one `Local` cluster; its files (logs, work folders) go into `folder`.

    `ports`: the first is the master's, the second its web page's; None lets it choose free ones. Nothing runs before
    `start`. Hosts have names of the caller's choice. Fewer than two ports, and a method given a name that was never
    spawned, raise CloudError.

    executor_memory_mb: for `spark.executor.memory`, mebibytes: what the least host type has. `start` sets `url`, what
    a session calls its master (`spark://127.0.x.1:PORT`); `driver_address`, at which hosts reach this machine; and
    `confinement`, a sentence on how hosts are held to their cores and links, or why they are not; and `secrets`, of which a
    session has to know one.
    """

    url: str
    driver_address: str
    confinement: str

    def __init__(self, local: ClusterShape, folder: Path, ports: range | None = None) -> None:
        if ports is not None and len(ports) < 2:
            raise CloudError(f"ports has {len(ports)} of the two it needs: the master's and its page's")
        self.local, self.folder, self.ports = local, Path(folder).resolve(), ports
        self.executor_memory_mb = min(map(executor_memory, local.types))
        self.run, self.secrets = secrets.token_hex(4), Secrets.new()
        self._settings = self.folder / "daemons.conf"
        self._hosts: dict[str, int] = {}
        self._ended: deque[str] = deque()
        self._spawned = 0
        self._supervisor: Connection | None = None

    def start(self, master: str | None = None, secret: str | None = None) -> str:
        """Start the master and return its URL once it answers. master: one that runs already and that hosts join instead.
        secret: what that one asks for; None: nothing.

        Raises EnvironmentProblem: no Java, a port in use, a folder that cannot be written or is full, a master that dies.
        Raises CloudError where `master` is none that workers join, or is not to be reached from hosts with links.
        """
        if master is not None and not master.startswith("spark://"):
            raise CloudError(f"hosts of this machine join a Standalone master (spark://...), which {master!r} is not")
        self._java = find_java()
        self._check_folder()
        if master is not None:
            self.secrets = Secrets(secret)
        self._classes = Classes(self._java, self.folder)
        self._claim_addresses()
        try:
            self._open_supervisor()
            self.secrets.write(self._settings)
            if master is None:
                self._start_master()
            elif self._linked:
                raise CloudError(f"hosts with links or regions of their own cannot reach {master}, only a master of theirs")
            else:
                self.url = master
        except BaseException:
            self.close()
            raise
        return self.url

    @property
    def page(self) -> str:
        """Address of the master's web page, for requests with `secrets.headers`; with `json/` behind it for programs."""
        return f"http://{self.driver_address}:{self._page_port}/"

    @property
    def link_rate(self) -> float:
        """Bytes/s that the link of each host carries in one direction; NaN where no link is limited."""
        bits = self.local.network.bits_per_second if self.local.network and self._linked else None
        return math.nan if bits is None else bits / 8

    def spawn(self, host: str, type: HostType | None = None) -> None:
        """Start a worker called `host` and return at once; it starts without a quota, as starting needs more than running.

        A name already used is not started again. Raises CloudError for one that `refusal` names.
        """
        if host in self._hosts:
            return
        if refused := self.refusal(host):
            raise CloudError(refused)
        type = type or self.local.types[0]
        running = {name for name, state in self.status().items() if not state["gone"]}
        scratch, work = self.folder / "scratch" / host, self.folder / "work" / host
        number = self._hosts[host] = self._free_number(running)
        temporary = temporary_folder(f"elastream-{self.run}-{number}")
        for folder in (scratch, work, temporary):
            folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        arguments = {
            "--host": self.address(host),
            "--port": "0",
            "--webui-port": "0",
            "--cores": str(type.slots),
            "--memory": f"{executor_memory(type)}m",
            "--work-dir": str(work),
        }
        self._ask(
            "spawn",
            name=host,
            command=self._command("worker.Worker", host, *chain.from_iterable(arguments.items()), self.url),
            environment=daemon_environment(self.address(host), scratch, temporary),
            log=str(self.log(host)),
            scratch=[str(scratch), str(temporary)],
            index=number,
            region=self.local.regions.index(type.region),
        )

    @staticmethod
    def refusal(host: str) -> str:
        """Why no host can be called `host`; empty where one can."""
        if host == MASTER or not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,60}", host):
            return f"{host!r} cannot be a host's name: letters, digits, dots, dashes and underscores make one"
        return ""

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """By host: `alive`, whether its first process runs, and `gone`, whether nothing is left of it."""
        return {name: state for name, state in self._ask("status").items() if name != MASTER}

    def forget(self, host: str) -> None:
        """Know a host that is gone no longer; its name may be used again."""
        self._number_of(host)
        self._ask("forget", name=host)
        del self._hosts[host]
        self._ended.append(host)
        while len(self._ended) > KEPT:
            self._remove(self._ended.popleft())

    def _remove(self, host: str) -> None:
        """Remove what a host wrote that has ended."""
        if host not in self._hosts:
            shutil.rmtree(self.folder / "work" / host, ignore_errors=True)
            for file in (self.log(host), self.folder / f"{host}.{RECORDED}"):
                file.unlink(missing_ok=True)

    def _free_number(self, running: Set[str]) -> int:
        """Last part of a host's address: the next in turn that no running host has."""
        taken = {self._hosts[name] for name in running}
        first, self._spawned = self._spawned, self._spawned + 1
        turns = (10 + (first + step) % MOST_HOSTS for step in range(MOST_HOSTS))
        return next(number for number in turns if number not in taken)

    def address(self, host: str) -> str:
        """The host's own address: what executors on it are called by."""
        return f"{self.driver_address.rpartition('.')[0]}.{self._number_of(host)}"

    def namespace(self, host: str) -> Path | None:
        """The file of the host's network namespace; None where hosts share this machine's own network."""
        return Path(f"/run/netns/{self._namespaces}-{self._number_of(host)}") if self._namespaces else None

    def log(self, host: str) -> Path:
        """What the host's worker writes; `master` for the master."""
        return self.folder / f"{host}.log"

    def alive(self, host: str) -> bool:
        """Whether the host's worker process runs; also while it starts, and False for good once it is gone."""
        self._number_of(host)
        return bool(self._ask("status")[host]["alive"])

    def failure(self, host: str) -> str:
        """Why a host is not alive, as far as is known: the end of its worker's log; empty while it is alive."""
        self._number_of(host)
        return self._failure(host, lines=12)

    @property
    def java_options(self) -> tuple[str, ...]:
        """Options of the JVMs of executors, which start faster with them, and write warnings only."""
        return (*self._classes.options(Path(RECORDED)), self._quiet)

    @property
    def driver_options(self) -> tuple[str, ...]:
        """Options of the JVM of a session's driver, which starts faster with them."""
        return self._classes.options(self.folder / f"driver.{RECORDED}")

    def archive_classes(self) -> None:
        """Begin to make the archive of Java classes, where there is none, from those loaded so far; in idle time."""
        if command := self._classes.maker(self.loaded_classes()):
            self._ask("aside", command=command, log=str(self.folder / "archive.log"))

    def loaded_classes(self) -> list[Path]:
        """Lists of the classes that the JVMs of hosts have loaded so far; none where there is an archive."""
        return [*self.folder.glob(f"*.{RECORDED}"), *self.folder.glob(f"work/*/*/*/{RECORDED}")]

    def confine(self, host: str, cores: float | None, weight: float = 1.0) -> None:
        """Hold the host to `cores` cores of CPU time from now on; None lifts the quota. No effect on unconfined hosts.

        weight: its part of the CPU time that several want, relative to a host's at work.
        """
        self._number_of(host)
        self._ask("confine", name=host, cores=cores, weight=weight)

    def measure(self) -> Mapping[str, Measured]:
        """CPU time that all of each host has used so far, ended processes included, and the memory that it holds now."""
        found = self._ask("measure")
        return {name: Measured(cpu, memory) for name, (cpu, memory) in found.items() if name != MASTER}

    def decommission(self, host: str) -> None:
        """Let the host finish what it runs and take nothing new; its worker ends once its executors are gone."""
        self._number_of(host)
        self._ask("decommission", name=host)

    def terminate(self, host: str) -> None:
        """End the host: SIGTERM to its worker, after 3 s SIGKILL to all that is left of it. Returns at once."""
        self._number_of(host)
        self._ask("end", name=host, grace=GRACE)

    def kill(self, host: str) -> None:
        """SIGKILL to every process of the host, as if its plug had been pulled."""
        self._number_of(host)
        self._ask("end", name=host, grace=0.0)

    def close(self) -> None:
        """End everything and return when nothing is left; may be called twice, and before `start`."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        supervisor.close(GRACE)
        self._claim.close()

    def __enter__(self) -> "LocalCluster":
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    # Starting.

    def _check_folder(self) -> None:
        try:
            self.folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            probe = self.folder / "supervisor.log"
            probe.write_bytes(b"")
            self._quiet = quiet_executors(self.folder)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise EnvironmentProblem(f"the cluster's folder {self.folder} cannot be written: {error.strerror}") from None
        if free < LEAST_FREE:
            raise EnvironmentProblem(
                f"the disk of the cluster's folder {self.folder} is full: "
                f"{free / 1e6:.0f} MB free, {LEAST_FREE / 1e6:.0f} MB needed"
            )

    def _claim_addresses(self) -> None:
        """Take a number x for addresses 127.0.x.* that no other run on this machine has while this process lives."""
        first = zlib.crc32(str(self.folder).encode())
        for attempt in range(254):
            self._number = 1 + (first + attempt) % 254
            self._claim = socket.socket(socket.AF_UNIX)
            try:
                # An abstract name: the kernel takes it back when its holder is gone, however that came about.
                self._claim.bind(f"\0elastream-127.0.{self._number}")
                return
            except OSError:
                self._claim.close()
        raise EnvironmentProblem("254 local clusters run on this machine already; no loopback addresses are left")

    def _open_supervisor(self) -> None:
        self._supervisor = Connection(self.folder / "supervisor.log")
        link = asdict(self.local.network) if self.local.network else None
        at = {region: number for number, region in enumerate(self.local.regions)}
        delays = [(at[source], at[target], seconds) for (source, target), seconds in self.local.delays.items()]
        about = self._ask("open", run=self.run, number=self._number, link=link, regions=len(at), delays=delays)
        self._linked = bool(about["address"])
        self.driver_address = about["address"] or f"127.0.{self._number}.1"
        self.confinement = about["confinement"]
        self._namespaces: str | None = about["namespaces"]

    def _start_master(self) -> None:
        port, self._page_port = self._free_ports()
        self.url = f"spark://{self.driver_address}:{port}"
        arguments = {"--host": self.driver_address, "--port": str(port), "--webui-port": str(self._page_port)}
        self._ask(
            "spawn",
            name=MASTER,
            command=self._command("master.Master", MASTER, *chain.from_iterable(arguments.items())),
            environment=daemon_environment(self.driver_address),
            log=str(self.log(MASTER)),
            scratch=[],
            index=None,
        )
        # A worker that finds no master, or one that does not lead yet, tries again only after 5 to 15 s.
        while self._master_status() != "ALIVE":
            if failure := self._failure(MASTER, lines=1):
                raise EnvironmentProblem(failure)
            time.sleep(0.05)

    def _command(self, main: str, name: str, *arguments: str) -> list[str]:
        options = self._classes.options(self.folder / f"{name}.{RECORDED}")
        return daemon_command(self._java, main, "--properties-file", str(self._settings), *arguments, options=options)

    def _master_status(self) -> str:
        """The master's status page: ALIVE once it accepts workers; empty while it does not answer."""
        page = http.client.HTTPConnection(self.driver_address, self._page_port, timeout=5.0)  # not by way of a proxy
        # No answer yet, or none that is a status: the caller tries again.
        with contextlib.closing(page), contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            page.request("GET", "/json/", headers=dict(self.secrets.headers))
            return str(json.loads(page.getresponse().read())["status"])
        return ""

    def _free_ports(self) -> tuple[int, int]:
        """The two ports given, or two free ones; raises EnvironmentProblem naming the one that is in use."""
        wanted = (0, 0) if self.ports is None else (self.ports[0], self.ports[1])
        with contextlib.ExitStack() as held:
            found = []
            for port in wanted:
                probe = held.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.driver_address, port))
                except OSError as error:
                    what = f"the Spark master cannot listen on port {port} on {self.driver_address}"
                    raise EnvironmentProblem(f"{what}: {error.strerror}") from None
                found.append(probe.getsockname()[1])
        return found[0], found[1]

    # Asking.

    def _number_of(self, host: str) -> int:
        if host not in self._hosts:
            raise CloudError(f"no host called {host!r} was started here")
        return self._hosts[host]

    def _failure(self, name: str, lines: int) -> str:
        state = self._ask("status")[name]
        if state["alive"]:
            return ""
        what = "the Spark master" if name == MASTER else f"the worker of host {name!r}"
        # Killed by us it may have been waited for already, or not.
        how = "was killed" if state["exit"] in (None, -signal.SIGKILL) else f"ended with status {state['exit']}"
        return f"{what} {how}{told(self.log(name), lines)}"

    def _ask(self, wanted: str, **arguments: Any) -> Any:
        if self._supervisor is None:
            raise CloudError("the local cluster is not running: it was closed, or never started")
        return self._supervisor.ask(wanted, **arguments)

"""Processes of local hosts: a Spark Standalone master, and one worker with its own address per host."""

import contextlib
import http.client
import json
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastream.clouds.local.archive import RECORDED, Classes
from elastream.clouds.local.authentication import Secrets, for_others, quiet_executors
from elastream.clouds.local.java import daemon_command, daemon_environment, find_java, temporary_folder
from elastream.clouds.provider import HostUsage, executor_memory
from elastream.core.hosts import HostType
from elastream.errors import CloudError, EnvironmentProblem, HostsGone
from elastream.recording.directory import PRIVATE, create_private

if TYPE_CHECKING:
    from elastream.clouds.local.local import Local

MAX_HOSTS = 200  # addresses 127.0.x.10 to .209
MIN_FREE_BYTES = 50e6  # in the cluster's folder: logs and shuffle files of a few minutes
MASTER = "master"  # name of the master at the supervisor and of its log file; no host can have it
ENDED_HOST_LOGS = 50  # number of ended hosts whose logs remain
# start of lines that Spark's daemons write about usual work
USUAL_LINE = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO |WARN NativeCodeLoader)|Using Spark's default log4j")
TERMINATION_GRACE_S = 3.0  # time for a worker to end its executors before its whole tree is killed
RESPONSE_TIMEOUT_S = 60.0  # a request takes milliseconds, or seconds on an overloaded machine


def log_excerpt(log: Path, count: int) -> str:
    """Return the end of a sentence about an ended process: the last `count` unusual lines of its log."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    if not lines:
        return f" and wrote nothing into {log}"
    unusual = [line for line in lines if not USUAL_LINE.match(line)][-count:]
    return f"; the end of {log}: " + "\n".join(unusual) if unusual else f"; {log} says nothing of why"


class SupervisorConnection:
    """Connection to the supervisor process, whose own output goes to `log`. Thread-safe.

    Programs that the driver starts do not inherit the socket, so it ends with the driver. A response after `patience`
    seconds is recognised by its number and dropped.
    """

    def __init__(self, log: Path, patience: float = RESPONSE_TIMEOUT_S) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._patience, self._requests, self._pending = patience, 0, b""
        with theirs, create_private(log).open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "elastream.clouds.local.supervisor", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=for_others(os.environ),
            )

    def ask(self, method: str, /, **arguments: Any) -> Any:
        """Send a request (a method of `Supervisor`) and return its result.

        Raises:
            EnvironmentProblem: The request fails or gets no response in time.
            HostsGone: The supervisor has ended.
        """
        try:
            with self._lock:
                self._requests += 1
                until = time.monotonic() + self._patience + float(arguments.get("grace", 0.0))
                self._socket.settimeout(self._patience)
                self._socket.sendall(json.dumps({"do": method, "request": self._requests, **arguments}).encode() + b"\n")
                while (reply := self._reply(until)) is not None and reply["request"] != self._requests:
                    pass  # to a request that nobody waits for any more
        except TimeoutError:
            late = f"its supervisor has not answered for {self._patience:g} s"
            raise EnvironmentProblem(f"the local cluster could not {method}: {late}") from None
        except OSError:
            reply = None
        if reply is None:
            raise HostsGone("the supervisor of the local cluster is gone, and all hosts with it")
        if "error" in reply:
            raise EnvironmentProblem(f"the local cluster could not {method}: {reply['error']}")
        return reply["value"]

    def _reply(self, until: float) -> dict[str, Any] | None:
        while b"\n" not in self._pending:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            if not (arrived := self._socket.recv(1 << 16)):
                return None
            self._pending += arrived
        line, self._pending = self._pending.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self, grace: float) -> None:
        with contextlib.suppress(EnvironmentProblem):  # the supervisor has ended already, or hangs
            self.ask("finish", grace=grace)
        self._socket.close()  # the supervisor then ends all its processes, and itself
        try:
            self.process.wait(self._patience)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the kernel then ends the first process of each host, and these end with their own
            self.process.wait()


class LocalCluster:
    """Processes of one `Local` cluster, with logs and work folders in `folder`.

    Attributes:
        url: Master URL (`spark://127.0.x.1:PORT`), set by `start`.
        driver_address: Address of this machine as hosts see it, set by `start`.
        confinement: One sentence on the limits of hosts, set by `start`.
        executor_memory_mb: `spark.executor.memory` that fits the smallest host type (MiB).

    Raises:
        CloudError: Fewer than two ports, or (any method) an unknown host.
    """

    url: str
    driver_address: str
    confinement: str

    def __init__(self, local: "Local", folder: Path, ports: range | None = None) -> None:
        if ports is not None and len(ports) < 2:
            raise CloudError(f"ports has {len(ports)} of the two it needs: the master's and its page's")
        self.local, self.folder, self.ports = local, Path(folder).resolve(), ports
        self.executor_memory_mb = min(map(executor_memory, local.types))
        self.run, self.secrets = secrets.token_hex(4), Secrets.new()
        self._settings = self.folder / "daemons.conf"
        self._hosts: dict[str, int] = {}
        self._ended: deque[str] = deque()
        self._spawned = 0
        self._supervisor: SupervisorConnection | None = None

    def start(self, master: str | None = None, secret: str | None = None) -> str:
        """Start the master and return its URL.

        Args:
            master: URL of a running master that hosts join instead.
            secret: Secret of that master, if any.

        Raises:
            EnvironmentProblem: No Java, a port in use, an unusable or full folder, or a master that ends.
            CloudError: Workers cannot join `master`, or hosts with links cannot reach it.
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
        """URL of the master's web page; requests need `secrets.headers`, and `json/` gives JSON."""
        return f"http://{self.driver_address}:{self._page_port}/"

    @property
    def link_rate(self) -> float:
        """Capacity of each host's link in one direction (bytes/s); NaN if unlimited."""
        bits = self.local.network.bits_per_second if self.local.network and self._linked else None
        return math.nan if bits is None else bits / 8

    def spawn(self, host: str, type: HostType | None = None) -> None:
        """Start a worker called `host` without a CPU quota and return at once, unless it exists.

        Raises:
            CloudError: `name_problem` rejects the name.
        """
        if host in self._hosts:
            return
        if problem := self.name_problem(host):
            raise CloudError(problem)
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
    def name_problem(host: str) -> str:
        """Return why no host can have this name; empty if one can."""
        if host == MASTER or not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,60}", host):
            return f"{host!r} cannot be a host's name: letters, digits, dots, dashes and underscores make one"
        return ""

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the state of each host: `alive` if its first process runs, `gone` if no process is left."""
        return {name: state for name, state in self._ask("status").items() if name != MASTER}

    def forget(self, host: str) -> None:
        self._number_of(host)
        self._ask("forget", name=host)
        del self._hosts[host]
        self._ended.append(host)
        while len(self._ended) > ENDED_HOST_LOGS:
            self._remove(self._ended.popleft())

    def _remove(self, host: str) -> None:
        if host not in self._hosts:
            shutil.rmtree(self.folder / "work" / host, ignore_errors=True)
            for file in (self.log(host), self.folder / f"{host}.{RECORDED}"):
                file.unlink(missing_ok=True)

    def _free_number(self, running: Set[str]) -> int:
        used = {self._hosts[name] for name in running}
        first, self._spawned = self._spawned, self._spawned + 1
        turns = (10 + (first + step) % MAX_HOSTS for step in range(MAX_HOSTS))
        return next(number for number in turns if number not in used)

    def address(self, host: str) -> str:
        """Return the host's own address, at which its executors register."""
        return f"{self.driver_address.rpartition('.')[0]}.{self._number_of(host)}"

    def namespace(self, host: str) -> Path | None:
        return Path(f"/run/netns/{self._namespaces}-{self._number_of(host)}") if self._namespaces else None

    def log(self, host: str) -> Path:
        return self.folder / f"{host}.log"

    def alive(self, host: str) -> bool:
        self._number_of(host)
        return bool(self._ask("status")[host]["alive"])

    def failure(self, host: str) -> str:
        """Return why a host ended; empty while it is alive."""
        self._number_of(host)
        return self._failure(host, lines=12)

    @property
    def java_options(self) -> tuple[str, ...]:
        return (*self._classes.options(Path(RECORDED)), self._quiet)

    @property
    def driver_options(self) -> tuple[str, ...]:
        return self._classes.options(self.folder / f"driver.{RECORDED}")

    def archive_classes(self) -> None:
        if command := self._classes.maker(self.loaded_classes()):
            self._ask("start_helper", command=command, log=str(self.folder / "archive.log"))

    def loaded_classes(self) -> list[Path]:
        return [*self.folder.glob(f"*.{RECORDED}"), *self.folder.glob(f"work/*/*/*/{RECORDED}")]

    def confine(self, host: str, cores: float | None, weight: float = 1.0) -> None:
        """Limit the host to `cores` cores; None lifts the quota. Unconfined hosts are unaffected.

        Args:
            weight: CPU weight relative to a host at work.
        """
        self._number_of(host)
        self._ask("confine", name=host, cores=cores, weight=weight)

    def measure(self) -> Mapping[str, HostUsage]:
        """Return the CPU time of each host, ended processes included, and its current memory."""
        usage = self._ask("measure")
        return {name: HostUsage(cpu, memory) for name, (cpu, memory) in usage.items() if name != MASTER}

    def decommission(self, host: str) -> None:
        """Let the host finish its tasks and take no new ones; its worker ends after its executors."""
        self._number_of(host)
        self._ask("decommission", name=host)

    def terminate(self, host: str) -> None:
        """Send SIGTERM to the worker, and SIGKILL to all that is left after 3 s; return at once."""
        self._number_of(host)
        self._ask("end", name=host, grace=TERMINATION_GRACE_S)

    def kill(self, host: str) -> None:
        self._number_of(host)
        self._ask("end", name=host, grace=0.0)

    def close(self) -> None:
        """End everything and return when nothing is left; may be called twice, and before `start`."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        supervisor.close(TERMINATION_GRACE_S)
        self._claim.close()

    def __enter__(self) -> "LocalCluster":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        if free < MIN_FREE_BYTES:
            raise EnvironmentProblem(
                f"the disk of the cluster's folder {self.folder} is full: "
                f"{free / 1e6:.0f} MB free, {MIN_FREE_BYTES / 1e6:.0f} MB needed"
            )

    def _claim_addresses(self) -> None:
        # A number x for addresses 127.0.x.*, which no other run on this machine has while this process lives.
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
        self._supervisor = SupervisorConnection(self.folder / "supervisor.log")
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
        page = http.client.HTTPConnection(self.driver_address, self._page_port, timeout=5.0)  # not by way of a proxy
        # No answer yet, or none that is a status: the caller tries again.
        with contextlib.closing(page), contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            page.request("GET", "/json/", headers=dict(self.secrets.headers))
            return str(json.loads(page.getresponse().read())["status"])
        return ""

    def _free_ports(self) -> tuple[int, int]:
        ports = (0, 0) if self.ports is None else (self.ports[0], self.ports[1])
        with contextlib.ExitStack() as probes:
            free = []
            for port in ports:
                probe = probes.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.driver_address, port))
                except OSError as error:
                    what = f"the Spark master cannot listen on port {port} on {self.driver_address}"
                    raise EnvironmentProblem(f"{what}: {error.strerror}") from None
                free.append(probe.getsockname()[1])
        return free[0], free[1]

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
        # After our kill, its exit status may have been collected already.
        how = "was killed" if state["exit"] in (None, -signal.SIGKILL) else f"ended with status {state['exit']}"
        return f"{what} {how}{log_excerpt(self.log(name), lines)}"

    def _ask(self, method: str, /, **arguments: Any) -> Any:
        if self._supervisor is None:
            raise CloudError("the local cluster is not running: it was closed, or never started")
        return self._supervisor.ask(method, **arguments)

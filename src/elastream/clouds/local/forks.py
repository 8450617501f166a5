"""Forks processes of hosts from one that has loaded what they would load: once a cluster, not once a host.

Hosts of this machine run the same Python modules, which take half a second of CPU to load. A process of a host that is
about to load some calls `taken_over`: a fork of the cluster's server goes on in its place, with its streams, arguments,
environment, folder and control group. The server loads what the first one asks for; all its forks share those pages. Who
finds no server, or one that is not alike, loads for itself: hosts with networks of their own, hosts of other clouds.
"""

import contextlib
import importlib
import json
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from elastream.clouds.local.confinement import TAG, CgroupV1, CgroupV2, group_of
from elastream.clouds.local.processes import end_with_parent

ALIKE = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
"""What the interpreter takes from its environment as it starts. PySpark sets both for all its workers."""
PATIENCE = 10.0
"""Seconds for an answer, after which a process loads for itself: the first answer takes as long as loading does."""
YES = b"+"
STREAMS = (0, 1, 2)


def taken_over(module: str) -> bool:
    """Let a fork that has called `preload` of `module` call its `run` in this process's place; returns when it has ended.

    False, with nothing changed, where none can.
    """
    run = os.environ.get(TAG, "").partition("/")[0]
    if not run or os.environ.get("PYTHONHASHSEED") != ALIKE["PYTHONHASHSEED"]:
        return False
    request = {
        "module": module,
        "python": sys.executable,
        "arguments": sys.argv,
        "path": sys.path,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        server.settimeout(PATIENCE)
        server.connect(_address(run))
        if _other_user(server):
            return False
        written = json.dumps(request).encode()
        socket.send_fds(server, [struct.pack("!I", len(written))], STREAMS)
        server.sendall(written)
        if server.recv(1) == YES:
            server.settimeout(None)
            with contextlib.suppress(OSError):
                server.recv(1)  # nothing comes: the fork has ended
            return True
    return False


class Forks:
    """The server's side. run: of the cluster. join: puts the calling process into a control group."""

    def __init__(self, run: str, join: Callable[[str], None]) -> None:
        self._run, self._join = run, join
        self._loaded: tuple[Any, ...] = ()

    def serve(self) -> None:
        """Take requests without end."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(_address(self._run))
            listening.listen()
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(PATIENCE)
                    try:
                        self._answer(connection, listening)
                    except (OSError, ValueError, KeyError, ImportError) as error:
                        print(f"a process was not taken over: {error}", file=sys.stderr)

    def _answer(self, connection: socket.socket, listening: socket.socket) -> None:
        if _other_user(connection):
            return
        size, streams, _, _ = socket.recv_fds(connection, 4, len(STREAMS))
        try:
            with connection.makefile("rb") as file:
                request = json.loads(file.read(struct.unpack("!I", size)[0]))
            module = self._load(request)
            if len(streams) == len(STREAMS) and os.fork() == 0:
                listening.close()
                _go_on(connection, streams, request, self._join, module.run)
        finally:
            for each in streams:
                os.close(each)

    def _load(self, request: Mapping[str, Any]) -> Any:
        """The module that is asked for; raises ValueError where another was loaded, or from elsewhere."""
        # The first entry is the folder that a program was started in.
        wanted = request["module"], request["python"], request["path"][1:]
        if not self._loaded and request["python"] == sys.executable:
            os.environ.update(request["environment"])  # libraries look there for how many threads they may have
            sys.path[:] = request["path"]
            importlib.import_module(request["module"]).preload()
            self._loaded = wanted
        if wanted != self._loaded:
            raise ValueError(f"{request['module']} of {request['python']} is not what was loaded")
        return sys.modules[request["module"]]


def _go_on(
    connection: socket.socket,
    streams: list[int],
    request: Mapping[str, Any],
    join: Callable[[str], None],
    run: Callable[[], None],
) -> None:
    """In a fork: become what asked for it; does not return."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        cluster, _, host = request["environment"][TAG].partition("/")
        join(group_of(cluster, host))
        os.chdir(request["folder"])
        for here, given in zip(STREAMS, streams, strict=True):
            os.dup2(given, here)
            os.close(given)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[:], sys.path[0] = request["arguments"], request["path"][0]
        connection.sendall(YES)
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()  # where this goes on in its place: on its own streams
    finally:
        os._exit(status)


def _address(run: str) -> str:
    return f"\0elastream-forks-{run}"  # an abstract name: gone with its process, and of this network namespace only


def _other_user(connection: socket.socket) -> bool:
    """Whether the process at the other end is somebody else's: anybody may take, or ask for, an abstract name."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user != os.getuid())


def command_for(run: str, groups: Iterable[Path]) -> list[str]:
    """The command of the server of the cluster `run`, as `main` takes it; its environment has what `ALIKE` says."""
    return [os.path.abspath(sys.executable), "-m", "elastream.clouds.local.forks", run, *map(str, groups)]


def main(run: str, *groups: str) -> None:
    """Serve the cluster `run`. groups: folders below which hosts have their control groups; none where they have none."""
    end_with_parent()
    folders = [Path(group) for group in groups]
    cgroups = CgroupV1(*folders) if len(folders) == 2 else CgroupV2(*folders) if folders else None
    Forks(run, cgroups.join if cgroups else lambda _: None).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

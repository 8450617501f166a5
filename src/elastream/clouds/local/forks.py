"""Forks hosts' Python processes from one that has loaded their modules, which takes half a second of CPU.

A host's process calls `run_in_fork`; without a server with equal settings it loads the modules itself.
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

# Variables that the interpreter reads at its start. PySpark sets both for all its workers.
REQUIRED_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
# The first response takes as long as loading; after this time a process loads the modules itself.
RESPONSE_TIMEOUT_S = 10.0
ACCEPTED = b"+"
STREAMS = (0, 1, 2)


def run_in_fork(module: str) -> bool:
    """Run `module.run` in a fork of the server, in place of this process; return True once it has ended.

    The server calls `module.preload` once. Returns False, with nothing changed, if no server can.
    """
    run = os.environ.get(TAG, "").partition("/")[0]
    if not run or os.environ.get("PYTHONHASHSEED") != REQUIRED_ENVIRONMENT["PYTHONHASHSEED"]:
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
        server.settimeout(RESPONSE_TIMEOUT_S)
        server.connect(_address(run))
        if _other_user(server):
            return False
        written = json.dumps(request).encode()
        socket.send_fds(server, [struct.pack("!I", len(written))], STREAMS)
        server.sendall(written)
        if server.recv(1) == ACCEPTED:
            server.settimeout(None)
            with contextlib.suppress(OSError):
                server.recv(1)  # nothing comes: the fork has ended
            return True
    return False


class Forks:
    """The server of the cluster `run`; `join` puts the calling process into a control group."""

    def __init__(self, run: str, join: Callable[[str], None]) -> None:
        self._run, self._join = run, join
        self._loaded: tuple[Any, ...] = ()

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(_address(self._run))
            listening.listen()
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(RESPONSE_TIMEOUT_S)
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
                _become_caller(connection, streams, request, self._join, module.run)
        finally:
            for each in streams:
                os.close(each)

    def _load(self, request: Mapping[str, Any]) -> Any:
        # The first entry is the folder that a program was started in.
        identity = request["module"], request["python"], request["path"][1:]
        if not self._loaded and request["python"] == sys.executable:
            os.environ.update(request["environment"])  # libraries look there for how many threads they may have
            sys.path[:] = request["path"]
            importlib.import_module(request["module"]).preload()
            self._loaded = identity
        if identity != self._loaded:
            raise ValueError(f"{request['module']} of {request['python']} is not what was loaded")
        return sys.modules[request["module"]]


def _become_caller(
    connection: socket.socket,
    streams: list[int],
    request: Mapping[str, Any],
    join: Callable[[str], None],
    run: Callable[[], None],
) -> None:
    """Continue in a fork as the process that asked for it; never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        cluster, _, host = request["environment"][TAG].partition("/")
        join(group_of(cluster, host))
        os.chdir(request["folder"])
        for target, stream in zip(STREAMS, streams, strict=True):
            os.dup2(stream, target)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[:], sys.path[0] = request["arguments"], request["path"][0]
        connection.sendall(ACCEPTED)
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()  # the fork continues on the caller's own streams
    finally:
        os._exit(status)


def _address(run: str) -> str:
    return f"\0elastream-forks-{run}"  # an abstract name: gone with its process, and of this network namespace only


def _other_user(connection: socket.socket) -> bool:
    """Return True if the peer belongs to another user: anybody may bind an abstract name."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user != os.getuid())


def command_for(run: str, groups: Iterable[Path]) -> list[str]:
    return [os.path.abspath(sys.executable), "-m", "elastream.clouds.local.forks", run, *map(str, groups)]


def main(run: str, *groups: str) -> None:
    end_with_parent()
    folders = [Path(group) for group in groups]
    cgroups = CgroupV1(*folders) if len(folders) == 2 else CgroupV2(*folders) if folders else None
    Forks(run, cgroups.join if cgroups else lambda _: None).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The live page's process: `elastream serve`, and the one beside a run that has `page=True`."""

import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elastream.errors import EnvironmentProblem, InputError, in_one_line, needed_by
from elastream.recording.directory import RunDirectory, create_private
from elastream.settings import Address

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# Seconds for which the page of an ended program stays while no browser shows it, and for its start.
LINGER_S, START_S = 10.0, 30.0
# Priority of the process beside a run: below everything else.
NICE = 10


def serve(
    roots: Sequence[Path],
    address: Address,
    announce: Callable[[str], None],
    *,
    guarded: bool = True,
    parent_ended: threading.Event | None = None,
) -> None:
    """Serve the page of the runs in `roots` until interrupted.

    Args:
        guarded: False admits everyone without a token.
        parent_ended: Set when the run's program has ended; then the page ends once no browser shows it.

    Raises:
        EnvironmentProblem: The address cannot be used, or a library is missing.
        InputError: A folder is no run's.
    """
    with needed_by("the live page"):
        import uvicorn

        from elastream.dashboard.page.server import Page
    page = Page(roots)
    host = address.host or LOOPBACK
    try:
        listener = socket.create_server((host, address.port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise EnvironmentProblem(f"{host}:{address.port}: {error.strerror or error}") from None
    token = secrets.token_urlsafe() if guarded else None
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(page.app(token), log_level="error", access_log=False, timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)

    async def run() -> None:
        announce(f"http://{shown}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else ""))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not serving.done():
            await asyncio.wait([serving], timeout=0.5)
            if parent_ended is not None and parent_ended.is_set():
                server.should_exit = not page.watchers and time.monotonic() - page.left > LINGER_S
            if server.should_exit:
                page.close()
        await serving

    with listener:
        asyncio.run(run())


@contextmanager
def page_beside(directory: RunDirectory, show: Callable[[str], None]) -> Iterator[None]:
    """Serve a run's page from another process inside the context, and while a browser shows it afterwards.

    A page that cannot be served is a warning. `show` receives its address.
    """
    with needed_by("the live page"):
        import starlette
        import uvicorn  # noqa: F401

        del starlette
    command = [sys.executable, "-m", __name__, str(directory.root)]
    with contextlib.ExitStack() as stack:
        try:
            # It ends when the other end of its standard input does, even if this program is killed.
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            assert child.stdin is not None
            assert child.stdout is not None
            stack.callback(child.stdin.close)
            timer = threading.Timer(START_S, child.kill)
            timer.start()
            url = child.stdout.readline().strip()
            timer.cancel()
            child.stdout.close()
            if not url:
                raise EnvironmentProblem(f"its process ended: {shlex.join(command)}")
            create_private(directory.page).write_text(url + "\n", encoding="utf-8")
            stack.callback(directory.page.unlink, missing_ok=True)
            show(url)
        except (OSError, EnvironmentProblem) as error:
            log.warning("the live page is not served: %s", in_one_line(error))
        yield


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICE)
    ended = threading.Event()

    def follow() -> None:
        sys.stdin.read()
        ended.set()

    def announce(url: str) -> None:
        print(url, flush=True)
        sys.stdout.close()

    threading.Thread(target=follow, daemon=True).start()
    try:
        serve([Path(sys.argv[1])], Address(LOOPBACK, 0), announce, parent_ended=ended)
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

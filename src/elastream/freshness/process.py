"""The process of a controller, and copies of it that carry out bounded runs."""

import atexit
import contextlib
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from elastream.errors import ElastreamError, in_one_line
from elastream.freshness.controller import Controller
from elastream.freshness.planner import HostBounds
from elastream.freshness.wakes import WakeOrder, controller_lock
from elastream.recording.directory import RunDirectory

# Pause between two looks at a process that runs (seconds).
FOLLOW_PAUSE_S = 0.5


def keep_fresh(
    directory: RunDirectory,
    freshness: float,
    bounds: HostBounds,
    work: Callable[[WakeOrder], object],
    limit: float | None = None,
) -> None:
    """Wake and end bounded runs in `directory` until a limit, a signal or `elastream stop`.

    Args:
        freshness: Seconds from arrival to commit.
        work: Carries out one bounded run, in a process of its own.
        limit: Seconds.
    """
    with controller_lock(directory) as lock:
        directory.stop_request.unlink(missing_ok=True)  # it was for an earlier controller

        def launch(order: WakeOrder) -> ForkedProcess:
            return ForkedProcess(lambda: work(order), closing=(lock,))

        steer(Controller(directory, freshness, bounds, launch, say=say), directory, limit)


def say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def steer(controller: Controller, directory: RunDirectory, limit: float | None) -> None:
    """Step `controller` until it is done. SIGINT, SIGTERM and the end of `limit` seconds stop it in order."""
    over, until = threading.Event(), None if limit is None else time.monotonic() + limit

    def request(number: int, frame: object) -> None:
        controller.stop("interrupted" if number == signal.SIGINT else "terminated")
        over.set()

    say(f"{shlex.quote(str(directory.root))}: records are to be committed within {controller.describe()}")
    with _handling(request):
        try:
            while not controller.done:
                if until is not None and time.monotonic() >= until:
                    controller.stop("the limit was reached")
                controller.step()
                if not controller.done:
                    over.wait(min(controller.pause, FOLLOW_PAUSE_S if controller.is_awake else controller.pause))
                    over.clear()
        finally:
            controller.close()


@contextlib.contextmanager
def _handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM) if main}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class ForkedProcess:
    """A bounded run in a copy of this process, which it may outlive."""

    def __init__(self, work: Callable[[], object], closing: tuple[int, ...] = ()) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._status: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                status = _worked(work, closing)
            finally:  # or the child would go on as a second controller
                os._exit(status)

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def stop(self) -> None:
        if self.poll() is None:
            os.kill(self._pid, signal.SIGTERM)


def _worked(work: Callable[[], object], closing: tuple[int, ...]) -> int:
    """Do the work of a forked process and return its exit status; say errors on stderr."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    for descriptor in closing:  # a lock of the controller must not outlive it here
        os.close(descriptor)
    status = 1
    try:
        work()
        status = 0
    except ElastreamError as error:
        print(f"elastream: {in_one_line(error)}", file=sys.stderr)
        status = error.exit_status
    except KeyboardInterrupt:
        status = 130
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # such as an Autopilot's, which gives hosts back
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    return status

"""Copy of the driver's files of a run on a shared file system, and the claim of one driver on them.

With the copy a run can resume on any machine. It lags by seconds, harmlessly: Spark's own logs hold each batch's
records and composition, and a lost switch is decided anew. A record in the folder is the lock.
"""

import json
import logging
import os
import platform
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from elastream.errors import EnvironmentProblem, InputError, in_one_line
from elastream.recording.directory import HERE, PRIVATE, RunDirectory, fresh_folder
from elastream.recording.formats import marked, unmarked
from elastream.recording.paths import RemotePath, remove_tree, scanned, write_whole

# Clocks of two machines are never compared.
#
#    state   event                                                                 next
#    free    a driver writes a record of its own, and finds it after SETTLES       held
#    free    the same, and it finds another's                                      held by that one: refused
#    held    its driver writes the next number into it, each RENEWED seconds       held
#    held    its driver ends in order, and removes it                              free
#    held    its driver finds another's there                                      lost: it ends its queries
#    held    another driver wants it, and sees its number change within PATIENCE   held: refused
#    held    another driver wants it, and it does not change                       free: its driver is gone

# Seconds between two numbers of a claim.
RENEWED = 5.0
# Seconds without a new number after which a claim is free.
PATIENCE = 20.0
# Seconds after which a driver checks whether another has written a claim, too.
SETTLES = 1.0


class DriverClaim:
    """Claim of this process on the run in `files`. wait: sleeps for seconds."""

    def __init__(self, files: RemotePath, wait: Callable[[float], object] = time.sleep) -> None:
        self._place, self._wait = files / "driver.json", wait
        self._own, self._number = secrets.token_hex(8), 0
        self.lost = False

    def take(self) -> None:
        """Take the claim. Raises EnvironmentProblem if another driver has it, OSError if nothing can be read."""
        if (before := self._read()) and before.get("claim") != self._own:
            waited = 0.0
            while waited < PATIENCE:
                self._wait(SETTLES)
                waited += SETTLES
                now = self._read()
                if not now:
                    break
                if now != before:
                    raise EnvironmentProblem(self._refused(now))
        self._write()
        self._wait(SETTLES)
        if (now := self._read()).get("claim") != self._own:
            raise EnvironmentProblem(self._refused(now))

    def renew(self) -> None:
        """Renew the claim; set `lost` if another driver has replaced this one. Raises OSError."""
        if self._read().get("claim", self._own) != self._own:
            self.lost = True
        if not self.lost:
            self._write()

    def release(self) -> None:
        if self._read().get("claim") == self._own:
            self._place.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            return unmarked(json.loads(self._place.read_text()), self._place)
        except FileNotFoundError:
            return {}
        except ValueError:  # of another program, or half written where nothing is atomic
            return {"claim": "unreadable"}

    def _write(self) -> None:
        self._number += 1
        about = {"claim": self._own, "number": self._number, "machine": platform.node(), "process": os.getpid()}
        write_whole(self._place, json.dumps(marked(about)).encode())

    def _refused(self, by: dict[str, Any]) -> str:
        who = f"process {by.get('process', '?')} on {by.get('machine', 'another machine')}"
        return f"{self._place.parent} is held by another driver ({who}), which runs it"


# Seconds between two looks at what has changed.
EVERY = 1.0
# Files of LARGE bytes are copied at most once in SELDOM seconds, and at the end.
LARGE, SELDOM = 256_000, 30.0
# Folder of the copy, and the file beside it that names its origin (folder and machine).
COPY, LAST = "driver", "driver-of.json"
# File in a fetched folder with its origin then. It is not copied.
FETCHED = ".fetched"
# Files that belong to one driver and its machine.
LEFT_OUT = ("cluster", "checkpoint", "edges", "run.lock", "session.lock")

log = logging.getLogger(__name__)


class Mirror:
    """Copies the driver's files of the run in `directory`. clock: in seconds."""

    def __init__(self, directory: RunDirectory, clock: Callable[[], float] = time.monotonic) -> None:
        assert directory.files is not None
        self._root, self._to, self._clock = directory.root, directory.files / COPY, clock
        self._copied: dict[str, tuple[tuple[int, int], float]] = {}
        write_whole(directory.files / LAST, json.dumps(marked(_origin(directory))).encode())

    def sync(self, *, last: bool = False) -> None:
        """Copy what has changed; all of it if `last`."""
        now, present = self._clock(), dict(self._files())
        for name, stamp in present.items():
            stamp_copied, at = self._copied.get(name, (None, -SELDOM))
            if stamp == stamp_copied or (stamp[1] >= LARGE and now - at < SELDOM and not last):
                continue
            with suppress(FileNotFoundError):  # renamed, or forgotten, since it was listed
                write_whole(self._to / name, (self._root / name).read_bytes())
                self._copied[name] = stamp, now
        for name in self._copied.keys() - present:
            remove_tree(self._to / name)
            del self._copied[name]

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for folder, folders, names in os.walk(self._root):
            if folder == str(self._root):
                folders[:] = [name for name in folders if name not in LEFT_OUT]
            for name in names:
                path = os.path.join(folder, name)
                relative = os.path.relpath(path, self._root)
                if relative not in LEFT_OUT and not name.startswith("."):
                    with suppress(FileNotFoundError):
                        about = os.stat(path)
                        yield relative, (about.st_mtime_ns, about.st_size)


def copy_now(directory: RunDirectory, *paths: Path) -> None:
    """Copy some of the driver's files at once, before anything depends on them; do nothing without a copy."""
    for path in paths if directory.files is not None else ():
        assert directory.files is not None
        write_whole(directory.files / COPY / str(path.relative_to(directory.root)), path.read_bytes())


@contextmanager
def mirrored(
    directory: RunDirectory, period: float = EVERY, renewal: float = RENEWED
) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Claim the run's files and copy the driver's files there, until the end of the context. Later failures are warnings.

    Args:
        period: Time between copies; `renewal`: between renewals of the claim (seconds).

    Yields:
        A function that registers actions for the loss of the claim.

    Raises:
        EnvironmentProblem: Another driver has the claim.
    """
    if directory.files is None:
        yield lambda action: None
        return
    claim, over, actions = DriverClaim(directory.files), threading.Event(), list[Callable[[], object]]()
    try:
        claim.take()
        mirror = Mirror(directory)
        mirror.sync()
    except OSError as error:
        raise EnvironmentProblem(f"the run's files cannot be written: {error.strerror or error}") from error
    pauses = (period, renewal)
    keeping = threading.Thread(target=_keep, args=(claim, mirror, over, actions, directory.files, pauses), daemon=True)
    keeping.start()

    def if_lost(action: Callable[[], object]) -> None:
        actions.append(action)
        if claim.lost:
            action()

    try:
        yield if_lost
    finally:
        over.set()
        keeping.join()
        if not claim.lost:
            try:
                mirror.sync(last=True)
                claim.release()
            except OSError as error:
                log.warning("the copy of the driver's files in %s is behind: %s", directory.files, in_one_line(error))


def _keep(
    claim: DriverClaim,
    mirror: Mirror,
    over: threading.Event,
    actions: list[Callable[[], object]],
    files: RemotePath,
    pauses: tuple[float, float],
) -> None:
    period, renewal = pauses
    renewed, failed = time.monotonic(), ""
    while not over.wait(period):
        try:
            if time.monotonic() - renewed >= renewal:
                claim.renew()
                renewed = time.monotonic()
            if claim.lost:
                log.error("another driver continues the run in %s: this one ends", files)
                for action in actions:
                    action()
                return
            mirror.sync()
            failed = ""
        except Exception as error:  # the file system does not answer: it is asked again
            if (message := in_one_line(error)) != failed:
                log.warning("the copy of the driver's files in %s is behind: %s", files, message)
            failed = message


def fetch_run(files: RemotePath) -> Path:
    """Return the driver's folder of the run in `files`: the last one if it is on this machine, or a fetched copy.

    Raises InputError if there is no such run, EnvironmentProblem if it cannot be read.
    """
    try:
        about = _last(files)
        if not about:
            raise InputError(f"{files} is not a folder of a run that can be resumed: it has no {LAST}")
        if about.get("machine") == platform.node() and (root := Path(about["root"])).is_dir():
            return root
        root = cast(Path, fresh_folder(HERE, files.name))
        try:
            _fetch(files / COPY, root)
            (root / FETCHED).write_text(json.dumps(about))
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        return root.resolve()
    except FileNotFoundError as error:
        raise InputError(
            f"{files} is not a folder of a run that can be resumed: it has no copy of its driver's files"
        ) from error
    except OSError as error:
        raise EnvironmentProblem(f"{files} cannot be read: {error.strerror or error}") from error


def check_not_overtaken(directory: RunDirectory) -> None:
    """Raise InputError if another folder has driven the run since this one did, or was fetched. Raises OSError."""
    if directory.files is None or not (about := _last(directory.files)):
        return
    fetched_from = directory.root / FETCHED
    if about != _origin(directory) and not (fetched_from.exists() and json.loads(fetched_from.read_text()) == about):
        raise InputError(
            f"{directory.root} is not what the run last was: {about['root']} on {about['machine']} went on with it;"
            f" resume {directory.files}"
        )


def _origin(directory: RunDirectory) -> dict[str, Any]:
    return {"machine": platform.node(), "root": str(directory.root)}


def _last(files: RemotePath) -> dict[str, Any]:
    try:
        return unmarked(json.loads((files / LAST).read_text()), files / LAST)
    except FileNotFoundError:
        return {}


def _fetch(copy: RemotePath, root: Path) -> None:
    for entry in scanned(copy):
        if entry.is_folder:
            (root / entry.name).mkdir(exist_ok=True, mode=PRIVATE)
            _fetch(copy / entry.name, root / entry.name)
        else:
            (root / entry.name).write_bytes((copy / entry.name).read_bytes())
            os.utime(root / entry.name, (entry.modified, entry.modified))

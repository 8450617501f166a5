"""A copy of what only the driver keeps of a run, beside the run's files on a file system that all machines reach.

With it a run goes on from any machine. It is behind by no more than seconds, and what may be lost with them does no harm:
which records are in which batch, and what each batch runs under, is in Spark's own logs; a switch that was lost is decided
anew; leases of hosts that ended with their driver are counted until it was last seen.
"""

import json
import logging
import os
import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from elastream.errors import EnvironmentProblem, InputError, in_one_line
from elastream.recording.claim import RENEWED, DriverClaim
from elastream.recording.directory import HERE, PRIVATE, RunDirectory, fresh_folder
from elastream.recording.formats import marked, unmarked
from elastream.recording.places import RemotePath, remove_tree, scanned, write_whole

EVERY = 1.0
"""Seconds between two looks at what has changed."""
LARGE, SELDOM = 256_000, 30.0
"""Files of so many bytes are copied no more often than that, in seconds, and once more at the end."""
COPY, LAST = "driver", "driver-of.json"
"""Folder of the copy, and the file beside it that says which folder of which machine it is of."""
FETCHED = ".fetched"
"""File in a half that was fetched: of which folder it was then. It is not copied."""
LEFT_OUT = ("cluster", "checkpoint", "edges", "run.lock", "session.lock")
"""What belongs to one driver and its machine."""

log = logging.getLogger(__name__)


class Mirror:
    """Copies the driver's half of the run in `directory` to its files. clock: in seconds."""

    def __init__(self, directory: RunDirectory, clock: Callable[[], float] = time.monotonic) -> None:
        assert directory.files is not None
        self._root, self._to, self._clock = directory.root, directory.files / COPY, clock
        self._copied: dict[str, tuple[tuple[int, int], float]] = {}
        write_whole(directory.files / LAST, json.dumps(marked(_ours(directory))).encode())

    def sync(self, *, last: bool = False) -> None:
        """Copy what has changed; all of it if `last`. Raises OSError."""
        now, there = self._clock(), dict(self._files())
        for name, stamp in there.items():
            known, at = self._copied.get(name, (None, -SELDOM))
            if stamp == known or (stamp[1] >= LARGE and now - at < SELDOM and not last):
                continue
            with suppress(FileNotFoundError):  # renamed, or forgotten, since it was listed
                write_whole(self._to / name, (self._root / name).read_bytes())
                self._copied[name] = stamp, now
        for name in self._copied.keys() - there:
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
    """Copy files of the driver's half at once, before anything depends on them; nothing where there is no copy.

    Raises OSError.
    """
    for path in paths if directory.files is not None else ():
        assert directory.files is not None
        write_whole(directory.files / COPY / str(path.relative_to(directory.root)), path.read_bytes())


@contextmanager
def mirrored(directory: RunDirectory) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Claim the run's files, and keep a copy of the driver's half there, until the end of the context.

    What this gives takes what is to be done if another driver takes the claim away. Raises EnvironmentProblem where another
    has it; where the copy cannot be written later on, that is a warning.
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
    keeping = threading.Thread(target=_keep, args=(claim, mirror, over, actions, directory.files), daemon=True)
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
    claim: DriverClaim, mirror: Mirror, over: threading.Event, actions: list[Callable[[], object]], files: RemotePath
) -> None:
    renewed, failed = time.monotonic(), ""
    while not over.wait(EVERY):
        try:
            if time.monotonic() - renewed >= RENEWED:
                claim.renew()
                renewed = time.monotonic()
            if claim.lost:
                log.error("another driver goes on with the run in %s: this one ends", files)
                for action in actions:
                    action()
                return
            mirror.sync()
            failed = ""
        except Exception as error:  # the file system does not answer: it is asked again
            if (said := in_one_line(error)) != failed:
                log.warning("the copy of the driver's files in %s is behind: %s", files, said)
            failed = said


def fetched(files: RemotePath) -> Path:
    """The driver's half of the run in `files`, on this machine: the folder that was the last to have it, or a new one.

    Raises InputError where there is no such run, EnvironmentProblem where it cannot be read.
    """
    try:
        about = _last(files)
        if not about:
            raise InputError(f"{files} is no folder of a run that can be resumed: it has no {LAST}")
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
            f"{files} is no folder of a run that can be resumed: it has no copy of its driver's files"
        ) from error
    except OSError as error:
        raise EnvironmentProblem(f"{files} cannot be read: {error.strerror or error}") from error


def refuse_overtaken(directory: RunDirectory) -> None:
    """Raise InputError where another folder has driven the run since this one has, or was fetched. Raises OSError."""
    if directory.files is None or not (about := _last(directory.files)):
        return
    fetched_from = directory.root / FETCHED
    if about != _ours(directory) and not (fetched_from.exists() and json.loads(fetched_from.read_text()) == about):
        raise InputError(
            f"{directory.root} is not what the run last was: {about['root']} on {about['machine']} went on with it;"
            f" resume {directory.files}"
        )


def _ours(directory: RunDirectory) -> dict[str, Any]:
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

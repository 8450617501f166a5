"""Paths of a run's files, so that no other module joins paths.

If executors cannot reach this machine, their files are in another folder, on a shared file system. The driver's own files
stay here, with a copy there (`recording.mirror`).
"""

import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.paths import AnyPath, RemotePath, is_address, path_of

# Least free disk space to start a run; checkpoints and logs of a few minutes need a third of it.
LEAST_FREE_MEGABYTES = 64
# Folder of the driver's files if the run's files are elsewhere.
HERE = Path("runs")
# Mode of a run's folder: its files, results included, are for its owner alone.
PRIVATE = 0o700


class Below:
    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, run: "RunDirectory", owner: type) -> Path:
        return run.root.joinpath(*self._parts)


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run under `root`, a folder of this machine; `files`: that of executors, if it is another one."""

    root: Path
    files: RemotePath | None = None

    @classmethod
    def create(cls, runs: AnyPath, flow: str) -> "RunDirectory":
        """Create a folder `runs/<flow>-<time>`, and one of that name in HERE if `runs` is not on this machine.

        Raises EnvironmentProblem if it is not writable or too small.
        """
        slug = re.sub(r"[^\w.-]+", "-", flow).strip("-") or "run"
        name = f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}"
        files = None
        if isinstance(runs, RemotePath):
            files = cast(RemotePath, fresh_folder(runs, name))
            runs, name = HERE, files.name
        root = cast(Path, fresh_folder(runs, name)).resolve()
        free = shutil.disk_usage(root).free / 1e6
        if free < LEAST_FREE_MEGABYTES or not os.access(root, os.W_OK):
            raise EnvironmentProblem(
                f"no room for the checkpoint: {root} has {free:.0f} MB free and a run needs {LEAST_FREE_MEGABYTES} MB"
            )
        return cls(root, files)

    @property
    def reached(self) -> AnyPath:
        return self.root if self.files is None else self.files

    def checkpoint(self, segment: str) -> AnyPath:
        return self.reached / "checkpoint" / segment

    def control(self, segment: str) -> Path:
        """Return the folder of the sources of `segment`, which are planned on this machine."""
        return self.root / "control" / segment

    def inputs(self, segment: str) -> AnyPath:
        """Return the folder that tasks of `segment` read.

        It has source records, and compositions by batch if no source carries them.
        """
        return self.reached / "control" / segment

    composition_request = Below("control", "wanted.json")  # composition requested of all queries; read before each batch
    paused = Below("control", "paused")  # exists while the controller is paused, with the time of the pause
    stop_request = Below("control", "stop")  # request of `elastream stop` to the driver, with its time
    requests = Below("control", "requests.jsonl")  # requests of people to the loop, one line each; never removed
    # lock of the command that waits for a repartition
    repartition_lock = Below("control", "repartition.lock")
    page = Below("control", "page")  # address of the run's live page, with its token, while it is served
    cluster = Below("cluster")  # logs and work folders of master and workers
    manifest = Below("run.json")  # description of the run (dataflow, program, format), from which it is resumed
    freshness = Below("freshness.jsonl")  # states of a job that sleeps between bounded runs
    controller_lock = Below("control", "controller.lock")  # lock of the process that wakes it
    lock = Below("run.lock")  # lock of the process that drives the run
    session_lock = Below("session.lock")  # lock of the Spark session's JVM, which may outlive that process by seconds
    leases = Below("leases.jsonl")  # requested and ended leases
    journal = Below("journal.jsonl")  # actions, written before they are applied
    guards = Below("guards.jsonl")  # versions of the guards; absent while there are none
    allocation = Below("allocation.jsonl")  # planned host of each task
    dead_letters = Below("dead-letters.jsonl")  # records that operators left out, batch by batch; absent without any
    key_table_log = Below("tables.jsonl")  # versions of key tables, one line each
    code_log = Below("code.jsonl")  # versions of the operators' code, one line each
    code_versions = Below("code", "versions")  # pickled alternates, a file for each version
    log = Below("run.log")  # warnings and faults, with tracebacks; absent if there were none
    recording = Below("recording.jsonl")  # observations and decisions
    report = Below("report.html")  # default path of the report

    @property
    def is_paused(self) -> bool:
        return self.paused.exists()

    def pause(self) -> bool:
        """Pause the controller from its next round on; return False if it was paused."""
        already = self.is_paused
        if not already:
            write_text(self.paused, f"{time.time():.3f}\n", "note that the run is paused")
        return not already

    def unpause(self) -> bool:
        """Resume the controller; return True if it was paused."""
        was = self.is_paused
        try:
            self.paused.unlink(missing_ok=True)
        except OSError as error:
            raise EnvironmentProblem(f"the run cannot be unpaused: {error.strerror or error}") from None
        return was

    def request_stop(self) -> None:
        write_text(self.stop_request, f"{time.time():.3f}\n", "request to stop the run")

    @property
    def stop_requested(self) -> bool:
        """True if the present driver is to end the run. Requests to an earlier driver do not count."""
        try:
            return self.stop_request.stat().st_mtime >= self.lock.stat().st_mtime
        except OSError:
            return False

    def edge(self, source: str, target: str) -> AnyPath:
        return self.reached / "edges" / f"{source}-{target}"

    @property
    def all_results(self) -> AnyPath:
        return self.reached / "results"

    def results(self, sink: str) -> AnyPath:
        return self.all_results / sink

    def left_out(self, segment: str) -> AnyPath:
        """Return the folder, by batch, of records that tasks of `segment` leave out, until the driver logs them."""
        return self.reached / "left-out" / segment

    def key_tables(self, operator: str) -> Path:
        return self.root / "tables" / "versions" / operator

    @property
    def tables_in_use(self) -> AnyPath:
        return self.reached / "tables" / "in-use"

    @property
    def code_in_use(self) -> AnyPath:
        return self.reached / "code" / "in-use"


def fresh_folder(runs: AnyPath, name: str) -> AnyPath:
    """Create a new folder `runs/name`, or of a similar name, private to its owner."""
    root = runs / name
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for attempt in range(2, 100):
            try:
                root.mkdir(mode=PRIVATE)
                break
            except FileExistsError:
                root = runs / f"{name}-{attempt}"
        for folder in ("checkpoint", "control", "cluster", "edges") if isinstance(root, Path) else ():
            (root / folder).mkdir()
    except OSError as error:
        raise EnvironmentProblem(f"cannot create the run's folder {root}: {error.strerror or error}") from None
    return root


def local_folder(path: Path | str, what: str) -> Path:
    """Return the folder at `path`. Raises InputError for an address on another file system."""
    if is_address(path):
        raise InputError(f"{path_of(path)} cannot be {what}: that is written as files of this machine; name a path of it")
    return Path(path)


def create_private(path: Path) -> Path:
    """Create the file `path` if missing, for its owner alone; keep its content. Return `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return path


def write_text(path: Path, text: str, what: str) -> Path:
    """Write `text`, which errors call `what`, to `path`; create its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"the {what} {path} cannot be written: {error.strerror or error}") from error
    return path

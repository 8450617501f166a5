"""Defines the paths of a run's files, so that no other module joins paths.

Each run has one folder: state for Spark's recovery (checkpoints, durable edges), settings from the control plane (control),
results for users (journal, recording, report), and logs of hosts (cluster). Where executors reach no folder of this
machine, what they read and write is in another one, on a file system that all machines reach; what only the driver needs
stays here, with a copy there (`recording.mirror`).
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
from elastream.recording.places import Place, RemotePath, is_address, place_of

LEAST_FREE_MEGABYTES = 64
"""Least free disk space to start a run; checkpoints of a few minutes and executor logs need about a third of it."""
HERE = Path("runs")
"""Where the driver's half of a run is that has its files elsewhere."""
PRIVATE = 0o700
"""Mode of a run's folder: what is in it, results too, is its owner's alone."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run under `root`, a folder of this machine.

    files: the folder of what executors read and write, where that is another one.
    """

    root: Path
    files: RemotePath | None = None

    @classmethod
    def create(cls, runs: Place, flow: str) -> "RunDirectory":
        """Create a folder `runs/<flow>-<time>`, and one of that name in HERE where `runs` is on no file system of this
        machine. Raises EnvironmentProblem if it is not writable or has too little space.
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
    def reached(self) -> Place:
        """The folder of what executors read and write."""
        return self.root if self.files is None else self.files

    def checkpoint(self, segment: str) -> Place:
        """Checkpoint of the query of `segment`."""
        return self.reached / "checkpoint" / segment

    def control(self, segment: str) -> Path:
        """What the sources of `segment` keep for themselves: they are planned on this machine."""
        return self.root / "control" / segment

    def inputs(self, segment: str) -> Place:
        """What tasks of `segment` read: the records of its sources, and its composition by batch where no source carries
        it."""
        return self.reached / "control" / segment

    @property
    def wanted(self) -> Path:
        """The composition wanted of all queries, which their sources and edges read before each batch."""
        return self.root / "control" / "wanted.json"

    @property
    def paused(self) -> Path:
        """There while the controller is paused; says since when."""
        return self.root / "control" / "paused"

    @property
    def is_paused(self) -> bool:
        """Whether the controller is paused: it plans and records, and applies nothing."""
        return self.paused.exists()

    def pause(self) -> bool:
        """Pause the controller from its next round on; whether it was not paused before.

        Raises EnvironmentProblem where the folder cannot be written.
        """
        already = self.is_paused
        if not already:
            write_text(self.paused, f"{time.time():.3f}\n", "note that the run is paused")
        return not already

    def unpause(self) -> bool:
        """Let the controller apply what it plans; whether it was paused. Raises EnvironmentProblem as `pause` does."""
        was = self.is_paused
        try:
            self.paused.unlink(missing_ok=True)
        except OSError as error:
            raise EnvironmentProblem(f"the run cannot be unpaused: {error.strerror or error}") from None
        return was

    def edge(self, source: str, target: str) -> Place:
        """Records in transit over a durable edge."""
        return self.reached / "edges" / f"{source}-{target}"

    @property
    def cluster(self) -> Path:
        """Logs and work folders of master and workers."""
        return self.root / "cluster"

    @property
    def manifest(self) -> Path:
        """What the run is: dataflow, program, format; a run is resumed from it."""
        return self.root / "run.json"

    @property
    def lock(self) -> Path:
        """Held by the process that drives the run."""
        return self.root / "run.lock"

    @property
    def session_lock(self) -> Path:
        """Held by the JVM of the run's Spark session, which may outlive that process by seconds."""
        return self.root / "session.lock"

    @property
    def leases(self) -> Path:
        """Leases: requested, and ended."""
        return self.root / "leases.jsonl"

    @property
    def all_results(self) -> Place:
        """What sinks write that name no folder of their own."""
        return self.reached / "results"

    def results(self, sink: str) -> Place:
        """What `sink` writes there."""
        return self.all_results / sink

    @property
    def journal(self) -> Path:
        """Actions, written before they are applied."""
        return self.root / "journal.jsonl"

    @property
    def guards(self) -> Path:
        """Versions of the guards; absent while there are none."""
        return self.root / "guards.jsonl"

    @property
    def allocation(self) -> Path:
        """Planned host of each task."""
        return self.root / "allocation.jsonl"

    @property
    def dead_letters(self) -> Path:
        """What operators left out, batch by batch; absent while they left out nothing."""
        return self.root / "dead-letters.jsonl"

    def left_out(self, segment: str) -> Place:
        """What tasks of `segment` leave out, a folder for each batch, until the driver takes it in."""
        return self.reached / "left-out" / segment

    @property
    def key_table_log(self) -> Path:
        """Versions of key tables, a line each."""
        return self.root / "tables.jsonl"

    def key_tables(self, operator: str) -> Path:
        """The key tables of `operator`, a file for each version."""
        return self.root / "tables" / "versions" / operator

    @property
    def tables_in_use(self) -> Place:
        """Key tables that batches may run under, where workers find them by operator and digit of the composition."""
        return self.reached / "tables" / "in-use"

    @property
    def log(self) -> Path:
        """Warnings and faults of the run, with their tracebacks; absent where there were none."""
        return self.root / "run.log"

    @property
    def recording(self) -> Path:
        """Observations and decisions."""
        return self.root / "recording.jsonl"

    @property
    def report(self) -> Path:
        """The report, unless it was wanted elsewhere."""
        return self.root / "report.html"


def fresh_folder(runs: Place, name: str) -> Place:
    """A new folder `runs/name`, or of a like name, with its owner's rights alone. Raises EnvironmentProblem."""
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
    """The folder at `path`. Raises InputError where that is the address of one that is not on this machine."""
    if is_address(path):
        raise InputError(f"{place_of(path)} cannot be {what}: that is written as files of this machine; name a path of it")
    return Path(path)


def create_private(path: Path) -> Path:
    """`path`, where there now is a file that only its owner may read and write; it keeps what it holds."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return path


def write_text(path: Path, text: str, what: str) -> Path:
    """Write `text`, which is `what`, to `path`; creates its folder. Raises EnvironmentProblem if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"the {what} {path} cannot be written: {error.strerror or error}") from error
    return path

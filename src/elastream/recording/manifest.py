"""What a run is, in `run.json` of its folder: enough to go on with it after its driver is gone. And the lock of the folder.

A run's folder goes through these states; `run.lock` is held (`flock`) by the process that drives it, so it is free once
that process is gone, however it went:

    state     run.json             lock   end in the recording   `--resume`
    new       without a dataflow   held   none                   refused: another process runs it
    void      without a dataflow   free   none, or "failed"      refused: it never began
    running   complete             held   none                   refused: another process runs it
    crashed   complete             free   none                   goes on: resumed
    stopped   complete             free   "stopped", "failed"    goes on: resumed
    finished  complete             free   "finished"             refused: nothing is left to do
    resumed   complete, one more   held   none since             refused: another process runs it

new becomes running when the dataflow has passed all checks; running and resumed become crashed, stopped or finished.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.formats import marked, unmarked
from elastream.recording.lines import replace_whole
from elastream.recording.observer import Json
from elastream.recording.places import RemotePath


@dataclass(frozen=True, slots=True)
class Manifest:
    """A run. id: unique; sinks keep it beside what the run wrote. started: epoch seconds of time 0.

    identity: what must stay as it is (`dataflow.identity`); empty until the run has begun. program: the file that was
    executed, the folder that it was started in and its options; empty where a program called `run` by itself. resumed: one
    entry for each time that it went on. files: address of what executors read and write; empty where that is in the run's
    folder.
    """

    flow: str
    started: float
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    identity: Json = field(default_factory=dict)
    program: Json = field(default_factory=dict)
    resumed: tuple[Json, ...] = ()
    files: str = ""

    def after(self, resumption: Json) -> "Manifest":
        """The same run, resumed once more."""
        return replace(self, resumed=(*self.resumed, resumption))


def read_manifest(directory: RunDirectory) -> Manifest:
    """What the run in `directory` is. Raises InputError where that is no run's folder, or one that cannot go on."""
    path = directory.manifest
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = unmarked(fields, path)
        return Manifest(**{**known, "resumed": tuple(known.get("resumed", ()))})
    except FileNotFoundError:
        raise InputError(f"{directory.root} is no folder of a run that can be resumed: it has no {path.name}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} does not describe a run ({error})") from error


def directory_of(root: Path) -> RunDirectory:
    """The run in the folder `root`, with the place of its files."""
    directory = RunDirectory(root)
    files = read_manifest(directory).files if directory.manifest.exists() else ""
    return replace(directory, files=RemotePath(files)) if files else directory


def run_id(directory: RunDirectory) -> str:
    """The id of the run in `directory`; empty where it is none that can be resumed."""
    return read_manifest(directory).id if directory.manifest.exists() else ""


def write_manifest(directory: RunDirectory, manifest: Manifest) -> None:
    """Replace `run.json`; it is on disk when this returns. Raises EnvironmentProblem where it cannot be written."""
    try:
        replace_whole(directory.manifest, (json.dumps(marked(asdict(manifest)), indent=1) + "\n").encode())
    except OSError as error:
        raise EnvironmentProblem(f"{directory.manifest} cannot be written: {error.strerror or error}") from error


@contextmanager
def held(directory: RunDirectory) -> Iterator[None]:
    """Hold the folder of a run against other processes, and other runs of this one.

    Raises EnvironmentProblem where somebody holds it: two drivers would write one checkpoint.
    """
    try:
        file = os.open(directory.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EnvironmentProblem(f"{directory.lock} cannot be written: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(file, 20).decode(errors="replace").strip() or "unknown"
            raise EnvironmentProblem(f"{directory.root} is held by another process ({holder}), which runs it") from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)  # which releases the lock

"""Manifest (`run.json`) and lock of a run's folder: enough to resume the run without its driver.

The process that drives the run holds `run.lock` (`flock`), which is free once it is gone.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.formats import marked, unmarked
from elastream.recording.lines import replace_whole
from elastream.recording.observer import Json
from elastream.recording.paths import RemotePath
from elastream.systems import lock

# States of a folder:
#
#    state     run.json             lock   end in the recording   `--resume`
#    new       without a dataflow   held   none                   refused: another process runs it
#    void      without a dataflow   free   none, or "failed"      refused: it never began
#    running   complete             held   none                   refused: another process runs it
#    crashed   complete             free   none                   goes on: resumed
#    stopped   complete             free   "stopped", "failed"    goes on: resumed
#    finished  complete             free   "finished"             refused: nothing is left to do
#    resumed   complete, one more   held   none since             refused: another process runs it

# Newest resumptions that are kept: each header of the recording repeats them, and bounded runs resume many times a day.
MAX_RESUMPTIONS = 100
# Key of an Autopilot's identity, written to files.
APPLICATION = "the Spark application"


@dataclass(frozen=True, slots=True)
class Manifest:
    flow: str
    started: float  # epoch seconds of time 0
    id: str = field(default_factory=lambda: secrets.token_hex(8))  # unique; sinks store it beside the run's output
    # what must not change (`dataflow.identity`); empty until the run has begun
    identity: Json = field(default_factory=dict)
    # executed file, start folder and options; empty if a program called `run` itself
    program: Json = field(default_factory=dict)
    resumed: tuple[Json, ...] = ()  # one entry for each of the newest resumptions
    files: str = ""  # address of executors' files; empty if they are in the run's folder

    def after(self, resumption: Json) -> "Manifest":
        return replace(self, resumed=(*self.resumed, resumption)[-MAX_RESUMPTIONS:])


def read_manifest(directory: RunDirectory) -> Manifest:
    """Return the manifest of the run in `directory`, or raise InputError."""
    path = directory.manifest
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        manifest = unmarked(fields, path)
        return Manifest(**{**manifest, "resumed": tuple(manifest.get("resumed", ()))})
    except FileNotFoundError:
        raise InputError(f"{directory.root} is not a folder of a run that can be resumed: it has no {path.name}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} does not describe a run ({error})") from error


def directory_of(root: Path) -> RunDirectory:
    directory = RunDirectory(root)
    files = read_manifest(directory).files if directory.manifest.exists() else ""
    return replace(directory, files=RemotePath(files)) if files else directory


def run_id(directory: RunDirectory) -> str:
    """Return the id of the run in `directory`; empty if it cannot be resumed."""
    return read_manifest(directory).id if directory.manifest.exists() else ""


def write_manifest(directory: RunDirectory, manifest: Manifest) -> None:
    try:
        replace_whole(directory.manifest, (json.dumps(marked(asdict(manifest)), indent=1) + "\n").encode())
    except OSError as error:
        raise EnvironmentProblem(f"{directory.manifest} cannot be written: {error.strerror or error}") from error


@contextmanager
def run_lock(directory: RunDirectory) -> Iterator[None]:
    """Lock a run's folder. Raises EnvironmentProblem if another driver has it."""
    held = f"{directory.root} is held by another process"
    with process_lock(directory.lock, lambda other: f"{held} ({other}), which runs it"):
        yield


@contextmanager
def process_lock(path: Path, refusal: Callable[[str], str]) -> Iterator[int]:
    """Lock the file `path`; yield its descriptor. Raises EnvironmentProblem with `refusal` of the process that has it."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        try:
            lock(file, wait=False)
        except OSError:
            holder = os.read(file, 20).decode(errors="replace").strip() or "unknown"
            raise EnvironmentProblem(refusal(holder)) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield file
    finally:
        os.close(file)  # which releases the lock

"""The folder of a new or a resumed run. `recording.manifest` describes its states."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elastream.dataflow.graph import Graph
from elastream.dataflow.identity import check_identity, identity_of
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import Manifest, directory_of, read_manifest, run_lock, write_manifest
from elastream.recording.mirror import check_not_overtaken, fetch_run, mirrored
from elastream.recording.observer import Json
from elastream.recording.parts import last_time, whole_length
from elastream.recording.paths import AnyPath, RemotePath, path_of
from elastream.recording.recorder import Recording
from elastream.settings import RunSettings
from elastream.spark.hosts.first_hosts import EarlierLeases, Resumed
from elastream.spark.queries.damage import check_not_damaged
from elastream.spark.worker.composition import latest_batch

# Key of a manifest's identity, written to files.
PARTITIONS = "the number of state partitions"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's folder, locked by this process.

    Attributes:
        resumed: None for a new run.
        batches: By query, the last batch that an earlier driver committed.
        if_lost: Registers an action for when another driver resumes the run.
    """

    directory: RunDirectory
    manifest: Manifest
    resumed: Resumed | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
    if_lost: Callable[[Callable[[], object]], None] = lambda action: None

    def begin(self, graph: Graph, settings: RunSettings, default: int, program: Mapping[str, Any]) -> "RunFolder":
        """Write the identity of a new run, or check that of a resumed one; return the folder with it.

        A new run without a setting has `default` state partitions. `program` describes how to execute it again.

        Raises:
            InputError: `graph` or the state of the folder prevents resuming the run.
        """
        earlier = self.manifest.identity.get(PARTITIONS)
        # A run that repartitions itself has other partitions than the program says.
        set_by_program = None if earlier is not None and settings.repartition is not None else settings.state_partitions
        partitions = set_by_program or (default if earlier is None else int(earlier))
        layout = lay_out(graph)
        identity = identity_of(layout, state_partitions=partitions, state_store=settings.state_store)
        if self.resumed is not None:
            check_identity(self.manifest.identity, identity)
            check_not_damaged(layout, self.directory)
            return self
        manifest = replace(self.manifest, identity=identity, program=dict(program))
        write_manifest(self.directory, manifest)
        return replace(self, manifest=manifest)

    @property
    def partitions(self) -> int:
        return int(self.manifest.identity[PARTITIONS])

    def record_start(self, hosts: EarlierLeases, epoch: float) -> tuple[Json, ...]:
        """Write to the manifest that the run was resumed with `hosts`, or began at `epoch`; return all resumptions."""
        if self.resumed is None:
            write_manifest(self.directory, replace(self.manifest, started=epoch))
            return ()
        details = {"adopted": [*hosts.adopted], "gone": [*hosts.gone], "batches": dict(self.batches)}
        note = {"time": self.resumed.at, "seen": self.resumed.last_seen, **details}
        manifest = self.manifest.after(note)
        write_manifest(self.directory, manifest)
        return manifest.resumed


@contextmanager
def opened(graph: Graph, runs: AnyPath, resume: Path | None) -> Iterator[RunFolder]:
    """Yield a new folder below `runs`, or the folder `resume`, locked inside the context.

    Raises:
        InputError: `resume` is not a run of this dataflow, or cannot be resumed.
        EnvironmentProblem: Another process has locked it.
    """
    if resume is None:
        directory = RunDirectory.create(runs, graph.name)
        with run_lock(directory):
            manifest = Manifest(graph.name, time.time(), files="" if directory.files is None else str(directory.files))
            write_manifest(directory, manifest)
            with mirrored(directory) as if_lost:
                yield RunFolder(directory, manifest, if_lost=if_lost)
        return
    directory = directory_of(resume.resolve())
    manifest = resumable(directory)
    if manifest.flow != graph.name:
        raise InputError(f"{resume} is a run of dataflow {manifest.flow!r}, not of {graph.name!r}")
    check_not_overtaken(directory)
    with run_lock(directory), mirrored(directory) as if_lost:
        last_observation = last_time(directory.recording)
        # Loads follow the wall clock, which may have been set back.
        resumed = Resumed(max(last_observation, time.time() - manifest.started), last_observation)
        commits = {each.name: latest_batch(directory.checkpoint(each.name), "commits") for each in lay_out(graph).segments}
        yield RunFolder(
            directory, manifest, resumed, {name: number for name, number in commits.items() if number >= 0}, if_lost
        )


def on_this_machine(run: Path | str) -> Path:
    """Return the local folder of an earlier run, fetch_run if `run` is an address."""
    place = path_of(run)
    return fetch_run(place) if isinstance(place, RemotePath) else place


def resumable(directory: RunDirectory) -> Manifest:
    """Return the manifest of the run in `directory`. Raises InputError if it cannot be resumed."""
    manifest = read_manifest(directory)
    if not manifest.identity:
        raise InputError(f"the run in {directory.root} never began: start it anew")
    if directory.recording.exists() and whole_length(directory.recording):  # a run killed at its start has none
        ending = Recording.outline(directory.root).ending
        if ending is not None and ending.status == "finished":
            raise InputError(f"the run in {directory.root} has finished: nothing is left to do")
    return manifest

"""The folder that a run goes into: a new one, or that of one that goes on; `recording.manifest` has the states of one."""

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
from elastream.recording.manifest import Manifest, directory_of, held, read_manifest, write_manifest
from elastream.recording.mirror import fetched, mirrored, refuse_overtaken
from elastream.recording.observer import Json
from elastream.recording.places import Place, RemotePath, place_of
from elastream.recording.recorder import Recording
from elastream.recording.tail import last_time, whole_length
from elastream.settings import RunSettings
from elastream.spark.hosts.first_hosts import EarlierLeases, Resumed
from elastream.spark.queries.damage import refuse_damaged
from elastream.spark.worker.composition import latest_batch

PARTITIONS = "the number of state partitions"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's folder, held by this process.

    resumed: None for a new run. batches: the last one that an earlier driver committed, by query. if_lost: takes what is to
    be done if another driver goes on with the run.
    """

    directory: RunDirectory
    manifest: Manifest
    resumed: Resumed | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
    if_lost: Callable[[Callable[[], object]], None] = lambda action: None

    def begins(self, graph: Graph, settings: RunSettings, default: int, program: Mapping[str, Any]) -> "RunFolder":
        """Return the folder of a run that now begins, or goes on.

        Args:
            default: State partitions of a new run for which the settings name no number.
            program: How to execute the program again.

        Raises:
            InputError: The run cannot go on with `graph`, or from what is left in the folder.
        """
        earlier = self.manifest.identity.get(PARTITIONS)
        partitions = settings.state_partitions or (default if earlier is None else int(earlier))
        layout = lay_out(graph)
        now = identity_of(layout, state_partitions=partitions, state_store=settings.state_store)
        if self.resumed is not None:
            check_identity(self.manifest.identity, now)
            refuse_damaged(layout, self.directory)
            return self
        manifest = replace(self.manifest, identity=now, program=dict(program))
        write_manifest(self.directory, manifest)
        return replace(self, manifest=manifest)

    @property
    def partitions(self) -> int:
        """State partitions of the run."""
        return int(self.manifest.identity[PARTITIONS])

    def went_on(self, hosts: EarlierLeases, epoch: float) -> tuple[Json, ...]:
        """Note that the run has gone on, and with which hosts; returns all such notes, for its recording.

        Of a new run, its time 0 is noted: epoch second `epoch`.
        """
        if self.resumed is None:
            write_manifest(self.directory, replace(self.manifest, started=epoch))
            return ()
        about = {"adopted": [*hosts.adopted], "gone": [*hosts.gone], "batches": dict(self.batches)}
        note = {"time": self.resumed.at, "seen": self.resumed.last_seen, **about}
        manifest = self.manifest.after(note)
        write_manifest(self.directory, manifest)
        return manifest.resumed


@contextmanager
def opened(graph: Graph, runs: Place, resume: Path | None) -> Iterator[RunFolder]:
    """The folder of a run of `graph`, below `runs`, or `resume`; held until the end of the context.

    Raises InputError where `resume` is no run of this dataflow that can go on, EnvironmentProblem where it is held.
    """
    if resume is None:
        directory = RunDirectory.create(runs, graph.name)
        with held(directory):
            manifest = Manifest(graph.name, time.time(), files="" if directory.files is None else str(directory.files))
            write_manifest(directory, manifest)
            with mirrored(directory) as if_lost:
                yield RunFolder(directory, manifest, if_lost=if_lost)
        return
    directory = directory_of(resume.resolve())
    manifest = resumable(directory)
    if manifest.flow != graph.name:
        raise InputError(f"{resume} is a run of dataflow {manifest.flow!r}, not of {graph.name!r}")
    refuse_overtaken(directory)
    with held(directory), mirrored(directory) as if_lost:
        seen = last_time(directory.recording)
        # By the clock of the wall, as loads are; it may have been set back meanwhile.
        resumed = Resumed(max(seen, time.time() - manifest.started), seen)
        commits = {each.name: latest_batch(directory.checkpoint(each.name), "commits") for each in lay_out(graph).segments}
        yield RunFolder(
            directory, manifest, resumed, {name: number for name, number in commits.items() if number >= 0}, if_lost
        )


def on_this_machine(run: Path | str) -> Path:
    """The folder of an earlier run, brought here where `run` is an address. Raises InputError and EnvironmentProblem."""
    place = place_of(run)
    return fetched(place) if isinstance(place, RemotePath) else place


def resumable(directory: RunDirectory) -> Manifest:
    """What the run in `directory` is. Raises InputError where it cannot go on."""
    manifest = read_manifest(directory)
    if not manifest.identity:
        raise InputError(f"the run in {directory.root} never began: start it anew")
    if directory.recording.exists() and whole_length(directory.recording):  # one killed while it started has no entry yet
        ending = Recording.outline(directory.root).ending
        if ending is not None and ending.status == "finished":
            raise InputError(f"the run in {directory.root} has finished: nothing is left to do")
    return manifest

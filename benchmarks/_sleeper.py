"""A dataflow with a freshness in processes of its own, which counts the lines of files that are dropped into a folder."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from _common import wait_until

from elastream.core.hosts import Lease, total_cost
from elastream.freshness.wakes import SourceSpec, State, entries_of, progress_of
from elastream.recording.directory import RunDirectory
from elastream.recording.file_log import FileLog
from elastream.recording.lease_log import LeaseLog
from elastream.spark.dataflow.sinks import latest

PROGRAM = """
from elastream import Dataflow, HostType, Local, run
from elastream.clouds import Billing
from elastream.io import parquet, text_files

flow = Dataflow("drops")
lines = flow.source(text_files("in"))
lines.key_by("value").count().sink(parquet())
tiny = HostType("tiny", cores=1.0, slots=1, memory=1000.0, price=1.0, billing=Billing(1.0, 60.0))
run(flow, cloud=Local(tiny, max_hosts=1), state_partitions=2, freshness="{freshness:g}s")
"""
KEYS = 50
# Seconds within which a step of the job must come about; the machine may be busy.
PATIENCE_S = 600.0


class Sleeper:
    """The job in `folder`.

    Attributes:
        dropped: Number of each line in all files so far.
        files: Arrival (epoch seconds) and lines, by file.
    """

    def __init__(self, folder: Path, freshness: float) -> None:
        self._folder = folder
        (folder / "in").mkdir()
        (folder / "drops.py").write_text(PROGRAM.format(freshness=freshness))
        self.dropped: Counter[str] = Counter()
        self.files: dict[str, tuple[float, int]] = {}
        self.drop(1)
        self.process = self._started("drops.py")

    def find(self) -> None:
        """Wait for the job's run folder."""
        wait_until(lambda: self._alive and bool(list((self._folder / "runs").glob("drops-*"))), PATIENCE_S)
        (root,) = (self._folder / "runs").glob("drops-*")
        self.directory = RunDirectory(root)

    def _started(self, *arguments: str) -> psutil.Popen:
        command = [str(Path(sys.executable).with_name("elastream")), "run", *arguments]
        with (self._folder / "log").open("a") as log:
            return psutil.Popen(command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True)

    @property
    def _alive(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError((self._folder / "log").read_text())
        return True

    def drop(self, lines: int) -> None:
        """Write a file of `lines` lines outside, and rename it into the folder."""
        name, words = f"{len(self.files)}.txt", [f"w{number % KEYS}" for number in range(lines)]
        (self._folder / name).write_text("\n".join(words) + "\n")
        (self._folder / name).rename(self._folder / "in" / name)
        self.files[name] = (self._folder / "in" / name).stat().st_ctime, lines
        self.dropped.update(words)

    @property
    def run(self) -> int:
        return progress_of(entries_of(self.directory)).run

    def reach(self, state: State, run: int) -> None:
        """Wait until run `run` is in `state`, or over."""

        def reached() -> bool:
            entries = entries_of(self.directory)
            return self._alive and any(
                each["run"] > run or (each["run"] == run and each["state"] in (state, State.ASLEEP)) for each in entries
            )

        wait_until(reached, PATIENCE_S)

    def kill(self, victims: str) -> None:
        """Kill the "run", the "controller" or "both". A killed controller is started again."""
        children = self.process.children()
        if victims != "run":
            self.process.kill()
            self.process.wait()
        if victims != "controller":
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    os.kill(child.pid, signal.SIGKILL)
        if victims != "run":
            self.process = self._started("--resume", str(self.directory.root))

    def settle(self) -> None:
        """Wait until all lines are counted and no host is leased. Raises TimeoutError where that does not come about."""
        wait_until(lambda: self._alive and self._is_settled, PATIENCE_S)

    @property
    def _is_settled(self) -> bool:
        if progress_of(entries_of(self.directory)).state is not State.ASLEEP or any(each.active for each in self._leases):
            return False
        results = list((self.directory.root / "results").glob("*"))
        return bool(results) and dict(latest(results[0]).itertuples(index=False)) == self.dropped

    @property
    def _leases(self) -> list[Lease]:
        log = LeaseLog(self.directory.leases)
        try:
            return list(log.earlier.values())
        finally:
            log.close()

    def cost(self, until: float) -> float:
        """Return what the hosts cost until epoch second `until`."""
        return total_cost(self._leases, until)

    def committed(self) -> dict[str, float]:
        """Return the epoch second at which each file was committed, by name."""
        (source,) = (SourceSpec(**each) for each in _sources(self.directory))
        log, times = FileLog(Path(source.checkpoint) / "sources" / str(source.number)), dict[str, float]()
        log.refresh()
        for batch in range(log.newest + 1):
            with suppress(FileNotFoundError):
                at = (Path(source.checkpoint) / "commits" / str(batch)).stat().st_mtime
                times |= {Path(file.path).name: at for file in log.files(batch - 1, batch)}
        return times

    def stop(self) -> None:
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            self.process.send_signal(signal.SIGINT)
            self.process.wait(PATIENCE_S)
        if self.process.poll() is None:
            self.process.kill()


def _sources(directory: RunDirectory) -> list[dict[str, Any]]:
    return next(each["sources"] for each in reversed(entries_of(directory)) if each.get("sources"))


@contextmanager
def sleeper(freshness: float) -> Iterator[Sleeper]:
    with TemporaryDirectory(prefix="freshness-", ignore_cleanup_errors=True) as folder:
        job = Sleeper(Path(folder), freshness)
        try:
            job.find()
            yield job
        finally:
            job.stop()

"""The campaign on Spark: one word count under the whole loop; its processes are stopped, killed and restarted.

The driver is a process of its own (`driven.py`). This process injects faults into other processes by their ids; it sends
faults within the driver as commands. A driver that died or ended its run is restarted with the folder of the run. At the
end, the rules of `history` apply to the sink, the checkpoint, the logs and the remaining processes.
"""

import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from _cluster import words_of
from _common import EXECUTOR, processes_below

from campaign.driven import HISTORY, MAX_HOSTS, PARTITIONS
from campaign.history import Violation
from campaign.schedule import Fault
from elastream.recording.lease_log import LeaseLog
from elastream.spark.dataflow.corpus import replayed
from elastream.spark.dataflow.sources import CORPUS
from elastream.spark.worker.composition import latest_batch, offsets_of

KINDS: Mapping[str, float] = {
    "move": 60, "gateway": 25, "reports": 20, "loads": 15, "policy": 15, "provider": 15,
    "stop an executor": 30, "stop a worker": 15, "stop the supervisor": 15,
    "kill an executor": 20, "kill": 14, "decommission": 14, "a full disk": 20,
    "kill the driver": 4, "kill the supervisor": 2,
}  # fmt: skip
"""Shares of the faults. Those that cost a restart are few: each takes half a minute."""
BETWEEN = 3.0  # mean seconds between two faults: they overlap, because a host takes three times as long to start
STOPPED = 2.0  # seconds that a stopped process stands still
SMALL = 256 * 1024  # bytes of the small disk on which the control plane's logs are
SETTLE = 60
"""Batches within which all must have settled after the last fault: each moves at most one partition a host."""
PATIENCE = 180.0  # seconds without a batch after which the run counts as hung
LATE = 90.0  # seconds after the kill of its supervisor in which a run may end for that reason
LOGS = ("journal.jsonl", "leases.jsonl", "allocation.jsonl")


@dataclass
class CampaignResult:
    faults: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    broken: list[Violation] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    batches: int = 0
    records: int = 0
    starts: int = 0
    seconds: float = 0.0
    settled: float = 0.0


def drawn_on_spark(seed: int, count: int) -> tuple[Fault, ...]:
    chance = random.Random(seed)
    kinds = [*KINDS][:count] + chance.choices([*KINDS], [*KINDS.values()], k=max(0, count - len(KINDS)))
    chance.shuffle(kinds)
    at, found = 0.0, []
    for kind in kinds:
        found.append(Fault(round(at, 2), kind, "a", float(chance.randrange(1 << 16)), STOPPED + chance.random()))
        at += chance.expovariate(1 / BETWEEN)
    return tuple(found)


class _Campaign:
    """Runs the faults in `folder`. begun: the driver's process, which is restarted whenever it ends."""

    def __init__(self, folder: Path, faults: Sequence[Fault], progress: Callable[[str], None]) -> None:
        self.folder, self.faults, self.progress = folder, faults, progress
        self.found = CampaignResult()
        self.driver: subprocess.Popen[str] | None = None
        self.disk = folder / "small"
        self.small = False
        self.seen: dict[int, str] = {}
        self.ranges: dict[int, int] = {}
        self.killed, self._watched = -math.inf, 0.0
        self.descendants: list[psutil.Process] = []
        self._read, self.hosts, self.alarms, self.pending_moves = 0, dict[str, str](), list[str](), 0
        self.status = ""

    @property
    def run(self) -> Path | None:
        runs = sorted((self.folder / "runs").glob("*"))  # a run that was killed before it began is followed by another
        return next((each for each in reversed(runs) if _begun(each)), runs[-1] if runs else None)

    @property
    def live_driver(self) -> subprocess.Popen[str] | None:
        return self.driver if self.driver is not None and self.driver.poll() is None else None

    def start(self) -> None:
        resume = self.run is not None and _begun(self.run)
        if resume and self.small:
            self._onto_the_small_disk()
        here = Path(__file__).parent.parent
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(here), os.environ.get("PYTHONPATH", "")))}
        with (self.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "campaign.driven", str(self.folder), *([str(self.run)] if resume else [])],
                stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, env=environment, start_new_session=True,
            )  # fmt: skip
        self.found.starts += 1
        self.status, self.hosts = "", {}  # the last observation is of the earlier driver

    def send_command(self, **command: Any) -> None:
        driver = self.live_driver
        if driver is not None and driver.stdin is not None:
            with contextlib.suppress(OSError):
                driver.stdin.write(json.dumps(command) + "\n")
                driver.stdin.flush()

    def read_history(self) -> None:
        path = self.folder / HISTORY
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        for line in new.splitlines():
            entry = json.loads(line)
            if entry["kind"] == "seen":
                self.hosts, self.alarms, self.pending_moves = entry["hosts"], entry["alarms"], entry["wanted"]
                if (active := sum(state != "lost" and state != "released" for state in self.hosts.values())) > MAX_HOSTS:
                    self.note("max_hosts", f"{active} hosts are leased")
            elif entry["kind"] == "ended":
                self.status = f"{entry['status']}: {entry['reason']}"
            elif entry["kind"] == "command":
                ok = ":" not in entry["came"] or entry["said"]["do"] == "decommission"
                self.found.done[entry["said"]["do"]] += ok

    def note(self, rule: str, said: str) -> None:
        if all(each.said != said for each in self.found.broken):
            self.found.broken.append(Violation(rule, time.monotonic() - self.began, said))

    def inject(self, fault: Fault) -> None:
        self.found.faults[fault.kind] += 1
        number, kind = int(fault.amount), fault.kind
        which = {
            "stop an executor": EXECUTOR, "kill an executor": EXECUTOR,
            "stop a worker": "deploy.worker.Worker", "stop the supervisor": "local.supervisor",
            "kill the supervisor": "local.supervisor",
        }.get(kind)  # fmt: skip
        if which is not None:
            processes = processes_below(which, root=driver.pid) if (driver := self.live_driver) is not None else []
            if not processes:
                return
            process = processes[number % len(processes)]
            if kind.startswith("stop"):
                with contextlib.suppress(psutil.Error):
                    process.suspend()
                    _later(fault.seconds, process.resume)
            else:
                self.killed = time.monotonic() if "supervisor" in kind else self.killed
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self.found.done[kind] += 1
        elif kind == "kill the driver":
            if (driver := self.live_driver) is not None:
                self.killed = time.monotonic()
                self.descendants += psutil.Process(driver.pid).children(recursive=True)
                driver.kill()
                self.found.done[kind] += 1
        elif kind == "a full disk":
            self._fill(fault.seconds)
        else:
            self.send_command(do=kind, seconds=fault.seconds, partition=number, host=number // PARTITIONS)

    def mount(self) -> None:
        self.disk.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(self.disk)], capture_output=True, text=True,
            check=False,
        ) if shutil.which("mount") else None  # fmt: skip
        if done is not None and done.returncode == 0:
            self.small = True
        else:
            why = done.stderr.strip() if done is not None else "there is no mount"
            self.found.remarks.append(f"no small disk could be mounted ({why}): full disks were not tried here")

    def _onto_the_small_disk(self) -> None:
        assert self.run is not None
        for name in LOGS:
            path = self.run / name
            if path.exists() and not path.is_symlink():
                shutil.move(path, self.disk / name)
                path.symlink_to(self.disk / name)

    def _fill(self, seconds: float) -> None:
        if not self.small or not any(self.disk.glob("*.jsonl")):
            return
        ballast = self.disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        _later(seconds, lambda: ballast.unlink(missing_ok=True))
        self.found.done["a full disk"] += 1

    def go(self) -> CampaignResult:
        self.began = time.monotonic()
        self.mount()
        try:
            self.start()
            self._until(lambda: self._newest() >= 2 and self._running() >= 2, "the run to begin")
            first = time.monotonic()
            for count, fault in enumerate(self.faults, start=1):
                while time.monotonic() - first < fault.at:
                    self.step()
                    time.sleep(0.1)
                self.inject(fault)
                if count % 20 == 0:
                    batches, starts = self._newest() + 1, self.found.starts
                    self.progress(f"{count} of {len(self.faults)} faults, {batches} batches, {starts} starts")
            ended, done = time.monotonic(), self._newest()
            self._until(lambda: self._settled() and self._newest() > done + 2, "all to settle", SETTLE)
            self.found.settled = time.monotonic() - ended
            self.stop()
            self.check()
        finally:
            if (driver := self.live_driver) is not None:
                driver.kill()
                driver.wait()
            if self.small:
                subprocess.run(["umount", "-l", str(self.disk)], check=False, capture_output=True)
        self.found.seconds = time.monotonic() - self.began
        return self.found

    def step(self) -> None:
        self.read_history()
        if self.driver is not None and self.driver.poll() is not None:
            if time.monotonic() - self.killed > LATE:  # neither the run nor a process that it needs was killed
                self.note("control", f"the run ended by itself: {self.status or self._last_words()}")
            elif self.driver.returncode != -signal.SIGKILL:
                why = f"the run ended as {self.status}" if self.status else f"the driver ended: {self._last_words()}"
                self.found.remarks.append(f"after a kill {why}")
            self.start()
        if time.monotonic() > self._watched + 0.5:
            self._watched = time.monotonic()
            self._watch()

    def _until(self, holds: Callable[[], bool], what: str, most: float = math.inf) -> None:
        newest = self._newest()
        until, last = time.monotonic() + PATIENCE, newest + most
        while not holds():
            self.step()
            if (now := self._newest()) > newest:
                until, newest = time.monotonic() + PATIENCE, now
            if time.monotonic() > until or newest > last:
                self.note("settled", f"waited for {what}: hosts {self.hosts}, alarms {self.alarms}, "
                          f"{self.pending_moves} partitions wanted elsewhere, newest batch {newest}")  # fmt: skip
                return
            time.sleep(0.3)

    def _newest(self) -> int:
        return max(self.commits(), default=-1)

    def _running(self) -> int:
        return sum(state == "running" for state in self.hosts.values())

    def _settled(self) -> bool:
        resting = all(state in ("running", "released", "lost") for state in self.hosts.values())
        return bool(resting and self._running() >= 2 and not self.pending_moves and not self.alarms)

    def commits(self) -> Sequence[int]:
        if self.run is None:
            return ()
        return sorted(int(p.name) for p in (self.run / "checkpoint").glob("*/commits/*") if p.name.isdigit())

    def stop(self) -> None:
        if (driver := self.live_driver) is not None:
            self.descendants += psutil.Process(driver.pid).children(recursive=True)
            driver.send_signal(signal.SIGTERM)
            try:
                driver.wait(90)
            except subprocess.TimeoutExpired:
                self.note("control", "the driver does not end within 90 s of SIGTERM")
                driver.kill()
        _, alive = psutil.wait_procs(self.descendants, timeout=30)
        for each in alive:
            with contextlib.suppress(psutil.Error):
                self.note("leases", f"a process is left: {' '.join(each.cmdline())[:120]}")
                each.kill()
        self.read_history()

    def _last_words(self) -> str:
        lines = (self.folder / "driver.log").read_text(errors="replace").splitlines()
        return lines[-1][:300] if lines else "without a word"

    def _watch(self) -> None:
        for each in (self.run / "checkpoint").glob("*/offsets/*") if self.run is not None else ():
            if each.name.isdigit() and (number := int(each.name)) not in self.ranges:
                with contextlib.suppress(OSError, ValueError, IndexError, KeyError):  # it is being written
                    end = int(offsets_of(each.parent.parent, number)[0]["n"])
                    if self.ranges.setdefault(number, end) != end:
                        self.note("sink", f"batch {number} was planned anew, up to another record")
        for number, file in self._written():
            if number in self.seen and number < max(self.seen) - 3:
                continue
            with contextlib.suppress(OSError, ValueError):
                content = json.dumps(sorted(pq.ParquetFile(file).read().to_pylist(), key=str))
                if self.seen.setdefault(number, content) != content:
                    self.note("content", f"batch {number} was written twice, with other rows")

    def _written(self) -> Iterator[tuple[int, Path]]:
        for folder in (self.folder / "out").glob("batch=*"):
            if (file := folder / "changes.parquet").exists():
                yield int(folder.name.removeprefix("batch=")), file

    def check(self) -> None:
        assert self.run is not None
        (checkpoint,) = (self.run / "checkpoint").iterdir()
        committed = latest_batch(checkpoint, "commits")
        self.found.batches = committed + 1
        self._check_sink(checkpoint, committed)
        self._check_versions(checkpoint, committed)
        leases = LeaseLog(self.run / "leases.jsonl").earlier
        for host, lease in leases.items():
            if lease.active:
                self.note("leases", f"{host} is {lease.state} in the ledger after the end")
        asked = {host for entry in self._entries("call") if entry["verb"] == "lease" for host in entry["hosts"]}
        for host in sorted(asked - leases.keys()):
            self.note("leases", f"{host} was requested, and no ledger knows it")

    def _check_sink(self, checkpoint: Path, committed: int) -> None:
        self._watch()
        ends = {number: end for number, end in self.ranges.items() if number <= committed}
        self.found.records = ends[committed]
        assert self.run is not None
        (control,) = (self.run / "control").glob("*/" + CORPUS)
        counts: Counter[str] = Counter()
        lines = replayed(control, ends[committed])
        at = 0
        for number, content in sorted(self.seen.items()):
            if number not in ends:
                continue
            rows = {row["word"]: row["count"] for row in json.loads(content)}
            fresh: Counter[str] = Counter()
            while at < ends[number]:
                fresh.update(words_of(next(lines)))
                at += 1
            counts.update(fresh)
            # After a gap in the ranges, one count covers several batches, this one included.
            wrong = [word for word, count in rows.items() if counts[word] != count]
            missing = [word for word in fresh if word not in rows] if number - 1 in self.seen or number == 0 else []
            if wrong or missing:
                self.note("sink", f"rows of batch {number}: {len(wrong)} counts are wrong, {len(missing)} missing")
        if lost := [number for number in range(committed + 1) if number not in self.seen]:
            self.note("sink", f"{len(lost)} committed batches left no rows, first batch {lost[0]}")

    def _check_versions(self, checkpoint: Path, committed: int) -> None:
        for partition in (checkpoint / "state" / "0").glob("[0-9]*"):
            versions = [int(file.name.split(".")[0].split("_")[0]) for file in partition.glob("[0-9]*.*")]
            if versions and (last := max(versions)) < committed + 1:
                self.note("versions", f"partition {partition.name} ends with version {last} after batch {committed}")

    def _entries(self, kind: str) -> Iterator[Mapping[str, Any]]:
        for line in (self.folder / HISTORY).read_text().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry["kind"] == kind:
                    yield entry


def _later(seconds: float, do: Callable[[], object]) -> None:
    def run() -> None:
        with contextlib.suppress(psutil.Error):
            do()

    timer = threading.Timer(seconds, run)
    timer.daemon = True
    timer.start()


def _begun(run: Path) -> bool:
    return (run / "checkpoint").is_dir() and any((run / "checkpoint").iterdir())


def on_spark_ran(seed: int, count: int, progress: Callable[[str], None]) -> CampaignResult:
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no process may stay behind
    try:
        return _Campaign(folder, drawn_on_spark(seed, count), progress).go()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

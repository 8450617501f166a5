"""Whether the demo, `examples/word_count.py`, killed again and again by SIGKILL, goes on with `--resume` to exact counts.

    python benchmarks/resume.py [--quick] [--rounds N] [--seed N] [--json FILE]

A round takes about seven minutes on two cores: one run, killed while it starts, in the middle of a batch, while hosts are
added, while it is being resumed, and while it stops; each time at a random moment of that, the driver alone or with all of
its process group. `--quick` runs one round with a load a third as long. The program compares each count with a plain loop.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _common import Report, each_check, main, progress

from elastream.recording.directory import RunDirectory
from elastream.recording.lease_log import LeaseLog
from elastream.recording.manifest import read_manifest
from elastream.recording.recorder import Recording
from elastream.spark.worker.composition import latest_batch

DEMO = Path(__file__).parents[1] / "examples" / "word_count.py"
SOURCE = "the project's bar for a run that is killed"
PATIENCE = 300.0
"""Seconds to wait for a moment; where it does not come, the run is killed then."""
QUICK = {'over="90s"': 'over="30s"', 'over="60s"': 'over="20s"', 'lasts="40s"': 'lasts="15s"'}
"""What makes the load of the demo a third as long."""


def started(run: RunDirectory, since: float) -> bool:
    """Whether the cluster of a driver that began at `since` is coming up."""
    log = run.cluster / "master.log"
    return log.exists() and log.stat().st_mtime >= since


def in_mid_batch(run: RunDirectory, since: float) -> bool:
    """Whether a batch of it is planned and not committed."""
    checkpoint = run.checkpoint("source")
    planned = latest_batch(checkpoint)
    at = checkpoint / "offsets" / str(planned)
    return planned > latest_batch(checkpoint, "commits") and at.exists() and at.stat().st_mtime >= since


def scaling(run: RunDirectory, since: float) -> bool:
    """Whether hosts beyond its first are requested, lately."""
    if not run.leases.exists() or run.leases.stat().st_mtime < max(since, time.time() - 5.0):
        return False
    log = LeaseLog(run.leases)
    log.close()
    return in_mid_batch(run, since) and sum(lease.active for lease in log.earlier.values()) > 1


MOMENTS: dict[str, tuple[Callable[[RunDirectory, float], bool], float]] = {
    "while starting": (started, 8.0),
    "in mid-batch": (in_mid_batch, 1.0),
    "while scaling": (scaling, 5.0),
    "while being resumed": (started, 8.0),
    "while stopping": (in_mid_batch, 5.0),
}
"""What to wait for, and seconds of which a part, at random, passes then."""


class Killed:
    """A run of the demo below `folder`, which is killed and resumed."""

    def __init__(self, folder: Path, program: Path, chance: random.Random) -> None:
        self.folder, self.program, self.chance = folder, program, chance
        self.said = ""

    @property
    def run(self) -> RunDirectory:
        """The folder of the run."""
        (found,) = (each for each in (self.folder / "runs").iterdir() if each.is_dir())
        return RunDirectory(found)

    def go_on(self) -> subprocess.Popen[str]:
        """Start the program, or resume its run."""
        known = (self.folder / "runs").exists() and any((self.folder / "runs").iterdir())
        what = ["--resume", str(self.run.root)] if known else [str(self.program), "--runs", str(self.folder / "runs")]
        command = [sys.executable, "-c", "from elastream.cli import main; main()", "run", *what, "--no-live"]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def kill(self, moment: str) -> None:
        """Run it until `moment`, and kill it."""
        holds, spread = MOMENTS[moment]
        since, process = time.time(), self.go_on()
        while process.poll() is None and time.time() < since + PATIENCE:
            if (self.folder / "runs").exists() and any((self.folder / "runs").iterdir()) and holds(self.run, since):
                break
            time.sleep(0.02)
        if moment == "while stopping":
            process.send_signal(signal.SIGTERM)
        time.sleep(self.chance.uniform(0.0, spread))
        alone = self.chance.random() < 0.5
        if process.poll() is None:
            process.kill() if alone else os.killpg(process.pid, signal.SIGKILL)
        self.said = process.communicate()[0]
        batches = latest_batch(self.run.checkpoint("source"), "commits") + 1
        how = "alone" if alone else "with its group"
        ended = "" if process.returncode < 0 else f", had ended by itself: {self.said.strip().splitlines()[-1:]}"
        progress(f"killed {moment} ({how}), {batches} batches committed{ended}")

    def end(self) -> bool:
        """Resume it to its end; whether the program found every count equal to that of a plain loop."""
        process = self.go_on()
        self.said = process.communicate()[0]
        return process.returncode == 0 and "every count equals that of a plain loop" in self.said


def measure(arguments: argparse.Namespace) -> Report:
    exact, kills, away, rounds = 0, 0, [], 1 if arguments.quick else arguments.rounds
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="resume-", ignore_cleanup_errors=True) as name:
            folder, text = Path(name), DEMO.read_text()
            for long, short in QUICK.items() if arguments.quick else ():
                assert long in text, f"the demo has no {long}"
                text = text.replace(long, short)
            (folder / DEMO.name).write_text(text)
            killed = Killed(folder, folder / DEMO.name, random.Random(arguments.seed + number))
            for moment in MOMENTS:
                killed.kill(moment)
                kills += 1
            right = killed.end()
            exact += right
            resumed = read_manifest(killed.run).resumed
            away += [note["time"] - note["seen"] for note in resumed]
            progress(
                f"round {number + 1} of {rounds}: {killed.said.strip().splitlines()[-1] if killed.said else 'nothing'}"
            )
            if not right:
                print(killed.said, file=sys.stderr)
                continue
            told = Recording.read(killed.run.root).header.resumptions
            assert len(told) == len(resumed), "the recording tells of every time that the run went on"
    report = Report()
    report.figures |= {"kills": kills, "seconds without a driver, median": statistics.median(away or [0.0])}
    report.at_least("part of the runs with exact counts", exact / rounds, 1.0, SOURCE)
    report.at_least("kills", kills, 5.0, SOURCE)
    return report


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs, each killed five times (default: 3)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the moments (default: 1)")


if __name__ == "__main__":
    main("resume", __doc__.splitlines()[0], measure, each_check, more)

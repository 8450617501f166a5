"""Whether simulated runs come out bit by bit as they did at another commit: for changes that make the simulator faster.

python scripts/unchanged.py COMMIT [--cases N] [--first SEED] [--workers N]

Random cases (`elastream_papers.liveness`), policies and plants in turn; of three, one has hosts whose speed varies. What
each round saw, planned and did goes into a digest, by the code of either commit; the first cases that differ are printed,
with the round in which they begin to. Exit status 1 if one differs.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CASES = 150


class Digest:
    """Observes a run; a line a round: the time, and what all that was seen and done up to then comes to."""

    def __init__(self) -> None:
        self.hash, self.lines, self.last, self.rounds = hashlib.sha256(), list[str](), -1.0, 0

    def started(self, header: object) -> None: ...

    def observed(self, seen: Any) -> None:
        for rows, frame in seen.frames.items():
            self._frame(str(rows), frame)
        for sample in seen.history:
            if sample.time > self.last:
                self._frame(repr(sample.time), sample.operators)
        self.last = seen.time
        exchange = seen.exchange
        for column in (seen.tasks.operator, seen.tasks.host, exchange.source, exchange.target, exchange.rate):
            self.hash.update(column.tobytes())
        images = sorted((host, sorted(names)) for host, names in seen.images.items())
        for part in (
            seen.time, seen.leases, seen.composition, images, seen.next_host, seen.batches, exchange.known, exchange.age,
            sorted(seen.latency_basis.items()), sorted(seen.effective.items()), seen.signals, seen.standings, seen.guards,
        ):  # fmt: skip
            self.hash.update(repr(part).encode())

    def _frame(self, name: str, frame: Any) -> None:
        self.hash.update(f"{name} {tuple(frame.ids)} {frame.metrics}".encode())
        for metric in frame.metrics:
            self.hash.update(repr(frame.age(metric)).encode())
            self.hash.update(frame.column(metric).tobytes())

    def decided(self, decision: Any) -> None:
        self.hash.update(repr(decision).encode())
        self.lines.append(f"{decision.time!r} {self.hash.hexdigest()[:16]}")

    def ended(self, ending: object) -> None:
        self.hash.update(repr(ending).encode())
        self.lines.append(f"end {self.hash.hexdigest()[:16]}")


def digest(seed: int) -> str:
    """The digests of one case, by the package that this process imports."""
    from elastream.control.loop import Loop
    from elastream.loads import SpeedWalk
    from elastream_papers.liveness.scenarios import cases, scenario

    (case,) = cases(1, seed)
    given, kept = scenario(case), Digest()
    if seed % 3 == 1:
        given = replace(given, settings=replace(given.settings, speed_trace=SpeedWalk(seed=seed).over(given.ends[-1])))
    plant, policy = given.plant(), given.policy(case.policy)
    if sentence := getattr(policy, "unfit", lambda _: "")(plant.context):
        return sentence
    plant.advance(given.period)
    limit = given.ends[-1] - given.period
    loop = Loop(plant, policy, monitor=given.period, period=given.period, observers=[kept], limit=limit, to_the_limit=True)
    loop.run()
    kept.hash.update(repr(plant.result()).encode() + plant.result().series.tobytes())
    kept.ended("result")
    return " | ".join([str(case), *kept.lines])


def digests(source: Path, first: int, number: int, workers: int) -> list[str]:
    """A line a case, by the code in `source`."""
    command = [sys.executable, __file__, "--digests", "--cases", str(number), "--first", str(first)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{source / 'src'}{os.pathsep}{source / 'papers/src'}",
        "PYTHONHASHSEED": "0",
    }
    done = subprocess.run(
        [*command, "--workers", str(workers)], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", default="HEAD", help="with what to compare")
    parser.add_argument("--cases", type=int, default=CASES, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first case")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--digests", action="store_true", help="print what this code comes to, and compare nothing")
    given = parser.parse_args()
    if given.digests:
        with ProcessPoolExecutor(given.workers) as pool:
            for line in pool.map(digest, range(given.first, given.first + given.cases)):
                print(line)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", other, given.commit], check=True)
        try:
            before = digests(other, given.first, given.cases, given.workers)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", other], check=True)
    after = digests(ROOT, given.first, given.cases, given.workers)
    differing = [(a.split(" | "), b.split(" | ")) for a, b in zip(before, after, strict=True) if a != b]
    for a, b in differing[:5]:
        number, there = next(((n, x) for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), (len(a), "the end"))
        print(f"{a[0]}: differs from round {number} on, at {there.split()[0]} s")
    print(f"{len(differing)} of {len(after)} cases differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

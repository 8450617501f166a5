"""Churn test: random moves, kills and decommissions of hosts under a query at full load.

The query must not restart, and its final state must equal a batch query's over the same records. Faults follow a seeded
schedule; half of the moves load state ahead, half do not.
"""

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastream.experiments.nstorm.rig import HOSTS, Rig
from elastream.spark.placement.schemes import Cycles, Scheme

FAULTS = 0.02
"""Fraction of the events that end a host: half of them kills, half decommissions."""
AT_ONCE = 4
"""Most moves requested by one version of the plan."""
LEAST = 3
"""Least number of hosts before one is ended: with one host left, its tasks could not move."""
ROWS, VOCABULARY, SEED = 1000, 5000, 1
CYCLES = Cycles(0.1, 0.05)
PATIENCE = 240.0
"""Seconds without a batch after which the query counts as hung."""


@dataclass(frozen=True, slots=True)
class Churn:
    """Results. moves: requested. landed, dropped: migrations, including those that returned drifted tasks. starts: restarts
    of the query. wrong: words whose count differs from the batch query's.
    """

    moves: int
    kills: int
    decommissions: int
    landed: int
    dropped: int
    drifted: int
    batches: int
    starts: int
    wrong: int
    seconds: float


def schedule(events: int, seed: int) -> Iterator[str]:
    """`events` random events, "move", "kill" or "decommission", with at least one of each kind of fault."""
    chance = random.Random(seed)
    faults = max(2, round(events * FAULTS))
    kinds = ["kill" if number % 2 else "decommission" for number in range(faults)]
    at = dict(zip(sorted(chance.sample(range(events), faults)), kinds, strict=True))
    return (at.get(number, "move") for number in range(events))


def churn(
    events: int,
    *,
    hosts: int = HOSTS,
    progress: Callable[[str], None] = lambda text: None,
) -> Churn:
    """Run `events` events. Raises EnvironmentProblem if the query fails."""
    chance = random.Random(SEED)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="churn-", ignore_cleanup_errors=True) as folder,
        contextlib.closing(
            Rig(Path(folder), hosts=hosts, rows=ROWS, vocabulary=VOCABULARY),
        ) as rig,
    ):
        rig.begin(warm=0.0)
        run_id, count = rig.follower.query.runId, {"move": 0, "kill": 0, "decommission": 0}
        asked: dict[Any, str] = {}
        size = 1
        for number, kind in enumerate(schedule(events, SEED)):
            count[kind] += 1
            if kind == "move":
                rig.wait_for_hosts(2, PATIENCE)
                free = _free(rig, asked)
                task = chance.choice(free)
                asked[task] = chance.choice([host for host in rig.hosts if host != rig.at.get(task)])
                if len(asked) < size:
                    continue
                rig.plan.publish(asked, at=time.time(), why="by chance")
                asked, size = {}, chance.randint(1, AT_ONCE)
                if chance.random() < 0.8:
                    rig.next_batch(PATIENCE)
            else:
                # With one left, what it loses has nowhere to go meanwhile.
                rig.wait_for_hosts(hosts - 1, PATIENCE)
                victim = chance.choice(rig.hosts)
                (rig.kill if kind == "kill" else rig.decommission)(victim)
                rig.follower.switch(chance.choice([Scheme.LAZY, Scheme.ONLINE]), CYCLES)
                progress(f"{number + 1} of {events}: {kind} of a host, {len(rig.follower.placing.landed)} moves landed")
        rig.wait_for_hosts(hosts - 1, PATIENCE)
        rig.next_batch(PATIENCE)
        placing, starts = rig.follower.placing, rig.follower.restarts + (rig.follower.query.runId != run_id)
        batches, wrong = rig.finish()
        return Churn(
            count["move"],
            count["kill"],
            count["decommission"],
            len(placing.landed),
            len(placing.dropped),
            placing.drifted,
            batches,
            starts,
            wrong,
            round(time.monotonic() - began, 1),
        )


def _free(rig: Rig, asked: dict[Any, str]) -> list[Any]:
    """Tasks that are not migrating; waits until there is one."""
    until = time.monotonic() + PATIENCE
    while True:
        busy = rig.follower.placing.wanted().keys() | asked.keys()
        if free := sorted(set(rig.follower.placing.tasks) - busy):
            return free
        rig.next_batch(until - time.monotonic())

"""Fig. 6.11(a) on Spark: records skew to one host's keys, and the policy `ring` moves tokens.

No host can be leased. Utilisation is CPU time of stateful tasks, not records: Spark's heap store copies a partition's
map each batch, so a partition with a ninth of the records takes a third of the time.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from elastream.control.loop import Loop
from elastream.core.frames import LONGEST
from elastream.core.hosts import Lease
from elastream.core.observation import Context, Observation
from elastream.core.plant import Clock
from elastream.policies.ring.policy import RingBalance
from elastream.recording.observer import Observer
from elastream.spark.plant import SparkPlant
from elastream_papers.thesis.resilience.bed import Bed
from elastream_papers.thesis.resilience.job import Job

# A full batch is always ready, and most of its keys come once. Hot keys are a quarter of the state partitions, one host's
# of four, once the state is even. Each has a tenth of all records, fine enough for tokens; with 16 partitions the best
# contiguous placement would just reach BALANCED.
SKEWED = Job(keys=500_000, rows=250_000, pace=0.0, partitions=32, hot=8, skewed_from=25)
CORES = 0.4  # cores per host: less than the machine's two together, so that hosts with more records are busy longer
BALANCED = 1.25  # busiest host's CPU time over the mean (the project's bar)
STAYS = 3  # balanced batches in a row: a single one may be chance
GIVEN_UP = 40  # batches until the wait ends: twice the bar
MEASURED = 1.0  # seconds between rounds: no measurement is missed
LIMIT = 1800.0  # seconds for the whole loop


def balanced_after(made: Bed) -> float:
    """Return batches from the skew until hosts stay `alike` for STAYS batches under `ring`, or infinity."""
    watch = BalanceWatch(made)
    made.run(SKEWED)
    # A full batch is always ready, so records always wait longer than half a batch, and CPU use alone decides. Each batch
    # is one measurement. A host is overloaded after two such batches in a row, and a change is followed by one more. Both
    # take up to LONGEST.
    policy = RingBalance(queue_high=made.normal() / 2, patience=LONGEST, cool_down=LONGEST, cut="load")
    watch.loop = Loop(_AsItIs(made.plant), policy, period=MEASURED, observers=[watch], limit=LIMIT, roll_back=False)
    watch.loop.run()
    return watch.after


def alike(worked: Sequence[float]) -> bool:
    """Return True if the busiest host worked at most BALANCED times the mean."""
    return max(worked) * len(worked) <= BALANCED * math.fsum(worked)


class BalanceWatch(Observer):
    """Ends its loop once hosts are balanced, or not within GIVEN_UP batches."""

    def __init__(self, made: Bed) -> None:
        self._made = made
        self._newest = self._alike = 0
        self.after = math.inf
        self.loop: Loop | None = None

    def observed(self, observation: Observation) -> None:
        batch, worked = self._made.worked()
        since = batch - self._made.job.skewed_from + 1
        if since <= self._newest:
            return
        self._newest = since
        self._alike = self._alike + 1 if alike(tuple(worked.values())) else 0
        if self._alike >= STAYS:
            self.after = float(since - STAYS + 1)
        if self.loop is not None and (since >= GIVEN_UP or self.after < math.inf):
            self.loop.stop()


class _AsItIs:
    """Wraps a plant without leases; it outlives a loop over it."""

    def __init__(self, plant: SparkPlant[Any]) -> None:
        self._plant = plant
        self.apply, self.switch = plant.apply, plant.switch

    @property
    def context(self) -> Context:
        """Return a context without leases."""
        hosts = len(self._plant.hosts.usable)
        return replace(self._plant.context, max_hosts=hosts, min_hosts=hosts)

    @property
    def clock(self) -> Clock:
        return self._plant.clock

    @property
    def finished(self) -> bool:
        return self._plant.finished

    @property
    def ledger(self) -> Sequence[Lease]:
        return self._plant.ledger

    def observe(self) -> Observation:
        return replace(self._plant.observe(), context=self.context)

    def incidents(self) -> Sequence[str]:
        return self._plant.incidents()

    def close(self) -> None:
        """Leave the plant to its owner."""

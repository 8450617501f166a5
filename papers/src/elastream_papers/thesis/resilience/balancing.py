"""Fig. 6.11(a) on Spark: records are skewed to the keys of one host; the policy `ring` moves tokens until all are alike.

The hosts are those that there are, as in the figure: the policy cannot lease. How busy a host is, is told by the CPU time
of the tasks with state that ran on it in the newest batch. Records would say less: Spark's store in the heap copies the map
of a partition for each batch, so that one with a ninth of the records of another takes a third of its time.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from elastream.control.loop import Loop
from elastream.core.decision import Decision
from elastream.core.frames import LONGEST
from elastream.core.hosts import Lease
from elastream.core.observation import Context, Observation
from elastream.core.plant import Clock
from elastream.policies.ring.policy import RingBalance
from elastream.recording.observer import Ending, Header
from elastream.spark.plant import SparkPlant
from elastream_papers.thesis.resilience.bed import Bed
from elastream_papers.thesis.resilience.job import Job

SKEWED = Job(keys=500_000, rows=250_000, pace=0.0, partitions=32, hot=8, skewed_from=25)
"""A full batch is always ready, and what it takes is work on state: most keys of a batch come once. The hot keys are those
of a quarter of the state partitions, as one host of four has; they come some batches after the state is filled and lies
evenly. A hot partition then has a tenth of all records, so that tokens can be set finely enough: of 16 partitions, four of
them hot with three quarters of all records, the best of all contiguous placements would just reach BALANCED."""
CORES = 0.4
"""Cores of each host: together less than the machine's two, so that a host with more records than others is busy for longer
than they are."""
BALANCED = 1.25
"""CPU time of the busiest host's tasks over the mean one's (the project's bar)."""
STAYS = 3
"""Batches in a row that hosts are to be alike for: the first of them is when they were. One alone may be by chance."""
GIVEN_UP = 40
"""Batches after the skew that a balance is waited for: twice the bar."""
MEASURED = 1.0
"""Seconds from one round to the next: no measurement is missed."""
LIMIT = 1800.0
"""Seconds that the loop may take in all: batches of twenty seconds, which no machine has had."""


def balanced_after(made: Bed) -> float:
    """Batches from the skew until hosts are `alike` for STAYS batches, under the policy `ring`; infinite where that has not
    come GIVEN_UP batches after it."""
    watch = BalanceWatch(made)
    made.run(SKEWED)
    # Records always wait, as a full batch is always ready: longer than half of what one takes, so that use of CPU alone
    # decides. A measurement of it is of one batch: two in a row are to say that a host is overloaded, and after a change
    # one is waited for. Both take up to LONGEST.
    policy = RingBalance(queue_high=made.normal() / 2, patience=LONGEST, cool_down=LONGEST, cut="load")
    watch.loop = Loop(_AsItIs(made.plant), policy, period=MEASURED, observers=[watch], limit=LIMIT)
    watch.loop.run()
    return watch.after


def alike(worked: Sequence[float]) -> bool:
    """Whether the host that worked longest did so at most BALANCED times as long as the mean one."""
    return max(worked) * len(worked) <= BALANCED * math.fsum(worked)


class BalanceWatch:
    """Ends its loop once the hosts are balanced after the skew, or are not for GIVEN_UP batches."""

    def __init__(self, made: Bed) -> None:
        self._made = made
        self._newest = self._alike = 0
        self.after = math.inf
        self.loop: Loop | None = None

    def started(self, header: Header) -> None: ...

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

    def decided(self, decision: Decision) -> None: ...

    def ended(self, ending: Ending) -> None: ...


class _AsItIs:
    """A plant with the hosts that it has, and no others; it goes on when a loop over it ends."""

    def __init__(self, plant: SparkPlant[Any]) -> None:
        self._plant = plant
        self.apply, self.switch = plant.apply, plant.switch

    @property
    def context(self) -> Context:
        """Nothing can be leased."""
        hosts = len(self._plant.hosts.usable)
        return replace(self._plant.context, max_hosts=hosts, min_hosts=hosts)

    @property
    def clock(self) -> Clock:
        """The plant's."""
        return self._plant.clock

    @property
    def finished(self) -> bool:
        """Whether the plant has."""
        return self._plant.finished

    @property
    def ledger(self) -> Sequence[Lease]:
        """The plant's."""
        return self._plant.ledger

    def observe(self) -> Observation:
        """What the plant observes."""
        return replace(self._plant.observe(), context=self.context)

    def incidents(self) -> Sequence[str]:
        """Return the plant's."""
        return self._plant.incidents()

    def close(self) -> None:
        """Whose plant it is goes on with it."""

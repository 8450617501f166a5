"""Fig. 6.11(a) on Spark: records are skewed to the keys of one host; the policy `ring` moves tokens until all are alike.

The hosts are those that there are, as in the figure: the policy cannot lease. How busy a host is, is told by the records
that it takes: the shares of the state partitions in a batch are known, and where each partition runs is observed.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from elastream.control.loop import Loop
from elastream.experiments.resilience.bed import Bed
from elastream.experiments.resilience.job import Job
from elastream.model.cloud import Lease
from elastream.model.cpu_span import CPU_WINDOW
from elastream.model.decision import Decision
from elastream.model.observation import Context, Observation
from elastream.model.plant import Clock
from elastream.planning.policies.ring import RingBalance
from elastream.recording.observer import Ending, Header
from elastream.spark.plant import SparkPlant

__all__ = ["BALANCED", "CORES", "balanced_after"]

SKEWED = Job(keys=800_000, rows=400_000, pace=0.0, partitions=32, hot=8, skewed_from=40)
"""A full batch is always ready, and what it takes is work on state: most keys of a batch come once. The hot keys are those
of a quarter of the state partitions, as one host of four has; they come some batches after the state is filled and lies
evenly. A hot partition then has a tenth of all records, so that tokens can be set finely enough: of 16 partitions, four of
them hot with three quarters of all records, the best of all contiguous placements would just reach BALANCED."""
CORES, LIGHT = 0.4, 0.6
"""Cores of each host: together less than the machine's two, so that a host with more records than others is busy for longer
than they are. And the part of them up to which a host has room: some of a host's work, reading and shuffling, is not on
state and as much on all: a host with next to no state was busy for 0.5 to 0.6 of its cores (a first run showed)."""
BALANCED = 1.25
"""Records of the busiest host over the mean one's (the project's bar)."""
GIVEN_UP = 40
"""Batches after the skew that a balance is waited for: twice the bar."""
MEASURED = 1.0
"""Seconds from one round to the next: each measurement is acted upon, as in the simulated runs (`scene.policy`)."""
LIMIT = 300.0
"""Seconds that the loop may take in all."""


def balanced_after(made: Bed) -> float:
    """Batches from the skew until the busiest host takes at most BALANCED times the records of the mean one, under the
    policy `ring`; infinite where that has not come GIVEN_UP batches after it."""
    watch = _Watch(made, SKEWED.loads(made.plant.spark, SKEWED.skewed_from))
    made.run(SKEWED)
    # Records always wait, as a full batch is always ready: longer than half of what one takes, so that use of CPU alone
    # decides. The thesis's damping as in the simulated runs: at the first measurement that says so, and after a change as
    # long as one takes.
    policy = RingBalance(cpu_low=LIGHT, queue_high=made.normal() / 2, patience=0.0, cool_down=CPU_WINDOW, cut="load")
    watch.loop = Loop(_AsItIs(made.plant), policy, period=MEASURED, observers=[watch], limit=LIMIT)
    watch.loop.run()
    return watch.after


class _Watch:
    """Ends its loop once the hosts are balanced after the skew, or are not for GIVEN_UP batches."""

    def __init__(self, made: Bed, loads: Sequence[int]) -> None:
        self._made, self._loads = made, loads
        self.after = math.inf
        self.loop: Loop | None = None

    def started(self, header: Header) -> None: ...

    def observed(self, observation: Observation) -> None:
        since = self._made.newest() - self._made.job.skewed_from + 1
        if since <= 0:
            return
        shares = self._made.shares(self._loads).values()
        if max(shares) * len(shares) <= BALANCED:
            self.after = float(since)
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

    def close(self) -> None:
        """Whose plant it is goes on with it."""

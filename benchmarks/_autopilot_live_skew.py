"""Skewed keys on live executors: what the busiest of them has to do, round by round, and beside the best packing.

Each key's work is its share by Zipf's law. Executors that are there from the start have as many partitions each; how much
that is they have not.
"""

import statistics
from typing import Any

import numpy as np
from _common import Report, progress, wait_until
from _stranger import HOST, STATES, ended, seconds_of, session_on_hosts, start_work

from elastream import Autopilot
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.plant import Plan
from elastream.policies.by_load import ByLoad
from elastream_papers.elastic_allocator.exact import pack

HOSTS, ROUNDS, PERIOD = 3, 6, 8.0
"""A period is long enough for three batches: what a partition takes is known by then, also after a move."""
STEPS = 400_000
ZIPF = "pow(1 + k, -1.2)"


class Rounds:
    """The policy of Autopilot, that remembers what each host had to do when it planned."""

    name = "by load, remembered"

    def __init__(self) -> None:
        self.loads: list[tuple[float, ...]] = []
        self.weights: np.ndarray[Any, Any] = np.zeros(0)
        self._plan = ByLoad()

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """What `ByLoad` plans."""
        busy = observation.tasks.column(Metric.BUSY_CORES)
        if len(busy) == STATES and not np.isnan(busy).any():
            hosts = np.bincount(observation.tasks.host, busy, len(observation.hosts.ids))
            self.loads.append(tuple(float(load / busy.sum()) for load in hosts))
            self.weights = busy / busy.sum()
            progress(f"shares of the load: {[round(load, 3) for load in self.loads[-1]]}")
        return self._plan.plan(observation)


def measure_live_skew(report: Report, quick: bool) -> None:
    """The busiest executor before Autopilot and six rounds later."""
    with session_on_hosts(HOSTS, HOSTS) as (spark, cluster, root):
        query = start_work(spark, root, STEPS, ZIPF)
        ended(query, 10)
        for number in range(1, HOSTS + 1):
            cluster.confine(f"h{number}", HOST.cores)
        ended(query, 2)
        first = int(query.lastProgress["batchId"]) + 1
        ended(query, 5)
        before = statistics.median(seconds_of(query, first))
        policy = Rounds()
        with Autopilot(spark, period=PERIOD, policy=policy).watch(query) as pilot:
            wait_until(lambda: len(policy.loads) > ROUNDS, 180)
            moves = len(pilot.plant.placing.landed)
        first = int(query.lastProgress["batchId"]) + 1
        ended(query, 5)
        after = statistics.median(seconds_of(query, first))
    bound = float(pack(policy.weights, [1.0] * HOSTS, seconds=5.0).bound)
    busiest = [max(loads) for loads in policy.loads[: ROUNDS + 1]]
    report.figures["skew, live"] = {
        "load": f"{STATES} partitions, keys by Zipf's law (1.2), on {HOSTS} hosts of {HOST.cores:g} cores",
        "busiest executor's share of the load, round by round": busiest,
        "the best packing's": bound,
        "moves": moves,
        "seconds a batch": {"before": before, "after": after},
    }
    name = f"busiest executor after {ROUNDS} rounds over the best packing (Zipf 1.2, {STATES} partitions, live)"
    report.at_most(name, busiest[-1] / bound, 1.05, "the project's bar for Autopilot")

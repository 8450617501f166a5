"""Compiles the inner loops of simulator, `horizon` and matching into numba's cache, so that no first run waits for it.

Tiny simulations, with a queue for each operator and fused as on Spark, and one allocation call every loop with the types
that runs use.
"""

import numpy as np

from elastream import Alternate, Dataflow, HostType, simulate
from elastream.loads import constant
from elastream.policies import Horizon, Threshold
from elastream.policies.elastic_allocator.policy import Objective, allocate
from elastream.simulator import Travel
from elastream_papers.visp.experiment import VispCase, make

SECONDS = 60.0
# Time until `horizon` replays its past.
REPLAYED_S = 300.0


def main() -> None:
    """Call them all."""
    for travel in Travel:
        plant = make(VispCase("stepwise", "threshold", None, seed=1), travel=travel)
        plant.advance(SECONDS)
        plant.observe()
    flow = Dataflow("compiled")
    work = (Alternate("work", str, cost=0.001),)
    flow.source(None, load=constant("100/s")).map(work, returns="word string", name="work").sink(None)
    hosts = [HostType("any", 1.0)]
    simulate(flow, Threshold(), host_types=hosts, limit=SECONDS, fused=True, show=False)
    simulate(flow, Horizon(), host_types=hosts, limit=REPLAYED_S, target_latency="30s", fused=True, show=False)
    needs, base, sizes = np.full((4, 2), 0.3), np.zeros((2, 2)), np.full((2, 2), 2.0)
    for objective in Objective:
        allocate(needs, base, sizes, objective=objective)
        allocate(needs, base, sizes, objective=objective, slots=np.full(2, 2))


if __name__ == "__main__":
    main()

"""E2DF on hosts of four slots, where hosts drain, drains are cancelled and replicas are consolidated.

The paper's hosts (C_n = 1) show none of this. The load jumps every minute.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastream.core.action import CancelDrain, DrainHost, MoveTask, ReleaseHost
from elastream.core.hosts import Billing, HostType
from elastream.dataflow.stages import lay_out
from elastream.evaluation.findings import Check
from elastream.evaluation.trials import simulated
from elastream.loads import steps
from elastream.policies.e2df.policy import E2df
from elastream.simulator import Settings, make_plant
from elastream_papers.e2df import experiment as e2df

# slots of a host, C_r, and mean use of hosts below which the least used one drains
SLOTS, SPARE, CONSOLIDATE_BELOW = 4, 1, 0.6
HIGH, LOW, EVERY, SECONDS = 550, 60, "1min", 1800.0  # tuples/s, period of change, length of the run


@dataclass(frozen=True, slots=True)
class LargerHostsCase:
    seed: int
    assumptions: e2df.E2dfAssumptions


@dataclass(frozen=True, slots=True)
class LargerHostsRun:
    """Actions by kind (`done`), refused ones, and records left at the end."""

    done: Mapping[str, int]
    refused: int
    left: float

    @property
    def metrics(self) -> dict[str, float]:
        return {**self.done, "refused": self.refused, "left waiting": self.left}


WATCHED = {
    "hosts drained": DrainHost,
    "drains cancelled": CancelDrain,
    "replicas moved": MoveTask,
    "hosts released": ReleaseHost,
}


def run_larger_hosts(case: LargerHostsCase) -> LargerHostsRun:
    assumptions = case.assumptions
    load = steps(HIGH, LOW, every=EVERY).repeated().lasting(SECONDS)
    host = HostType(
        "quad", cores=e2df.CORES * SLOTS, slots=SLOTS, billing=Billing(1.0), start=assumptions.host_start,
        stop=assumptions.host_stop,
    )  # fmt: skip
    plant = make_plant(
        lay_out(e2df.word_count(assumptions), chained=False),
        host_types=[host],
        loads={"sentences": load},
        seed=case.seed,
        settings=Settings(
            monitor=e2df.APPLICATION_PERIOD, variation=assumptions.variation, latency=assumptions.network_latency
        ),
        hosts=e2df.FIRST_HOSTS,
        max_hosts=e2df.STATIC_HOSTS,
        seconds=SECONDS,
    )
    policy = E2df(
        e2df.SCALE_OUT,
        e2df.SCALE_IN,
        spare=SPARE,
        initial=e2df.FIRST_HOSTS,
        period=e2df.APPLICATION_PERIOD,
        infrastructure_period=e2df.APPLICATION_PERIOD,
        consolidate_below=CONSOLIDATE_BELOW,
        seed=case.seed,
    )
    run = simulated(plant, policy, period=e2df.APPLICATION_PERIOD, until=SECONDS, roll_back=False)
    kinds = Counter(
        each.action.__class__.__name__ for decision in run.decisions for each in decision.outcomes if each.succeeded
    )
    left = sum(operator.queued for operator in run.result.operators.values())
    return LargerHostsRun({name: kinds[kind.__name__] for name, kind in WATCHED.items()}, run.refused, left)


def larger_host_bars(runs: Sequence[LargerHostsRun]) -> tuple[Check, ...]:
    """Return checks that each kind of action occurs; otherwise its rules were not evaluated."""
    return tuple(
        Check(
            f"hosts of {SLOTS} slots, load that jumps: {name}, in {len(runs)} runs together",
            (count := sum(run.done[name] for run in runs)),
            ">= 1",
            count >= 1,
            "section 4: draining, its cancelling and consolidation",
        )
        for name in WATCHED
    )

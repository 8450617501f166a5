"""Trial of one policy in simulation: cost, and fraction of records in time.

A record that waits at the end is in time only while its deadline lies ahead.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from elastream.core.fitting import state_partitions_of
from elastream.core.observation import Observation
from elastream.core.plant import Policy, Prospect, check_supported
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.key_table import KeyTableBook
from elastream.dataflow.stages import Layout
from elastream.evaluation.cases import Tell
from elastream.evaluation.comparison import Trial
from elastream.evaluation.prospects import prospect_of
from elastream.evaluation.simulated import simulated
from elastream.evaluation.worth import WorthWatch, merits_of
from elastream.guards.document import GuardDocument
from elastream.policies.common.provision import Costs
from elastream.policies.static import initial_hosts
from elastream.policies.value_cost.problem import Goal
from elastream.settings import SimulateSettings
from elastream.simulator import Result, Settings, SimulatedPlant, make_plant

# limit if the cloud sets none
MOST_HOSTS = 1_000


@dataclass(frozen=True)
class Scene:
    """Conditions that all policies of a comparison share.

    Attributes:
        seconds: Length of the load.
        period: Seconds between plans.
        goal: Judges value and profit, unless None.
        partitions_for: Hosts that default state partitions suffice for; None: those of `constants`.
    """

    layout: Layout
    loads: Mapping[str, ArrivalPattern]
    seconds: float
    records: int
    constants: Settings
    settings: SimulateSettings
    period: float
    guards: GuardDocument | None = None
    goal: Goal | None = None
    partitions_for: int | None = None

    @property
    def max_hosts(self) -> int:
        return self.settings.max_hosts or MOST_HOSTS

    @property
    def min_hosts(self) -> int:
        """Return the fewest hosts at once, also at the start."""
        return self.settings.min_hosts or 1

    @property
    def costs(self) -> Costs:
        """Return costs and selectivities that replace the declared ones."""
        return self.prospect.costs

    @property
    def prospect(self) -> Prospect:
        return prospect_of(
            self.layout,
            self.settings.types,
            self.loads,
            self.constants,
            seconds=self.seconds,
            window=self.settings.latency,
        )

    def set_up(self, policy: Policy) -> tuple[SimulatedPlant, Policy]:
        """Return the initial plant and the prepared policy."""
        policy = policy.prepared(self.prospect)
        constants, types = self.constants, self.settings.types
        if self.partitions_for is not None:
            default = state_partitions_of(types, self.partitions_for, policy.partitions_a_host)
            constants = replace(constants, state_partitions=max(constants.state_partitions, default))
        hosts, parallelism = initial_hosts(policy, self.layout, types, self.max_hosts, self.costs) or (None, None)
        if hosts is not None:  # its own, and those below which no run has fewer
            hosts = [*hosts, *hosts[:1] * (self.min_hosts - len(hosts))]
        plant = make_plant(
            self.layout,
            hosts=hosts,
            parallelism=parallelism,
            host_types=types,
            loads=self.loads,
            seed=self.settings.seed,
            settings=constants,
            max_hosts=self.max_hosts,
            min_hosts=self.min_hosts,
            target_latency=self.settings.latency,
            seconds=self.seconds,
            tables=KeyTableBook(*self.settings.tables),
        )
        check_supported(policy, plant.context)
        return plant, policy


def tried(scene: Scene, name: str, policy: Policy, tell: Tell) -> Trial:
    """Try `policy`; `tell` receives the simulated time."""
    plant, policy = scene.set_up(policy)
    watch = None if scene.goal is None else WorthWatch(scene.layout.graph, scene.goal, scene.period)

    def look(observation: Observation) -> None:
        tell(observation.time)
        if watch is not None:
            watch.look(observation)

    run = simulated(
        plant,
        policy,
        period=scene.period,
        until=scene.seconds,
        look=look,
        guards=scene.guards,
        scaling=scene.settings.scaling,
    )
    latency = scene.settings.latency
    waiting = sum(operator.queued for operator in run.result.operators.values())
    late = _overdue(scene.layout, run.result, scene.loads, scene.seconds, scene.records, latency)
    compliance = _compliance(run.result, latency, late)
    merits = None if watch is None or scene.goal is None else merits_of(watch, scene.goal)
    result, remark = run.result, run.remarked
    return Trial(name, result.cost, compliance, result, waiting, run.refused, run.lacked, late, merits, remark)


def _overdue(
    layout: Layout,
    result: Result,
    loads: Mapping[str, ArrivalPattern],
    length: float,
    records: int,
    target_latency: float | None,
) -> float:
    """Return the fraction of records queued and late at the end."""
    graph = layout.graph
    done: dict[str, float] = {}
    for name in graph.order:
        part = min((done[edge.source] for edge in graph.inputs[name]), default=1.0)
        if (operator := result.operators.get(name)) is not None:
            arrived = max(operator.arrived, operator.done + operator.queued + operator.in_service)
            part *= 1 - (operator.queued + operator.in_service) / arrived if arrived > 0 else 1.0
        done[name] = part
    if target_latency is None and not any(operator.max_duration is not None for operator in graph.operators):
        return 0.0
    levels = sum(operator.max_duration or 0.0 for operator in graph.operators)
    grace = levels if target_latency is None else target_latency
    young = sum(load.count(length) - load.count(max(0.0, length - grace)) for load in loads.values())
    return max(0.0, 1 - min(done[sink.name] for sink in graph.sinks) - young / records)


def _compliance(result: Result, target_latency: float | None, overdue: float) -> float | None:
    """Return the fraction of records in time; None without promises.

    Args:
        overdue: Fraction queued and late at the end.
    """
    if target_latency is None:
        if not any(operator.within for operator in result.operators.values()):
            return None
        share = result.compliance(1.0)
        return 0.0 if math.isnan(share) else share * (1 - overdue)
    in_time, finished = result.series[:, 5], result.series[:, 6]
    measured = ~np.isnan(in_time) & (finished > 0)
    return float(np.average(in_time[measured], weights=finished[measured])) * (1 - overdue) if measured.any() else 0.0

"""Tries one policy in simulation: what it cost, and which part of the records was in time.

A record that still waits at the end is in time only if it may wait longer: a run that leaves its load lying meets nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from elastream.experiments.cases import Tell
from elastream.experiments.simulated import simulated
from elastream.model.cloud import HostType
from elastream.model.endpoints import ArrivalPattern
from elastream.model.graph import Graph
from elastream.model.observation import Composition
from elastream.model.plant import Policy, Unknown, refuse_unfit
from elastream.model.qos import offered_rates
from elastream.model.stages import Layout
from elastream.planning.policies.static import sized
from elastream.simulation import Result, Settings, SimulatedPlant, make_plant
from elastream.simulation.network import alternate_costs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Scene", "Trial", "tried"]


@dataclass(frozen=True, slots=True)
class Trial:
    """Results of one policy. compliance: fraction of records in time, None without a service level; what still waits at
    the end although it should be done counts as late, and is `overdue`.

    waiting: records still queued at the end. series: rows as in `simulation.Result`. lacked: metrics that the policy lacked
    for rounds, each with the longest time for which it did.
    """

    name: str
    cost: float
    compliance: float | None
    result: Result
    waiting: float
    refused: int
    lacked: tuple[Unknown, ...] = ()
    overdue: float = 0.0

    @property
    def mean_hosts(self) -> float:
        return float(self.result.series[:, 2].mean()) if len(self.result.series) else math.nan

    @property
    def peak_hosts(self) -> float:
        return float(self.result.series[:, 2].max()) if len(self.result.series) else math.nan

    @property
    def frame(self) -> "pd.DataFrame":
        """What happened, as pandas: a row per observation (index `time`, seconds)."""
        import pandas as pd

        columns = ["time", "arrival_rate", "hosts", "instances", "backlog", "in_time", "finished"]
        return pd.DataFrame(self.result.series, columns=columns).set_index("time")


@dataclass(frozen=True)
class Scene:
    """What all policies of a comparison are tried on. seconds: length of the run. period: seconds between plans."""

    layout: Layout
    host_types: Sequence[HostType]
    loads: Mapping[str, ArrivalPattern]
    seconds: float
    settings: Settings
    target_latency: float | None
    max_hosts: int
    period: float
    seed: int

    def set_up(self, policy: Policy) -> tuple[SimulatedPlant, Policy]:
        """The plant at its start, and the policy with the sizes that it takes from the load."""
        measured = {operator: (each.cost, each.selectivity) for operator, each in self.settings.services.items()}
        policy = sized(
            policy,
            self.layout,
            self.host_types,
            self.loads,
            seconds=self.seconds,
            window=self.target_latency,
            costs=measured,
        )
        plant = make_plant(
            self.layout,
            host_types=self.host_types,
            loads=self.loads,
            seed=self.seed,
            settings=self.settings,
            max_hosts=self.max_hosts,
            target_latency=self.target_latency,
            seconds=self.seconds,
        )
        refuse_unfit(policy, plant.context)
        return plant, policy


def tried(scene: Scene, name: str, policy: Policy, tell: Tell) -> Trial:
    """What `policy` comes to; `tell` is called with the simulated time as it passes."""
    plant, policy = scene.set_up(policy)
    run = simulated(plant, policy, period=scene.period, until=scene.seconds, look=lambda seen: tell(seen.time))
    waiting = sum(operator.queued for operator in run.result.operators.values())
    if scene.target_latency is None:
        kept, overdue = _within_levels(run.result, scene.layout.graph)
    else:
        kept, overdue = _within_target(run.result, scene, scene.target_latency)
    return Trial(name, run.result.cost, kept, run.result, waiting, run.refused, run.lacked, overdue)


def _within_levels(result: Result, graph: Graph) -> tuple[float | None, float]:
    """(fraction of records within the service levels of their operators, records overdue there).

    Overdue are those queued beyond what arrives, on average, within the service level (Little's law).
    """
    kept = judged = overdue = 0.0
    for name, operator in result.operators.items():
        level = graph.by_name[name].max_duration if name in graph.by_name else None
        if operator.within:
            late = max(0.0, operator.queued - operator.arrived / result.seconds * (level or 0.0)) if result.seconds else 0.0
            kept, judged, overdue = kept + operator.within[1.0], judged + operator.judged + late, overdue + late
    return (kept / judged if judged else None), overdue


def _within_target(result: Result, scene: Scene, target: float) -> tuple[float | None, float]:
    """(fraction of records within the target latency from end to end, records of the sources overdue at the end).

    Overdue are those that were due longer than the target ago, less those whose results reached a sink.
    """
    series = result.series
    if not len(series):
        return None, 0.0
    times, offered, kept, finished = series[:, 0], series[:, 1], series[:, 5], series[:, 6]
    lasts = np.diff(times, prepend=0.0)
    # Of the period in which the target's time before the end begins, only the first part was due by then.
    due = float((offered * np.clip(times[-1] - target - (times - lasts), 0.0, lasts)).sum())
    each = _results_per_record(scene)
    done = float(finished.sum()) / each if each > 0 else due
    waiting = sum(operator.queued + operator.in_service for operator in result.operators.values())
    overdue = min(waiting, max(0.0, due - done))
    judged = ~np.isnan(kept) & (finished > 0)
    if not judged.any():
        return (0.0 if overdue > 0 else None), overdue
    in_time = float(np.average(kept[judged], weights=finished[judged]))
    return in_time * done / (done + overdue) if done > 0 else 0.0, overdue


def _results_per_record(scene: Scene) -> float:
    """Records that reach sinks for each record of the sources, at the costs and loads declared."""
    graph = scene.layout.graph
    composition = Composition.default(graph)
    selectivity = {name: each for name, (_, each) in alternate_costs(graph, scene.settings, composition).items()}
    counts = {name: float(load.count(scene.seconds)) for name, load in scene.loads.items()}
    arriving = offered_rates(graph, counts, selectivity, composition)
    return sum(arriving[sink.name] for sink in graph.sinks) / max(1.0, sum(counts.values()))

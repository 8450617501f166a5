"""Random small runs in the simulator: any load, hosts and service level, under a policy that leases at random."""

import random
from dataclasses import dataclass
from typing import ClassVar

from elastream.core.action import Action, DrainHost, LeaseHost, ReleaseHost, SwitchAlternate
from elastream.core.hosts import Billing, HostState, HostType
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.dataflow.operators import Alternate, Kind, Operator
from elastream.evaluation.compare import scene_of
from elastream.evaluation.comparison import Trial
from elastream.evaluation.trials import Scene, tried
from elastream.loads import steps
from elastream.policies.static import Static, filling
from elastream.policies.threshold import Threshold
from elastream.settings import SimulateSettings
from elastream.simulator import Settings, Travel
from support.simulated_plants import between_ends


@dataclass(frozen=True)
class RandomLeases(Policy):
    """Leases, drains and releases hosts at random, and switches alternates."""

    seed: int
    busy: float
    name: ClassVar = "random"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        draw, context = random.Random(f"{self.seed} {observation.time}"), observation.context
        actions: list[Action] = list(filling(observation))
        if draw.random() < self.busy:
            types = list(context.host_types.values())
            for number in range(draw.choice((1, 1, 1, 2, 4))):
                kind = draw.choice(types)
                actions.append(LeaseHost(observation.host_name(number), kind.name, kind.region, why="random"))
        for host, lease in observation.leases.items():
            if lease.state is HostState.RELEASING or draw.random() > self.busy / 2:
                continue
            actions.append(draw.choice((DrainHost, ReleaseHost))(host, why="random"))
        actions += [
            SwitchAlternate(each.name, draw.choice(each.alternates).name, why="random")
            for each in context.graph.operators
            if len(each.alternates) > 1 and draw.random() < 0.1
        ]
        return Plan(tuple(actions))


def random_run(seed: int) -> tuple[Scene, Trial]:
    """Return the conditions of a random run, and its trial."""
    draw = random.Random(seed)
    fused = draw.random() < 0.8
    monitor = 1.0 if fused else draw.choice((1.0, 5.0))
    seconds = draw.choice((30, 60, 120))
    rates = [draw.choice((0, 1, 2, 5, 10, 30, 80)) for _ in range(draw.randint(1, 8))]
    if not any(rates):
        rates[0] = 10
    mean = sum(rates) / len(rates)
    cost = draw.choice((0.3, 0.8, 1.5, 3.0)) / mean
    alternates = [Alternate("work", cost=cost)]
    if draw.random() < 0.25:
        other = Alternate("other", cost=cost * draw.choice((0.5, 1.5)), selectivity=draw.choice((None, 1.0, 0.5)))
        alternates.append(other)
    kind = Kind.KEYED if fused and draw.random() < 0.3 else Kind.TRANSFORM
    keyed = {"key": ("key",)} if kind is Kind.KEYED else {}
    cores = draw.choice((0.25, 0.5))
    operators = [Operator("first", kind, tuple(alternates), cores=cores, memory=100, **keyed)]
    if draw.random() < 0.3:
        operators.append(Operator("second", Kind.TRANSFORM, (Alternate("second", cost=cost / 4),), cores=cores, memory=100))
    policy: Policy = draw.choice(
        (Static(draw.randint(1, 5)), Threshold(), RandomLeases(seed, draw.choice((0.1, 0.3, 0.6))))
    )
    settings = SimulateSettings(
        host_types=[host(draw, name) for name in ("a", "b")[: draw.randint(1, 2)]],
        load=steps(*rates, every=seconds / len(rates)),
        limit=seconds,
        target_latency=cost / cores * 2 + draw.choice((1, 2, 5, 10, 30)),
        target=0.9,
        period=draw.choice((1, 2, 5, 10, 15)),
        fused=fused,
        min_hosts=draw.randint(1, 2),
        max_hosts=draw.choice((3, 6, 20)),
        state_partitions=draw.choice((4, 16)),
        seed=draw.randint(0, 1000),
    )
    constants = Settings(
        monitor=monitor,
        travel=draw.choice((Travel.SINGLE, Travel.COHORTS)),
        cohorts_above=draw.choice((0, 100)),
        batch_overhead=draw.choice((0.0, 0.05, 0.5)),
        batch_seconds=draw.choice((0.5, 1.0, 20.0)),
        host_start_spread=draw.choice((0.0, 1 / 3)),
        batch_ratios=draw.choice(((), (), (0.8, 1.1, 1.0))),
        settling_boost=draw.choice((1.0, 1.0, 1.5)),
        start_cached=draw.choice((0.0, 5.0)),
    )
    scene, _ = scene_of(between_ends(*operators), {"policy": policy}, settings, constants)
    return scene, tried(scene, "policy", policy, lambda _: None)


def host(draw: random.Random, name: str) -> HostType:
    """Return a random host type."""
    billing = Billing(draw.choice((1, 2, 7, 10, 30, 60, 300)), draw.choice((0, 0, 10, 60)))
    return HostType(
        name,
        cores=draw.choice((0.5, 1.0, 2.0)),
        speed=draw.choice((0.7, 1.0, 1.5)),
        price=draw.uniform(0.5, 2.0) * billing.unit,
        billing=billing,
        start=draw.choice((0.0, 3.0, 15.0, 40.0)),
        stop=draw.choice((0.0, 2.0, 10.0)),
    )

"""Update latency against consistency (thesis, p. 50, without figures) of each way to switch.

Spark has all modes but re-wiring, which mixes compositions and exists here only.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from elastream.core.action import Switch, SwitchAlternate, SwitchEdge
from elastream.core.composition import Consistency, switched
from elastream.core.hosts import HostType
from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import InputError
from elastream.evaluation.page import Table
from elastream.loads import constant
from elastream.simulator import Settings, make_plant
from elastream.simulator.arrivals import Load
from elastream.simulator.updates import PendingUpdate
from elastream_papers.thesis.dynamic_dataflow.methods import METHODS

# plans of switches by time (seconds); a plan is one composition
Schedule: TypeAlias = Sequence[tuple[float, Sequence[Switch]]]
STEP = 1.0  # seconds a run is continued until the load is processed


@dataclass(frozen=True, slots=True)
class Consequence:
    """Results of a schedule of switches in one mode.

    latencies: seconds until no older composition works. delays: seconds until each query commits under it, or NaN.
    mixed: records that met both, by update. finished: seconds until all records were processed.
    """

    mode: Consistency
    latencies: tuple[float, ...]
    delays: tuple[float, ...]
    mixed: tuple[float, ...]
    finished: float

    @property
    def latency(self) -> float:
        """Mean update latency (seconds); NaN without updates."""
        return _mean(self.latencies)

    @property
    def delay(self) -> float:
        """Mean of the available delays (seconds); NaN without any."""
        return _mean([each for each in self.delays if not math.isnan(each)])

    @property
    def mixed_records(self) -> float:
        """Records that met both compositions, over all updates."""
        return math.fsum(self.mixed)


def consistency_table(  # noqa: PLR0913
    layout: Layout,
    host_types: Sequence[HostType],
    loads: Mapping[str, Load],
    schedule: Schedule,
    *,
    hosts: int | Sequence[str] | None = None,
    parallelism: Mapping[str, int] | None = None,
    settings: Settings | None = None,
    seed: int = 1,
    seconds: float = math.inf,
    modes: Sequence[Consistency] = tuple(Consistency),
) -> tuple[Consequence, ...]:
    """Switch `layout` by `schedule` under its load, once in each of `modes`; a row each.

    seconds: limit for endless loads. Other parameters: see `make_plant`. Raises InputError for a plan that the
    simulation refuses.
    """
    return tuple(
        _consequence(replace(settings or Settings(), consistency=mode), layout, host_types, loads, schedule,
                     hosts, parallelism, seed, seconds)
        for mode in modes
    )  # fmt: skip


def _consequence(  # noqa: PLR0913
    settings: Settings,
    layout: Layout,
    host_types: Sequence[HostType],
    loads: Mapping[str, Load],
    schedule: Schedule,
    hosts: int | Sequence[str] | None,
    parallelism: Mapping[str, int] | None,
    seed: int,
    seconds: float,
) -> Consequence:
    plant = make_plant(
        layout, host_types=host_types, loads=loads, seed=seed, settings=settings, hosts=hosts, parallelism=parallelism,
        seconds=seconds,
    )  # fmt: skip
    for time, plan in sorted(schedule, key=lambda each: each[0]):
        plant.advance(time)
        for outcome in plant.switch(plan):
            if not outcome.succeeded:
                raise InputError(f"a switch at {time:g} s is refused: {outcome.reason}")
    while not plant.finished and plant.time < seconds:
        plant.advance(min(seconds, plant.time + STEP))
    plant.close()
    updates: Sequence[PendingUpdate] = plant.updates
    return Consequence(
        settings.consistency,
        tuple(update.latency for update in updates),
        tuple(update.in_force - update.requested for update in updates),
        tuple(update.mixed for update in updates),
        plant.time,
    )


def switches_at_random(graph: Graph, times: Sequence[float], seed: int) -> Schedule:
    """Return a plan for each of `times` that switches one to all alternates and branches.

    Raises InputError if nothing can be switched.
    """
    draw = random.Random(seed)
    composition = Composition.default(graph)
    elements = [o.name for o in graph.operators if len(o.alternates) > 1] + [*graph.choices]
    if not elements:
        raise InputError(f"dataflow {graph.name!r} has neither alternates nor choices: nothing in it can be switched")
    found = []
    for time in sorted(times):
        chosen = sorted(draw.sample(elements, draw.randint(1, len(elements))))
        plan = [_other(graph, composition, element, draw) for element in chosen]
        composition = switched(composition, plan)
        found.append((time, tuple(plan)))
    return found


def _other(graph: Graph, now: Composition, element: str, draw: random.Random) -> Switch:
    if element in graph.choices:
        return SwitchEdge(element, draw.choice([each for each in graph.choices[element] if each != now.choices[element]]))
    names = [each.name for each in graph.by_name[element].alternates]
    return SwitchAlternate(element, draw.choice([each for each in names if each != now.alternates[element]]))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


RATE, SECONDS = 350.0, 120.0  # records/s that use two thirds of the hosts, and their duration
BATCH = 1.0  # least seconds between micro-batches: the target of Spark's governor
SWITCHES, FEWER = 20, 6
COSTS = {"arima": 2e-3, "regression_tree": 3e-3}  # core-seconds of a forecast; COST for other methods
COST = 1e-3
HOST = HostType("station", cores=1.0, slots=2)
HOSTS = 2
SEED = 1


def nothing(*_: object) -> None:
    """Do nothing: operators are simulated only."""


def application() -> Graph:
    """Return `examples/demand_response.py`'s dataflow, with a forecast per record and no comparison."""
    flow = Dataflow("demand_response")
    meters = flow.source(None, load=constant(RATE, SECONDS), name="meters", cores=0)
    integrated = meters.map(
        [Alternate("integrate", nothing, cost=COST, selectivity=1.0)], returns="kw double", name="integrate"
    )
    methods = [Alternate(name, nothing, cost=COSTS.get(name, COST), selectivity=1.0) for name in METHODS]
    forecasts = (
        integrated.durable().key_by("customer").apply(methods, returns="kw double", state="past binary", name="forecast")
    )
    total = [Alternate("demand", nothing, cost=COST, selectivity=1.0)]
    demand = forecasts.durable().key_by("hour").apply(total, returns="kw double", state="kw double", name="demand")
    peak = demand.choice("demand_response")
    peak.nothing(name="nothing")
    peak.map([Alternate("curtail", nothing, cost=COST, selectivity=1.0)], returns="kw double", name="curtail").sink(None)
    return flow.graph


def consequences(quick: bool = False) -> tuple[Consequence, ...]:
    graph = application()
    number = FEWER if quick else SWITCHES
    draw = random.Random(SEED)
    times = [draw.uniform(0.1, 0.9) * SECONDS for _ in range(number)]
    return consistency_table(
        lay_out(graph),
        [HOST],
        {},
        switches_at_random(graph, times, SEED),
        hosts=HOSTS,
        settings=Settings(batch_interval=BATCH),
        seconds=2 * SECONDS,
    )


def figures_of(rows: Sequence[Consequence]) -> dict[str, dict[str, float]]:
    return {
        str(row.mode): {
            "update latency, s": round(row.latency, 3),
            "in force after, s": round(row.delay, 3),
            "mixed records": round(row.mixed_records, 1),
            "updates": len(row.latencies),
        }
        for row in rows
    }


def table_of(rows: Sequence[Consequence]) -> Table:
    header = ("mode", "update latency, mean, s", "in force after, mean, s", "mixed records, of all updates", "updates")
    shown = tuple(
        (
            str(row.mode), f"{row.latency:.2f}", f"{row.delay:.2f}", f"{row.mixed_records:,.0f}", str(len(row.latencies)),
        )
        for row in rows
    )  # fmt: skip
    return Table("Update latency against consistency, simulated (p. 50 gives no figures)", header, shown)

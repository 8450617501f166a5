"""What other fleets would have cost: as unit rules, and beside the same fleets really simulated."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from elastream.core.hosts import Billing, HostType
from elastream.core.observation import MicroBatch
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Kind, Operator
from elastream.evaluation.compare import _best_constant, scene_of
from elastream.evaluation.comparison import Comparison, Peak
from elastream.evaluation.trials import simulated, tried
from elastream.loads import constant, sine, steps
from elastream.policies.horizon.policy import Horizon
from elastream.policies.rivals.dra import Dra
from elastream.policies.savings import (
    CONSTANT,
    DYNAMIC,
    PEAK,
    ConstantFleets,
    Sample,
    Savings,
    Tasks,
    savings_of,
    savings_text,
)
from elastream.policies.static import Static
from elastream.recording.recorder import Collector
from elastream.settings import SimulateSettings
from support.example_run import example_recording, play
from support.simulated_plants import between_ends

HOST = HostType("small", cores=2, memory=4000, price=0.1 / 3600, billing=Billing(1, 60), start=30, stop=5)
TARGET_S = 5.0


def graph() -> Graph:
    work = Operator("work", Kind.KEYED, (Alternate("work", cost=0.02),), cores=1.0, memory=500, key=("word",))
    return between_ends(work, name="case")


def sample(time: float, rate: float, *, batch: float = 1.0, tasks: int = 64, capacity: float = 8.0) -> Sample:
    """Return a second in which records of 10 ms each arrive, and one batch has taken them."""
    batches = (MicroBatch("s", time - batch, batch, rate),) if rate else ()
    return Sample(time, rate, rate, rate / 100, capacity, True, -math.inf, math.nan, 8, Tasks(tasks, 0.5), batches)


def fleets_after(rates: list[float], kind: HostType = HOST, target: float | None = 2.0) -> dict[str, object]:
    savings = Savings(target)
    for number, rate in enumerate(rates, start=1):
        savings.add(sample(float(number), rate), kind, 1_000, governed=False)
    return {each.name: each for each in savings.fleets((kind,), float(len(rates)))}


def test_late_records_of_constant_fleets_are_those_of_a_queue():
    rng = np.random.default_rng(7)
    rates = rng.uniform(0.0, 500.0, 300)
    fleets = ConstantFleets()
    for rate in rates:
        fleets.add(float(rate), 1.0, 2.0)
    for allowance in (0.01, 0.2, 0.5):
        capacity = fleets.least(allowance)
        shares = []
        for each in (capacity, capacity / 1.021):
            waiting = late = 0.0
            for rate in rates:
                waiting = max(0.0, waiting + rate - each)
                late += rate * (waiting > 2.0 * each)
            shares.append(late / rates.sum())
        assert shares[0] <= allowance < shares[1]


def test_constant_fleet_costs_less_than_one_at_the_peak():
    fleets = fleets_after([100.0] * 300 + [400.0] * 300)
    peak, best = fleets[PEAK], fleets[CONSTANT]
    assert peak.hosts == math.ceil(4.0 / (2 * 0.7))
    assert 2 <= best.hosts <= peak.hosts
    assert best.cost == best.hosts * HOST.billing.units(600.0) * HOST.price


@pytest.mark.parametrize(("queries", "hosts"), [("a", 3), ("ab", 2)], ids=["one", "several"])
def test_several_queries_fill_each_others_idle_time(queries, hosts):
    savings = Savings(2.0)
    for number in range(1, 300):
        batches = tuple(MicroBatch(query, number - 1.0, 1.0, 390.0) for query in queries)
        savings.add(replace(sample(float(number), 390.0), comparable=False, batches=batches), HOST, 100, governed=False)
    (best,) = (each for each in savings.fleets((HOST,), 300.0) if each.name == CONSTANT)
    assert best.hosts == hosts


def test_dynamic_allocation_grows_while_tasks_wait_and_shrinks_when_idle():
    busy = fleets_after([800.0] * 200)[DYNAMIC]
    idle = fleets_after([800.0] * 200 + [0.0] * 600)[DYNAMIC]
    assert busy.cost > 200 * 8 * HOST.price, "hosts for all tasks at once"
    assert idle.cost < busy.cost + (60 + 600) * 10 * HOST.price, "and one host after a minute without tasks"


def test_unknown_costs_are_absent():
    assert fleets_after([math.nan] * 20) == {}
    assert CONSTANT not in fleets_after([100.0] * 20, target=None)
    free = HostType("free", cores=2, price=0.0)
    savings = Savings(2.0)
    savings.add(sample(1.0, 100.0), free, 10, governed=False)
    assert savings_text(savings.fleets((free,), 1.0)) == ""
    assert Savings(2.0).fleets((), 1.0) == ()


def test_what_is_kept_of_a_run_goes_on_as_the_run_itself():
    whole, first = Savings(2.0), Savings(2.0)
    rates = [100.0 + 50 * math.sin(number / 9) for number in range(400)]
    for number, rate in enumerate(rates, start=1):
        whole.add(sample(float(number), rate), HOST, 100, governed=False)
        if number == 150:
            first = Savings.of_json(2.0, json.loads(json.dumps(whole.to_json(), allow_nan=False)))
        elif number > 150:
            first.add(sample(float(number), rate), HOST, 100, governed=False)
    assert first.fleets((HOST,), 400.0) == whole.fleets((HOST,), 400.0)


def test_load_of_a_resumed_run_begins_with_its_driver():
    def best(since: float) -> float:
        savings = Savings(2.0, since)
        for number in range(1, 1000):
            rate = 300.0 if number == 1 else 40.0  # a backlog is worked off
            savings.add(sample(since + number, rate), HOST, 100, governed=False)
        return next(each.hosts for each in savings.fleets((HOST,), since + 1000.0) if each.name == CONSTANT)

    assert best(10_000.0) == best(0.0)


def test_a_recording_has_the_fleets_of_the_live_run():
    live, collector = Savings(2.0), Collector()

    class Watch:
        def started(self, header): ...
        def decided(self, decision): ...
        def ended(self, ending): ...
        def observed(self, observation):
            live.observed(observation)
            self.types, self.time = tuple(observation.context.host_types.values()), observation.time

    watch = Watch()
    play(watch)
    play(collector)
    recorded = savings_of(example_recording(), Savings(2.0))
    assert (
        savings_text(recorded.fleets(watch.types, watch.time)) == savings_text(live.fleets(watch.types, watch.time)) != ""
    )


@pytest.mark.parametrize(
    "load",
    [
        steps(500, 1500, 500, every="150s"),
        pytest.param(sine(200, 1600, "20min").lasting("20min"), marks=pytest.mark.slow),
        pytest.param(steps(300, 300, 2000, 300, 1000, 300, every="3min"), marks=pytest.mark.slow),
        pytest.param(constant(1000, "15min"), marks=pytest.mark.slow),
    ],
    ids=["steps", "sine", "spikes", "constant"],
)
def test_fleets_cost_what_they_cost_when_really_simulated(load):
    settings = SimulateSettings(
        host_types=[HOST], load=load, fused=True, target_latency=TARGET_S, target=0.99, max_hosts=60
    )
    scene, _ = scene_of(graph(), {"horizon": Horizon()}, settings)
    savings, last = Savings(TARGET_S), []

    def look(observation):
        savings.observed(observation)
        last[:] = [observation]

    plant, policy = scene.set_up(Horizon())
    simulated(plant, policy, period=scene.period, until=scene.seconds, look=look, figures=False)
    fleets = {each.name: each for each in savings.fleets((HOST,), last[0].time)}
    comparison = Comparison(graph(), scene.seconds, scene.records, 0.99, (), "", TARGET_S)
    best = _best_constant(scene, comparison, Peak(int(fleets[CONSTANT].hosts), "small", 0.0, ""))
    peak = tried(scene, "peak", Static(int(fleets[PEAK].hosts)), lambda _: None)
    dynamic = tried(scene, "dra", Dra(), lambda _: None)
    print({name: str(each) for name, each in fleets.items()}, peak.cost, best.hosts, best.cost, dynamic.cost)
    assert fleets[PEAK].cost == pytest.approx(peak.cost, rel=0.1)
    assert fleets[CONSTANT].cost == pytest.approx(best.cost, rel=0.1, abs=fleets[CONSTANT].error)
    assert fleets[DYNAMIC].cost == pytest.approx(dynamic.cost, rel=0.1)

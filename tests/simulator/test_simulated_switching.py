"""Switches in simulation: when each query takes them, which records meet both compositions, and what is refused."""

import itertools
import math
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elastream.core.action import SetParallelism, Status, SwitchAlternate, SwitchEdge
from elastream.core.composition import Consistency
from elastream.core.hosts import Billing, HostType
from elastream.core.metrics import Metric
from elastream.core.wording import gist
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import DomainSignal, Fold, Nothing, Trace
from elastream.dataflow.functions import Loop
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.errors import DataflowError, InputError
from elastream.policies.threshold import Threshold
from elastream.simulator import Emissions, Settings, Travel, make_plant
from elastream.simulator.microbatch import FusedSegment
from elastream_papers.tasks import TaskSettings
from support.policy_run import driven
from support.property_examples import examples
from support.simulated_plants import Queues, between_ends, operator, queueing

BIG = HostType("big", cores=8.0, slots=16)
TWO = [SwitchAlternate("first", "b"), SwitchAlternate("last", "b")]


def two_ways(name, cost=0.002, other=0.001, selectivity=1.0) -> Operator:
    """An operator with the alternates a and b."""
    return Operator(name, Kind.TRANSFORM, (Alternate("a", cost=cost), Alternate("b", cost=other, selectivity=selectivity)))


def queries(between=1) -> Graph:
    """Source > first > ... > last > sink: a query for first and one for last, and `between` others, over durable edges."""
    middle = [operator(f"middle{n}", 0.002) for n in range(between)]
    operators = [Operator("source", Kind.SOURCE), two_ways("first"), *middle, two_ways("last"), Operator("sink", Kind.SINK)]
    names = [each.name for each in operators]
    edges = [Edge(a, b, durable=None if a == "source" or b == "sink" else "parquet") for a, b in itertools.pairwise(names)]
    return Graph("queries", tuple(operators), tuple(edges))


def branching(split, branch, durable=None) -> Graph:
    """Source > split > either `branch` > sink, or nothing, which is chosen first."""
    ends = Operator("source", Kind.SOURCE), Operator("sink", Kind.SINK), Operator("nothing", Kind.SINK, writes=Nothing())
    edges = (
        Edge("source", split.name),
        Edge(split.name, "nothing", choice="way"),
        Edge(split.name, branch.name, choice="way", durable=durable),
        Edge(branch.name, "sink"),
    )
    return Graph("sleeps", (ends[0], split, branch, *ends[1:]), edges)


def fused(graph, mode=Consistency.BATCH, rate=200, seconds=60, hosts=1, **options):
    given = Settings(monitor=1.0, batch_overhead=0.2, consistency=mode, host_start_spread=0.0)
    load = Emissions.every(1.0, [rate] * seconds, spread=True)
    return make_plant(
        lay_out(graph), host_types=[BIG], hosts=hosts, settings=given,
        loads={source.name: load for source in graph.sources}, **options,
    )  # fmt: skip


def apart(graph, mode=Consistency.BATCH, rate=100, seconds=60, queues=Queues.ITEMS, **options):
    given = queueing(queues, monitor=5.0, consistency=mode, latency=0.0)
    load = Emissions.every(1.0, [rate] * seconds, spread=True)
    return make_plant(
        lay_out(graph, chained=False), host_types=[BIG], hosts=2,
        loads={source.name: load for source in graph.sources}, **given, **options,
    )  # fmt: skip


def finish(plant, most=600.0):
    while not plant.finished and plant.time < most:
        plant.advance(plant.time + 1.0)
    assert plant.finished
    return plant


BOTH = pytest.mark.parametrize("build", [fused, apart], ids=["fused", "apart"])
MODES = pytest.mark.parametrize("mode", list(Consistency))


@BOTH
@MODES
def test_a_plan_of_switches_is_one_version_in_effect_everywhere(build, mode):
    plant = build(queries(), mode)
    plant.advance(20.5)
    before = plant.observe()
    assert [outcome.status for outcome in plant.switch(TWO)] == [Status.ACCEPTED] * 2
    after = plant.observe()
    assert after.composition.version == before.composition.version + 1
    assert dict(after.composition.alternates)["first"] == dict(after.composition.alternates)["last"] == "b"
    assert {each.alternates["first"] for each in after.effective.values()} == {"a"}, "nothing was processed under it yet"
    plant.advance(40.0)
    effective = plant.observe().effective
    assert set(effective) == {segment.name for segment in plant.context.layout.segments}
    assert all(each == after.composition for each in effective.values())
    assert [outcome.status for outcome in plant.switch(TWO)] == [Status.DONE] * 2


@BOTH
@MODES
def test_no_record_is_lost_or_doubled_by_switches(build, mode):
    plant = build(queries(), mode)
    for time in range(2, 40, 3):
        plant.advance(float(time))
        plant.switch([SwitchAlternate("first", "ab"[time % 2]), SwitchAlternate("last", "ab"[time // 3 % 2])])
    finish(plant)
    assert plant.result().committed == pytest.approx((200 if build is fused else 100) * 60)


def test_running_batches_end_under_their_composition_and_new_ones_switch():
    graph = queries(between=0)
    plant = fused(graph, rate=100)
    plant.advance(20.5)
    segment = plant.network.segments["first" if "first" in plant.network.segments else "source"]
    assert segment.marks[5], "a batch is in work"
    plant.switch([SwitchAlternate("first", "b")])
    version = plant.composition.version
    in_work_until = float(segment.state[1])
    plant.advance(in_work_until + 1e-3)
    assert plant.observe().effective["source"].version < version
    plant.advance(in_work_until + 2.0)
    assert plant.observe().effective["source"].version == version
    (update,) = plant.updates
    assert update.in_force > update.until >= in_work_until - 1e-9


@contextmanager
def crossing():
    """(born, epoch under which the query of each operator processed it) of everything that queries send each other."""
    epochs, run = {}, FusedSegment.run

    def noted(segment, pool, turn):
        parts = run(segment, pool, turn)
        crossed = epochs.setdefault(segment.segment.name, [])
        crossed.extend((born, part.demand.epoch) for part in parts for born in part.done.born.tolist())
        return parts

    with mock.patch.object(FusedSegment, "run", noted):
        yield epochs


def epochs_by_birth(noted):
    """Epoch by time of birth, where a query cut none of its rows."""
    return {round(born, 6): epoch for born, epoch in noted}


@pytest.mark.parametrize("mode", [Consistency.WAVE, Consistency.DRAIN])
@settings(max_examples=examples(8), deadline=None)
@given(times=st.lists(st.floats(1.0, 50.0), min_size=1, max_size=6, unique=True), cost=st.sampled_from([0.002, 0.008]))
def test_in_waves_and_drained_every_record_meets_one_composition(mode, times, cost):
    graph = queries(between=1)
    *others, sink = (operator("middle0", cost) if each.name == "middle0" else each for each in graph.operators)
    # The last query, too, must list what it has done: another one reads it.
    operators = (*others, operator("end", 0.0), sink)
    edges = (*graph.edges[:-1], Edge("last", "end", durable="parquet"), Edge("end", "sink"))
    plant = fused(Graph("longer", operators, edges), mode)
    with crossing() as noted:
        for number, time in enumerate(sorted(times)):
            plant.advance(time)
            plant.switch([SwitchAlternate("first", "ba"[number % 2]), SwitchAlternate("last", "ba"[number % 2])])
        finish(plant, most=4000.0)
    first, last = epochs_by_birth(noted["source"]), epochs_by_birth(noted["last"])
    assert first.keys() == last.keys()
    assert first == last
    assert [update.mixed for update in plant.updates] == [0.0] * len(times)


def test_rewiring_mixes_items_under_way_and_batches_only_across_queries():
    mixed = {}
    for mode in Consistency:
        plant = fused(queries(between=2), mode)
        plant.advance(20.5)
        plant.switch(TWO)
        finish(plant)
        (update,) = plant.updates
        mixed[mode] = update.mixed
    assert mixed[Consistency.WAVE] == mixed[Consistency.DRAIN] == 0
    assert mixed[Consistency.REWIRED] > mixed[Consistency.BATCH] > 0


def test_within_one_query_a_batch_mixes_nothing():
    plant = fused(between_ends(two_ways("first"), two_ways("last")))
    plant.advance(20.5)
    plant.switch(TWO)
    finish(plant)
    assert plant.updates[0].mixed == 0
    assert plant.updates[0].in_force < 20.5 + 2.0, "in the second batch at the latest"


@BOTH
def test_the_more_consistent_an_update_is_the_longer_it_takes(build):
    latency = {}
    for mode in Consistency:
        plant = build(queries(between=2), mode)
        plant.advance(20.5)
        plant.switch(TWO)
        finish(plant)
        (update,) = plant.updates
        latency[mode] = (update.latency, update.in_force - update.requested)
    assert latency[Consistency.REWIRED][0] == 0
    assert latency[Consistency.BATCH] <= latency[Consistency.WAVE] <= latency[Consistency.DRAIN]
    assert latency[Consistency.WAVE][0] > 0


def test_draining_a_dataflow_holds_only_its_sources():
    plant = fused(queries(between=2), Consistency.DRAIN)
    plant.advance(20.5)
    plant.switch(TWO)
    plant.advance(21.0)
    held = plant.network.segments["source"]
    assert held.later, "what is due waits at the source"
    assert plant.observe().operators.value("source", Metric.ARRIVAL_RATE) == pytest.approx(200, rel=0.2)
    finish(plant)
    assert plant.result().committed == pytest.approx(200 * 60)


def test_a_query_without_records_keeps_a_switch_accepted():
    plant = fused(branching(operator("split", 0.001), two_ways("asleep"), durable="parquet"))
    plant.advance(10.0)
    (outcome,) = plant.switch([SwitchAlternate("asleep", "b")])
    plant.advance(20.0)
    assert outcome.status is Status.ACCEPTED
    observation = plant.observe()
    assert "asleep" not in observation.effective
    assert math.isnan(plant.updates[0].in_force)
    assert observation.operators.value("split", Metric.EMITTED_RATE) != 0
    assert "asleep.b" not in observation.alternates
    (wake,) = plant.switch([SwitchEdge("way", "asleep")])
    assert wake.status is Status.ACCEPTED
    plant.advance(30.0)
    awake = plant.observe()
    assert awake.effective["asleep"].alternates["asleep"] == "b"
    assert awake.alternates.value("asleep.b", Metric.SERVICE_TIME) == pytest.approx(0.001)
    assert plant.result().operators["asleep"].done == pytest.approx(200 * 10, rel=0.15), "nothing reached it before"


@pytest.mark.parametrize("queues", Queues)
def test_a_branch_that_sleeps_costs_nothing_and_wakes(queues):
    plant = apart(branching(two_ways("split"), operator("peak", 0.004)), queues=queues)
    plant.advance(20.0)
    assert plant.observe().operators.value("peak", Metric.BUSY_CORES) == 0
    plant.switch([SwitchEdge("way", "peak")])
    plant.advance(40.0)
    awake = plant.observe()
    assert awake.operators.value("peak", Metric.BUSY_CORES) == pytest.approx(0.4, rel=0.2)
    plant.switch([SwitchEdge("way", "nothing")])
    plant.advance(50.0)
    assert plant.observe().operators.value("peak", Metric.BUSY_CORES) == pytest.approx(0, abs=1e-9)
    assert plant.result().operators["peak"].done == pytest.approx(20 * 100, rel=0.02)


def test_a_branch_that_wakes_under_a_heavy_load_travels_in_cohorts():
    plant = make_plant(
        lay_out(branching(operator("split", 1e-6), operator("rare", 1e-6)), chained=False), host_types=[BIG],
        settings=Settings(travel=Travel.COHORTS), loads={"source": Emissions.every(1.0, [1_000_000] * 30, spread=True)},
    )  # fmt: skip
    assert {"split", "rare"} <= plant.network.crowded


@BOTH
def test_a_refused_switch_does_not_hold_up_the_rest(build):
    unknown = Operator("first", Kind.TRANSFORM, (Alternate("a", cost=0.001), Alternate("unmeasured")))
    plant = build(between_ends(unknown, two_ways("last")))
    plant.advance(10.0)
    refused, taken = plant.switch([SwitchAlternate("first", "unmeasured"), SwitchAlternate("last", "b")])
    assert refused.status is Status.REFUSED
    assert "has no cost for alternate 'unmeasured'" in refused.reason
    assert taken.status is Status.ACCEPTED
    assert plant.apply(SwitchAlternate("first", "nonsense")).status is Status.REFUSED
    plant.advance(20.0)
    assert plant.observe().composition.alternates == {"first": "a", "last": "b"}


@BOTH
def test_another_parallelism_is_no_switch_and_waits_for_no_wave(build):
    plant = build(queries(), Consistency.DRAIN)
    plant.advance(10.0)
    scalable = sorted(plant.context.scalable)[0]
    assert plant.apply(SetParallelism(scalable, 3)).succeeded
    assert plant.updates == []
    plant.advance(12.0)
    assert plant.observe().composition.parallelism[scalable] == 3
    assert not plant.network.changing
    assert all(each.parallelism[scalable] == 3 for each in plant.observe().effective.values())


@BOTH
def test_each_alternate_has_its_own_cost_and_selectivity(build):
    plant = build(between_ends(two_ways("work", cost=0.004, other=0.001, selectivity=0.5)))
    plant.advance(20.0)
    before = plant.observe().alternates
    assert before.ids == ("work.a",)
    plant.switch([SwitchAlternate("work", "b")])
    plant.advance(45.0)
    after = plant.observe().alternates
    for row, cost, selectivity in (("work.a", 0.004, 1.0), ("work.b", 0.001, 0.5)):
        assert after.value(row, Metric.SERVICE_TIME) == pytest.approx(cost, rel=0.1)
        assert after.value(row, Metric.SELECTIVITY) == pytest.approx(selectivity, rel=0.1)


@BOTH
def test_a_signal_follows_its_trace_when_records_reach_its_branch(build):
    trace = Trace((0.0, 15.0), (1.0, 2.0))
    graph = Graph(
        "signal",
        (
            Operator("source", Kind.SOURCE),
            two_ways("work"),
            Operator("sink", Kind.SINK),
            Operator("error", Kind.SINK, writes=DomainSignal("error", Fold.MEAN, "e", trace=trace)),
            Operator("untold", Kind.SINK, writes=DomainSignal("untold", Fold.COUNT)),
        ),
        (Edge("source", "work"), Edge("work", "sink"), Edge("work", "error"), Edge("work", "untold")),
    )
    plant = build(graph, seconds=30)
    assert plant.observe().signals == {}
    plant.advance(10.0)
    early = plant.observe().signals
    assert set(early) == {"error"}, "a signal without a trace has no value in simulation"
    assert early["error"].value == 1.0
    assert 5.0 < early["error"].time <= 10.0
    plant.advance(25.0)
    assert plant.observe().signals["error"].value == 2.0
    plant.advance(60.0)
    late = plant.observe().signals["error"]
    assert late.time < 36.0, "no record came any more"
    assert plant.result().committed == pytest.approx((200 if build is fused else 100) * 30), "a signal is no result"


def test_waves_need_an_order_of_queries_and_separate_records():
    circle = Graph(
        "circle",
        (
            Operator("source", Kind.SOURCE),
            *(operator(name, 0.001) for name in "abc"),
            Operator("sink", Kind.SINK),
        ),
        (
            Edge("source", "a"),
            Edge("a", "b", durable="parquet"),
            Edge("b", "c", durable="parquet"),
            Edge("a", "sink"),
            Edge("c", "sink"),
        ),
    )
    assert lay_out(circle).circular
    for mode in (Consistency.WAVE, Consistency.DRAIN):
        with pytest.raises(InputError, match="in a circle"):
            fused(circle, mode)
    with pytest.raises(InputError, match="keep no records apart"):
        TaskSettings(consistency=Consistency.WAVE)


@st.composite
def trees(draw):
    """One source, and one to five operators with two alternates each, merged and split at random."""
    count = draw(st.integers(1, 5))
    operators, edges = [Operator("source", Kind.SOURCE)], []
    for number in range(count):
        cost = draw(st.sampled_from([0.0005, 0.002]))
        feeding = draw(st.sets(st.sampled_from([each.name for each in operators]), min_size=1, max_size=2))
        operators.append(two_ways(f"o{number}", cost, 2 * cost, draw(st.sampled_from([0.5, 1.0]))))
        durable = draw(st.sampled_from([None, "parquet"]))
        edges += [Edge(name, f"o{number}", durable=durable if name != "source" else None) for name in sorted(feeding)]
    leaves = {each.name for each in operators} - {edge.source for edge in edges}
    operators += [Operator(f"out of {name}", Kind.SINK) for name in sorted(leaves)]
    edges += [Edge(name, f"out of {name}") for name in sorted(leaves)]
    return Graph("tree", tuple(operators), tuple(edges))


@settings(max_examples=examples(40), deadline=None)
@given(
    graph=trees(),
    mode=st.sampled_from(list(Consistency)),
    build=st.sampled_from([fused, apart]),
    plans=st.lists(st.tuples(st.floats(1.0, 25.0), st.integers(0, 31)), min_size=1, max_size=5),
)
def test_switches_end_in_effect_and_no_record_stays_behind(graph, mode, build, plans):
    try:
        plant = build(graph, mode, rate=60, seconds=30)
    except (DataflowError, InputError):  # its queries feed each other, or one itself
        assume(False)
    names = [each.name for each in graph.operators if len(each.alternates) > 1]
    for time, bits in sorted(plans):
        plant.advance(time)
        outcomes = plant.switch([SwitchAlternate(name, "ab"[bits >> n & 1]) for n, name in enumerate(names)])
        assert all(outcome.succeeded for outcome in outcomes)
    finish(plant)
    plant.advance(plant.time + 10.0)
    observation = plant.observe()
    assert not plant.network.changing
    assert np.nansum(observation.operators.column(Metric.BACKLOG)) == pytest.approx(0, abs=1e-3)
    for effective in observation.effective.values():
        assert effective.version <= observation.composition.version
    for update in plant.updates:
        assert update.latency >= 0
        assert update.mixed >= 0
        assert mode in (Consistency.BATCH, Consistency.REWIRED) or update.mixed == 0


def sized(graph, build, rates, max_hosts):
    """A plant that Threshold sizes."""
    return make_plant(
        lay_out(graph, chained=build == "fused"),
        host_types=[HostType("one", cores=1.0, price=1.0, billing=Billing(1.0, 60.0), start=20.0)],
        loads={"source": Emissions.every(1.0, rates, spread=True)},
        settings=Settings(monitor=1.0 if build == "fused" else 5.0, travel=Travel.COHORTS),
        max_hosts=max_hosts,
        target_latency=20.0,
    )


@pytest.mark.parametrize("build", ["fused", "apart"])
def test_hosts_leave_while_a_branch_sleeps_and_return_when_it_wakes(build):
    plant = sized(branching(operator("split", 0.002, 0.5), operator("peak", 0.04, 0.5), "parquet"), build, [200] * 1200, 20)
    ways, hosts = {300.0: "peak", 600.0: "nothing", 900.0: "peak"}, []
    for observation, _ in driven(plant, Threshold(), range(5, 1200, 5)):
        hosts.append(len(observation.leases))
        if way := ways.get(observation.time):
            plant.switch([SwitchEdge("way", way)])
    spans = ((150, 295), (450, 595), (750, 895), (1050, 1190))
    asleep, awake, again, back = (max(hosts[since // 5 : until // 5]) for since, until in spans)
    assert max(asleep, again) <= 2
    # Fused, the batch that runs while hosts come takes a minute, so that records are late and more hosts are leased.
    assert 6 <= min(awake, back) <= max(awake, back) <= (20 if build == "fused" else 12)
    assert plant.observe().operators.value("source" if build == "fused" else "peak", Metric.BACKLOG) < 200 * 20


@pytest.mark.parametrize(
    ("build", "said"), [("fused", "# are needed for #/s"), ("apart", "there is no room for # instances of work")]
)
def test_a_limit_of_hosts_is_reported_once_the_load_needs_more(build, said):
    plant = sized(between_ends(operator("work", 0.04, 0.5)), build, [20] * 300 + [100] * 300, 2)
    heard = {True: set(), False: set()}
    for observation, plan in driven(plant, Threshold(), range(5, 600, 5)):
        heard[observation.time < 300] |= {gist(remark) for remark in plan.remarks}
    assert heard[True] == set()
    assert any(remark.startswith("max_hosts: at most # hosts may be leased") and said in remark for remark in heard[False])


@pytest.mark.parametrize("make", [fused, apart])
def test_ports_get_their_fractions_and_loops_cost_what_they_declare(make):
    flow = Dataflow("ways")
    ports = flow.source(None).switch([Alternate("by", str, cost=0.001)], {"hot": 0.25, "cold": 0.75}, name="way")
    cooled = ports["hot"].map([Alternate("cool", Loop(str, bool, 9), cost=0.02)], returns="n long", name="cool")
    cooled.merge(ports["cold"]).sink(None)
    result = finish(make(flow.graph, rate=40)).result()
    assert result.committed == 40 * 60
    if make is apart:
        counts = {name: (each.done, each.emitted) for name, each in result.operators.items()}
        assert counts == {"way": (2400, 2400), "way_hot": (2400, 600), "way_cold": (2400, 1800), "cool": (600, 600)}
        assert result.operators["cool"].mean_duration == pytest.approx(0.02, rel=0.1)

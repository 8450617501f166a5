"""Hosts and links that vary by traces: what records meet, and what is observed of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from test_microbatches import plant as fused_plant
from test_simulated_plant_conforms import plant as words

from conformance.suite import PlantCase, conformance_suite
from elastream.core.action import LeaseHost, SetParallelism
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.core.promises import PlantKind
from elastream.errors import InputError
from elastream.loads.links import Ec2Links, LinkTrace
from elastream.loads.speeds import Ec2Speeds, SpeedTrace
from elastream.simulator import Distribution, Emissions, Service, Settings, SimulatedPlant, make_plant
from elastream_papers.tasks import TaskSettings
from support.simulated_plants import Queues, chain, one_queue, operator, queueing, run_out

EXACT = {name: Service(Distribution.DETERMINISTIC) for name in ("work", "first", "second")}
FLAT = SpeedTrace(np.ones((3, 4)), 7.0)


def linked(longer=1.0, width=1.0, rate=5.0, hosts=2, **given) -> SimulatedPlant:
    """First > second on a host each, 100 bytes a record; after a minute their link is `longer` and has that `width`."""
    trace = LinkTrace(np.array([[1.0, longer]]), np.array([[1.0, width]]), 60.0)
    plant = make_plant(
        chain(operator("first", 0.01), operator("second", 0.01)),
        host_types=[HostType("one", cores=1, bandwidth=1000.0)],
        loads={"source": Emissions.every(1.0, [rate] * 180)},
        settings=Settings(**{"services": EXACT, "record_bytes": {"first": 100.0}, "link_trace": trace, **given}),
        hosts=2,
    )
    for number in range(3, hosts + 1):
        plant.apply(LeaseHost(f"h{number}", "one"))
    return plant


def test_a_link_that_grows_longer_delays_records_from_that_slot_on():
    plant = linked(longer=3.0, rate=1, latency=1.0)
    plant.advance(60.0)
    assert plant.observe().overall(Metric.LATENCY) == pytest.approx(1.0 + 0.1 + 0.02)  # and 0.1 s on the link
    plant.advance(90.0)
    assert plant.observe().overall(Metric.LATENCY) == pytest.approx(3.0 + 0.1 + 0.02, abs=0.3)


def test_a_link_that_narrows_passes_fewer_records_from_that_slot_on():
    plant = linked(width=0.2)
    plant.advance(60.0)
    assert plant.observe().operators.value("second", Metric.PROCESSED_RATE) == pytest.approx(5.0)
    plant.advance(120.0)
    assert plant.observe().operators.value("second", Metric.PROCESSED_RATE) == pytest.approx(2.0, rel=0.05)


def test_within_a_host_nothing_travels_whatever_links_do():
    trace = LinkTrace(np.full((1, 1), 50.0), np.full((1, 1), 0.001))
    plant = make_plant(
        chain(operator("first", 0.01), operator("second", 0.01)),
        host_types=[HostType("two", cores=2, bandwidth=1000.0)],
        loads={"source": Emissions.every(1.0, [1] * 60)},
        settings=Settings(services=EXACT, record_bytes={"first": 100.0}, latency=1.0, link_trace=trace),
    )
    plant.advance(60.0)
    assert plant.observe().overall(Metric.LATENCY) == pytest.approx(0.02)


def test_only_links_between_hosts_of_neighbouring_operators_are_observed():
    plant = linked(longer=3.0, width=0.2, hosts=3, latency=1.0)
    plant.advance(60.0)
    links = plant.observe().links
    assert (links.value("h1>h2", Metric.NETWORK_LATENCY), links.value("h2>h1", Metric.BANDWIDTH)) == (3.0, 200.0)
    for pair in ("h1>h3", "h3>h2"):
        assert math.isnan(links.value(pair, Metric.NETWORK_LATENCY))
        assert math.isnan(links.value(pair, Metric.BANDWIDTH))
    plant.apply(SetParallelism("second", 2, on=("h3",)))
    plant.advance(75.0)
    links = plant.observe().links
    assert links.value("h1>h3", Metric.NETWORK_LATENCY) == 3.0, "it has an instance now, and the pairs share a row"
    assert math.isnan(links.value("h2>h3", Metric.NETWORK_LATENCY)), "instances of one operator send each other nothing"


def test_without_a_trace_links_are_known_as_declared():
    plant = linked(hosts=3, link_trace=None)
    plant.advance(15.0)
    assert set(plant.observe().links.column(Metric.BANDWIDTH).tolist()) == {1000.0}


@pytest.mark.parametrize("queues", Queues)
def test_hosts_that_keep_their_speed_under_a_trace_are_as_without_one(queues):
    def run(trace):
        given = queueing(queues, services={"work": Service()}, speed_trace=trace)
        plant = one_queue(np.arange(1000) * 0.05, 0.2, 5, limit=0.3, **given)
        return run_out(plant, step=7.0, limit=100.0).result()

    flat, none = run(FLAT), run(None)
    assert flat.operators["work"].mean_duration == pytest.approx(none.operators["work"].mean_duration, rel=0.01)
    assert flat.compliance(1) == pytest.approx(none.compliance(1), abs=0.01)


def test_a_speed_changes_at_its_slot_at_any_monitoring_period():
    def mean(monitor):
        given = Settings(services=EXACT, speed_trace=SpeedTrace(np.array([[1.0, 0.5]]), 60.0), monitor=monitor)
        plant = one_queue(np.arange(0.0, 120.0, 5.0), 1.0, settings=given, limit=1.5)
        plant.advance(600.0)
        return plant.result().operators["work"].mean_duration

    assert mean(600.0) == mean(15.0) == pytest.approx(1.5)


def test_micro_batches_on_varying_hosts_ignore_how_time_is_cut():
    trace = SpeedTrace(np.array([[1.0, 0.4, 0.7]]), 20.0)

    def run(step):
        plant = fused_plant(settings=Settings(monitor=1.0, speed_trace=trace))
        return run_out(plant, step=step, limit=120.0).result()

    long, short = run(120.0), run(1.0)
    assert long.committed == pytest.approx(short.committed)
    assert long.compliance(1) == pytest.approx(short.compliance(1), abs=1e-9)


def test_links_that_vary_are_refused_where_no_link_is_simulated():
    trace = Ec2Links(pairs=1).over(60.0)
    with pytest.raises(InputError, match="no trace of links by pair"):
        TaskSettings(link_trace=trace)
    fused = replace(chain(operator("work", 0.1)), unchained=False)
    with pytest.raises(InputError, match="micro-batches of fused stages take no time on links"):
        make_plant(fused, host_types=[HostType("one", cores=1)], settings=Settings(link_trace=trace))


def varying() -> SimulatedPlant:
    """The plant of the other suites, on hosts and links that vary every two seconds."""
    return words(
        speed_trace=replace(Ec2Speeds(hosts=4).over(3600.0), interval=2.0),
        link_trace=replace(Ec2Links(pairs=6).over(3600.0), interval=2.0),
    )


TestVarying = conformance_suite(PlantCase("varying", varying, PlantKind.UNCHAINED, settle=30.0, examples=20))

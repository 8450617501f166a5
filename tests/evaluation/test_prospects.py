"""What a policy may know of a simulated run is what then happens in it."""

import numpy as np
import pytest

from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.dataflow.operators import Alternate, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.evaluation.trials import prospect_of
from elastream.loads import Ec2Links, SpeedWalk, constant
from elastream.policies.highest_value import HighestValue
from elastream.policies.static import Static
from elastream.policies.threshold import Threshold
from elastream.simulator import Service, Settings, make_plant
from support.simulated_plants import line

GRAPH = line(
    "g",
    Operator("in", Kind.SOURCE, record_bytes=1e3),
    *(Operator(name, alternates=(Alternate(name, cost=0.01),), record_bytes=1e3) for name in ("one", "two")),
    Operator("out", Kind.SINK),
)
TYPES = (HostType("a", cores=1, speed=2.0, bandwidth=1e6), HostType("b", cores=2, bandwidth=1e6))
HOUR = 3600.0


def known(**settings):
    return prospect_of(
        lay_out(GRAPH, chained=False), TYPES, {"in": constant(50, HOUR)}, Settings(monitor=60.0, **settings), seconds=HOUR
    )


def test_hosts_and_links_do_what_was_known_of_them():
    settings = {"speed_trace": SpeedWalk().over(HOUR), "link_trace": Ec2Links().over(HOUR)}
    prospect = known(**settings)
    plant = make_plant(
        lay_out(GRAPH, chained=False), hosts=["a", "a"], host_types=TYPES, loads={"in": constant(50, HOUR)},
        settings=Settings(monitor=60.0, **settings), seconds=HOUR,
    )  # fmt: skip
    checked = 0
    for time in (300.0, 900.0, 2100.0):
        plant.advance(time)
        seen = plant.observe()
        for host in seen.hosts:
            (factor,) = prospect.speeds(host, np.array([time]))
            assert seen.hosts.value(host, Metric.SPEED) == pytest.approx(2.0 * factor)
        for link in seen.links:
            (factor,) = prospect.bandwidths(link, np.array([time]))
            assert seen.links.value(link, Metric.BANDWIDTH) == pytest.approx(1e6 * factor)
            checked += 1
    assert checked


def test_what_does_not_vary_has_no_course():
    assert known().speeds is None
    assert known().bandwidths is None
    prospect = known(speed_trace=SpeedWalk().over(HOUR), link_trace=Ec2Links().over(HOUR))
    assert np.isnan(prospect.speeds("mine", np.zeros(2))).all()
    assert np.isnan(prospect.bandwidths("h1>mine", np.zeros(2))).all()


def test_static_takes_its_size_from_it_and_other_policies_nothing():
    prospect = known(services={"one": Service().costing(0.1)})
    sized = Static("peak").prepared(prospect)
    assert isinstance(sized.hosts, int)
    assert sized.hosts > Static("peak").prepared(known()).hosts
    assert HighestValue(sizing=Static("peak")).prepared(prospect).sizing == sized
    assert HighestValue().prepared(prospect) == HighestValue()
    assert Threshold().prepared(prospect) == Threshold()

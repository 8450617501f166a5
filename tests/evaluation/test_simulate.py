"""`simulate(...)` from a program or a notebook: policies side by side, as a table, as frames and as HTML."""

from dataclasses import replace

import numpy as np
import pytest

from elastream import Alternate, Dataflow, HostType, Local, simulate
from elastream.dataflow.builder import Dataflow as Flow
from elastream.dataflow.endpoints import collect, records
from elastream.errors import CloudError, InputError
from elastream.evaluation.prices import read_prices
from elastream.loads import Ec2Links, SpeedTrace, SpeedWalk, constant
from elastream.policies import Static, Threshold

SMALL = HostType("small", cores=1.0, memory=4000.0, price=1.0)


LOAD = constant("20/s", lasts="2min")
OWN_SPEEDS = """
from elastream.loads import SpeedTrace

class Slow:
    def __init__(self, part: float) -> None:
        self.part = part

    def over(self, seconds):
        return SpeedTrace([[self.part]])
"""


def flow(load=LOAD) -> Flow:
    shop = Dataflow("shop")
    lines = shop.source(records([{"value": "a b"}], "value string"), load=load)
    words = lines.map(
        [Alternate("full", str.upper, cost=0.02)], returns="value string", name="answer", max_duration="2s", cores=0.5
    )
    words.sink(collect("seen"))
    return shop


def test_policies_are_compared_and_their_figures_are_frames():
    found = simulate(flow(), [Threshold(), Static(hosts=2)], host_types=[SMALL], target_latency="5s")
    assert list(found.frame.index) == ["threshold", "static"]
    assert found.frame.loc["static", "hosts peak"] == 2
    assert found["static"].frame["arrival_rate"].max() == pytest.approx(20, rel=0.1)
    assert found["static"].frame.index[-1] == 120
    html = found._repr_html_()
    assert "<table" in html
    assert "threshold" in html
    assert found.verdict in repr(found)


def test_several_settings_of_one_policy_have_names_of_their_own():
    several = {"eager": Threshold(scale_out=0.5), "lazy": Threshold(scale_out=0.9)}
    assert [t.name for t in simulate(flow(), several, host_types=[SMALL]).trials] == ["eager", "lazy"]
    numbered = simulate(flow(), [Static(hosts=1), Static(hosts=2)], host_types=[SMALL])
    assert [trial.name for trial in numbered.trials] == ["static", "static 2"]


@pytest.mark.parametrize("partitions", [0, -3, 2.5])
def test_state_partitions_of_no_whole_number_are_refused_alone(partitions, caplog):
    counted = Dataflow("counts")
    lines = counted.source(records([{"value": "a"}], "value string"), load=LOAD)
    lines.key_by("value").count(cost=1e-5).sink(collect("seen"))
    with pytest.raises(InputError, match=r"state_partitions is .*; it must be a whole number, 1 or more"):
        simulate(counted, Threshold(), cloud=Local(SMALL, max_hosts=4), state_partitions=partitions)
    assert not caplog.records


def test_a_host_of_a_price_list_has_a_task_slot_a_core_where_stages_are_chained():
    counted = Dataflow("counts")
    lines = counted.source(records([{"value": "a"}], "value string"), load=constant("900/s", lasts="1min"))
    lines.key_by("value").count(cost=1e-3).sink(collect("seen"))
    listed = read_prices("ec2", only=["m5.large"])
    found = [
        simulate(counted, Static(hosts=2), host_types=types, fused=True, max_hosts=2).trials[0]
        for types in (listed, [replace(listed[0], slots=2)])
    ]
    assert found[0].frame.equals(found[1].frame)


def test_a_cloud_is_simulated_as_spark_runs_it_with_its_own_bounds():
    found = simulate(flow(), Threshold(), cloud=Local(SMALL, max_hosts=1), limit="30s", target_latency="5s")
    assert found.seconds == 30
    assert found.trials[0].peak_hosts == 1


def test_arguments_of_another_kind_are_refused_or_understood():
    with pytest.raises(InputError, match="thresold"):
        simulate(flow(), "thresold", host_types=[SMALL])
    with pytest.raises(InputError, match="host_types is 'small'; it must be a HostType, or several"):
        simulate(flow(), Threshold(), host_types="small")
    found = simulate(flow(), Threshold(), host_types=SMALL, load="5/s", limit="1min")
    assert found.records == 300
    with pytest.raises(KeyError, match="there is no policy 'thresold', did you mean 'threshold'"):
        found["thresold"]


def test_what_cannot_be_simulated_is_one_sentence():
    with pytest.raises(CloudError, match="give a cloud, host types, or a recorded run"):
        simulate(flow(), Threshold())
    with pytest.raises(InputError, match="never ends"):
        simulate(flow(constant("5/s")), Threshold(), host_types=[SMALL])


def test_hosts_and_links_vary_as_objects_text_or_files_say(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text("host,speed\na,0.1\n")

    def kept(**varies):
        return simulate(flow(), Static(hosts=1), host_types=[SMALL], target_latency="5s", **varies).trials[0].compliance

    assert kept() == kept(speeds=SpeedTrace(np.ones((1, 1)))) == 1.0
    assert kept(speeds=path) == kept(speeds=str(path)) < 0.5
    own = tmp_path / "mine.py"
    own.write_text(OWN_SPEEDS)
    assert kept(speeds=f"{own}:Slow:part=0.05") < 0.1
    assert kept(speeds=SpeedWalk(seed=3), links=Ec2Links()) == kept(speeds="walk:seed=3", links="ec2") > 0.9


def test_a_source_of_speeds_that_gives_something_else_is_named():
    class Mine:
        def over(self, seconds):
            return [[1.0]]

    with pytest.raises(InputError, match=r"Mine\.over returned a list, not a SpeedTrace"):
        simulate(flow(), Static(hosts=1), host_types=[SMALL], speeds=Mine())

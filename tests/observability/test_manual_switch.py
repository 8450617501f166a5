"""A switch that a person throws: a file, read by a poller, a signal of a guard, followed by a run that is simulated."""

from pathlib import Path

import pytest

from elastream.control.guarding import GuardExtension
from elastream.control.loop import Loop
from elastream.core.action import SwitchAlternate
from elastream.core.hosts import HostType
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.guards.document import load_guards
from elastream.guards.pollers import Pollers
from elastream.loads import constant
from elastream.policies.placements import Untouched
from elastream.recording.guard_log import GuardLog
from elastream.recording.recorder import Collector
from elastream.simulator import SimulatedPlant, make_plant
from support.waiting import wait_until

GRAPH = Graph(
    "grid",
    (
        Operator("meters", Kind.SOURCE),
        Operator("forecast", alternates=(Alternate("tree", cost=1e-3), Alternate("arima", cost=4e-3))),
        Operator("out", Kind.SINK, cores=0.0),
    ),
    (Edge("meters", "forecast"), Edge("forecast", "out")),
)
GUARDS = """
signals:
  manual: {kind: truth, stale: 1h, from: {file: manual.txt, every: 50ms}}
guards:
  forecast:
    tree: {when: "!manual"}
    arima: {when: manual}
"""


class Thrown:
    """The clock of a plant; at times of `script` the switch in `file` is thrown, and time goes on once that was heard."""

    def __init__(self, plant: SimulatedPlant, pollers: Pollers, file: Path, script: dict[float, str]) -> None:
        self.plant, self.pollers, self.file, self.script = plant, pollers, file, script

    def now(self) -> float:
        return self.plant.time

    def sleep_until(self, time: float) -> None:
        self.plant.clock.sleep_until(time)
        if (said := self.script.get(self.plant.time)) is not None:
            self.file.write_text(said)
        wanted = self.file.read_text() == "true"
        wait_until(lambda: "manual" in (now := self.pollers.newest()) and now["manual"].value is wanted)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "apart"])
def test_a_switch_in_a_file_is_followed_there_and_back(tmp_path: Path, fused: bool) -> None:
    switch, file = tmp_path / "manual.txt", tmp_path / "guards.yaml"
    switch.write_text("false")
    file.write_text(GUARDS)
    plant = make_plant(
        lay_out(GRAPH, chained=fused), host_types=[HostType("vm", cores=4.0)], loads={"meters": constant("50/s", "2 min")}
    )
    pollers, versions, collector = Pollers(plant.clock.now), GuardLog(), Collector()
    versions.append(load_guards(file, GRAPH).text, file, "test")
    try:
        Loop(
            plant,
            Untouched(),
            clock=Thrown(plant, pollers, switch, {20.0: "true", 40.0: "false"}),
            extensions=[GuardExtension(versions, pollers)],
            observers=[collector],
            limit=60.0,
            to_the_limit=True,
        ).run()
    finally:
        pollers.close()
    recording = collector.recording
    done = [(each.time, outcome.action) for each in recording.decisions for outcome in each.done]
    assert done == [(20.0, SwitchAlternate("forecast", "arima")), (40.0, SwitchAlternate("forecast", "tree"))]
    assert not recording.alarms
    assert [recording.compositions_at(time)[""].alternates["forecast"] for time in (20.0, 21.0, 41.0)] == [
        "tree",
        "arima",
        "tree",
    ]

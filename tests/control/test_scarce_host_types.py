"""A host type that the provider does not have: another one is leased in its place."""

from dataclasses import replace

import pytest

from elastream.core.action import Action, LeaseHost, Outcome, Status
from elastream.core.hosts import Billing, HostState, HostType
from elastream.core.observation import Observation
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, SimulatedPlant, make_plant
from elastream_papers.tasks import TaskNetwork, TaskSettings
from support.every_policy import EVERY, GRAPH, ROUND, Seen, looped

CHEAP = HostType("cheap", cores=2.0, slots=8, bandwidth=1e6, price=1.0, billing=Billing(60.0), start=12.0, stop=2.0)
DEAR = replace(CHEAP, name="dear", price=2.0)
OTHER_ZONE = replace(CHEAP, name="cheap-b", zone="b")
ROUNDS = 40


class OutOfStock:
    """A plant that leases no host of type `cheap`."""

    def __init__(self, plant: SimulatedPlant) -> None:
        self.plant = plant
        self.requests: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.plant, name)

    def apply(self, action: Action) -> Outcome:
        if isinstance(action, LeaseHost):
            self.requests.append(action.type)
            if action.type == "cheap":
                return Outcome(action, Status.FAILED, "no stock")
        return self.plant.apply(action)


def plant(*types: HostType) -> OutOfStock:
    load = Emissions.every(1.0, [900] * int(ROUND * ROUNDS), spread=True)
    return OutOfStock(
        make_plant(
            lay_out(GRAPH, chained=True),
            host_types=types,
            hosts=1,
            parallelism={"split": 2, "count": 3},
            loads={"lines": load},
            network=TaskNetwork,
            settings=TaskSettings(monitor=ROUND),
            max_hosts=6,
            seed=1,
        )
    )


def working(observation: Observation) -> list[str]:
    return [lease.type.name for lease in observation.leases.values() if lease.state is HostState.RUNNING]


@pytest.mark.parametrize("policy", ["threshold", "horizon", "static", "daedalus"])
def test_another_type_is_leased_for_one_that_is_out_of_stock(policy):
    on = plant(CHEAP, DEAR)
    seen: Seen = looped(EVERY[policy](), on, ROUNDS)  # type: ignore[arg-type]
    assert working(seen.observations[-1]).count("dear") >= 2
    assert "cheap" not in on.requests[on.requests.index("dear") :]
    notes = " ".join(decision.note for decision in seen.recording.decisions)
    assert "lease of cheap: given up until" in notes
    assert "no stock" in notes


@pytest.mark.parametrize("policy", ["threshold", "horizon", "static"])
def test_another_zone_is_tried_for_one_without_stock(policy):
    seen: Seen = looped(EVERY[policy](), plant(CHEAP, OTHER_ZONE), ROUNDS)  # type: ignore[arg-type]
    assert working(seen.observations[-1]).count("cheap-b") >= 2


def test_the_only_type_is_tried_again_though_it_is_out_of_stock():
    on = plant(CHEAP)
    seen = looped(EVERY["threshold"](), on, 200)  # type: ignore[arg-type]
    assert 5 <= len(on.requests) <= 40
    refused = [each.refused for decision in seen.recording.decisions for each in decision.proposals]
    assert any("given up until" in each for each in refused)

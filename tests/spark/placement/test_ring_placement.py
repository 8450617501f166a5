"""Rings by which state partitions are placed: one version of the plan for each change; sessions are a few lines here."""

from dataclasses import dataclass, field

import pytest

from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.spark.placement.allocation import InMemoryPlan
from elastream.spark.placement.placing import MigrationLimits, Placing, Rings


@dataclass
class States:
    partitions: int = 8
    places: dict = field(default_factory=dict)

    def where(self):
        return self.places


ZONES = {"h1": "a", "h2": "a", "h3": "b", "h4": "b"}


@pytest.fixture
def placing() -> Placing:
    return Placing({"count": States()}, lambda: 0.0, InMemoryPlan(), limits=MigrationLimits(lazy=False))


@pytest.fixture
def rings(placing: Placing) -> Rings:
    return Rings(placing, lambda: tuple(ZONES), ZONES.__getitem__)


def tasks(*numbers: int) -> set[TaskId]:
    return {TaskId("count", number) for number in numbers}


def test_an_interval_moves_as_one_version_of_the_plan(placing: Placing, rings: Rings) -> None:
    ran = {TaskId("count", number): "h1" if number < 4 else "h2" for number in range(8)}
    assert rings.follow("count", Ring({"h1": 0.0, "h2": 0.5}), ran, "") == 0
    assert not placing.targets()
    before = placing.plan.latest.version
    assert rings.follow("count", Ring({"h1": 0.0, "h2": 0.25}), ran, "h1 is overloaded") == 2
    assert (placing.plan.latest.version, placing.plan.latest.why) == (before + 1, "h1 is overloaded")
    assert placing.targets() == dict.fromkeys(tasks(2, 3), "h2")


def test_what_lost_hosts_had_goes_to_the_first_living_neighbour_clockwise(rings: Rings) -> None:
    rings.follow("count", Ring.even(("h1", "h2", "h3", "h4")), {}, "")
    assert rings.retain(["h1", "h4"]) == dict.fromkeys(tasks(2, 3, 4, 5), "h4")
    assert rings.active["count"].tokens == {"h1": 0.0, "h4": 0.25}
    assert rings.retain(["h1", "h4"]) == {}
    assert rings.retain([]) == {}
    assert "count" not in rings.active, "a ring without hosts is none"


def test_an_operator_without_a_ring_has_one_of_all_hosts_for_copies(rings: Rings) -> None:
    assert rings.owner(TaskId("count", 0)) is None
    ring = rings.of("count")
    assert ring is not None
    assert all(ZONES[node] != ZONES[ring.successors(node, 1)[0]] for node in ring)
    rings.follow("count", Ring({"h3": 0.0}), {}, "")
    assert rings.of("count") == Ring({"h3": 0.0})
    rings.forget("count")
    assert len(rings.of("count") or ()) == 4


def test_an_ended_querys_ring_is_hidden_until_it_runs_again(placing: Placing, rings: Rings) -> None:
    """A policy would see an operator without state partitions on it."""
    states = placing.states["count"]
    rings.follow("count", Ring({"h1": 0.0, "h2": 0.25}), {}, "")
    placing.detach("count")
    assert rings.active == {}
    placing.attach("count", states)
    assert rings.active["count"].tokens == {"h1": 0.0, "h2": 0.25}

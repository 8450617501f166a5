"""What every policy of placement keeps to, whatever hosts and tasks there are: tried on worlds where moves take effect."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import Action
from elastream.core.frames import Floats, Integers
from elastream.core.observation import UNMEASURED, Exchange, Observation
from elastream.core.plant import Policy
from elastream.policies.elastic_allocator.policy import ElasticAllocator, Objective, allocate, deviation, utilisation
from elastream.policies.otd import Case, Otd
from elastream.policies.placements import Even, Random
from support.placement_observations import seen
from support.policy_run import OneRun
from support.property_examples import examples

POLICIES: dict[str, Callable[[], Policy]] = {
    "otd": Otd,
    "otd as published": lambda: Otd(relief=0.0),
    "elastic allocator": ElasticAllocator,
    "elastic allocator, for utilisation": lambda: ElasticAllocator(objective=Objective.UTILISATION.value),
    "even": Even,
    "random": lambda: Random(7),
}
PERIOD = 10.0
"""Seconds between rounds: no policy's own period is longer."""


@dataclass(frozen=True)
class World:
    """Tasks that need cores, on hosts of one core each; who gets less than it needs is seen to use less."""

    hosts: int
    need: Floats
    place: Integers
    exchange: Exchange = UNMEASURED

    @property
    def load(self) -> Floats:
        """Cores that the tasks of each host need."""
        return np.bincount(self.place, self.need, self.hosts)

    def observe(self, number: int = 0) -> Observation:
        """What a plant would tell of it in round `number`."""
        given = self.need / np.maximum(1.0, self.load)[self.place]
        cpu = np.minimum(1.0, self.load).tolist()
        return seen(self.place.tolist(), cpu, busy=given.tolist(), exchange=self.exchange, time=PERIOD * (number + 1))

    def after(self, actions: list[Action], observation: Observation) -> "World":
        """With all moves made."""
        place = self.place.copy()
        for action in actions:
            place[observation.tasks.rows[str(action.task)]] = observation.hosts.rows[action.host]
        return replace(self, place=place)


@st.composite
def worlds(draw, largest: float = 1.2, most_in_all: float = 10.0):
    hosts, tasks = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    need = np.array(draw(st.lists(st.floats(0.01, largest), min_size=tasks, max_size=tasks)))
    need *= min(1.0, most_in_all * hosts / need.sum())
    place = np.array(draw(st.lists(st.integers(0, hosts - 1), min_size=tasks, max_size=tasks)))
    entry = st.tuples(st.integers(0, tasks - 1), st.integers(0, tasks - 1), st.floats(0.1, 9))
    entries = draw(st.lists(entry, max_size=30))
    return World(hosts, need, place, Exchange(*map(np.array, zip(*entries, strict=True))) if entries else UNMEASURED)


def rounds_until_rest(policy: Policy, world: World, limit: int) -> int:
    run = OneRun(policy)
    for number in range(limit):
        observation = world.observe(number)
        actions = list(run.plan(observation).actions)
        if not actions:
            return number
        world = world.after(actions, observation)
    return limit


def crossing(world: World) -> float:
    _, between = world.exchange.split(world.place)
    return between


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "otd as published"])
@given(world=worlds())
@settings(max_examples=examples(60))
def test_every_policy_comes_to_rest(policy, world):
    assert rounds_until_rest(POLICIES[policy](), world, 100) < 100


def test_otd_as_published_need_not_come_to_rest():
    # Two that talk fill a host together, and each fills it anew once the other was moved away.
    world = World(2, np.array([0.6, 0.6]), np.array([0, 1]), Exchange(np.array([0]), np.array([1]), np.array([5.0])))
    assert rounds_until_rest(POLICIES["otd as published"](), world, 100) == 100
    assert rounds_until_rest(Otd(), world, 100) == 0


@given(worlds())
@settings(max_examples=examples(150))
def test_otd_relieves_the_busier_host_or_lets_less_cross(world):
    observation = world.observe()
    policy = Otd()
    pair = policy.decide(observation)
    if pair.task < 0:
        return
    then = world.after(list(policy.plan(observation).actions), observation)
    giver, receiver = world.place[pair.task], pair.worker
    if pair.case is Case.BALANCE:
        assert max(then.load[giver], then.load[receiver]) < max(world.load[giver], world.load[receiver])
    else:
        assert crossing(then) == pytest.approx(crossing(world) - pair.change)
        assert pair.change > 0
        assert then.load[receiver] < policy.high


@pytest.mark.parametrize("objective", Objective)
@given(world=worlds(largest=0.3, most_in_all=0.5))
@settings(max_examples=examples(60))
def test_allocator_fills_no_host_if_there_is_room(objective, world):
    observation = world.observe()
    actions = list(ElasticAllocator(objective=objective.value).plan(replace(observation, exchange=UNMEASURED)).actions)
    then, ones = world.after(actions, observation), np.ones(world.hosts)
    if (world.load <= 1).all():
        assert (then.load <= 1 + 1e-9).all()
        if actions:
            assert utilisation(then.load, ones) >= utilisation(world.load, ones) - 1e-9
            assert deviation(then.load, ones) < deviation(world.load, ones)


@given(st.integers(0, 10_000), st.floats(0.3, 1.0), st.sampled_from(Objective))
@settings(max_examples=examples(100))
def test_no_host_is_filled_beyond_its_limit_if_tasks_have_room(seed, most, objective):
    random = np.random.default_rng(seed)
    needs, base = random.uniform(0, 0.5, (random.integers(1, 9), 2)), random.uniform(0, 1.2, (random.integers(1, 5), 2))
    found = allocate(needs, base, np.ones(base.shape), objective=objective, most=most, trials=100_000)
    held = base.copy()
    np.add.at(held, found.place, needs)
    if found.rest == 0:
        assert (held <= np.maximum(most, base) + 1e-6).all()


@given(worlds())
@settings(max_examples=examples(60))
def test_even_placement_differs_by_one_task_at_most(world):
    observation = world.observe()
    then = world.after(list(Even().plan(observation).actions), observation)
    assert np.ptp(np.bincount(then.place, minlength=world.hosts)) <= 1

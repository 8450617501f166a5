"""No state and no tuple is lost where no more than r neighbours in a row fail; beyond that it is counted."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from elastream.core.action import DrainHost, LeaseHost, ReleaseHost, SetTokens
from elastream.errors import InputError
from elastream.simulator.settings import HostFailure
from elastream_papers.thesis.resilience.reducers import LinkFailure, Protection, ZoneFailure
from support.property_examples import examples
from support.reducer_plants import VM, even_keys, ring, run_out


def recoveries(plant):
    return [each for each in plant.reducers.takeovers if each.why == "recovery"]


def test_without_faults_every_tuple_is_taken_in_once():
    proof = run_out(ring(seconds=20.0)).exactness()
    assert proof.complete
    assert proof.twice == 0
    assert abs(proof.emitted - 40_000) <= 4 * 64


def test_the_next_host_clockwise_takes_over_without_loss():
    plant = ring(hosts=4, faults=(HostFailure(20.0, "h2"),))
    before = plant.reducers.ring
    heir, token = before.successors("h2", 1)[0], before.tokens["h2"]
    run_out(plant)
    (about,) = recoveries(plant)
    assert about.host == heir
    assert plant.reducers.ring.tokens[heir] == token
    assert 0 < about.seconds < plant.settings.checkpoint + 1.0
    assert plant.exactness().complete


def test_tuples_counted_twice_after_a_checkpoint_are_reported():
    plant = run_out(ring(hosts=3, rate="9000/s", faults=(HostFailure(21.0, "h1"),)))
    (about,) = recoveries(plant)
    a_third = 3000 * 2 * plant.settings.bound
    assert plant.exactness().twice == about.twice
    assert about.twice == pytest.approx(a_third, rel=0.6)
    assert about.repeated >= about.twice


@settings(max_examples=examples(60), deadline=None, phases=(Phase.generate,))
@given(data=st.data())
def test_failures_of_at_most_r_neighbours_in_a_row_lose_nothing(data):
    size, copies = data.draw(st.integers(3, 8)), data.draw(st.integers(1, 2))
    plant = ring(
        hosts=size,
        replicas=copies,
        rate=data.draw(st.sampled_from(["300/s", "6000/s"])),
        seed=data.draw(st.integers(0, 99)),
    )
    order = plant.reducers.ring.nodes
    failed = data.draw(st.sets(st.sampled_from(order), max_size=size - 1))
    when = data.draw(st.floats(3.0, 30.0))
    within = data.draw(st.floats(0.0, 0.4))
    for number, name in enumerate(sorted(failed)):
        node = plant.reducers.nodes[name]
        plant.reducers.agenda.at(when + within * number / size, lambda at, node=node: plant.fail(node, at))
    survives = plant.reducers.ring.survives(failed, copies)
    run_out(plant)
    proof = plant.exactness()
    assert proof.waiting == proof.unowned == 0
    assert proof.emitted == proof.taken_in + proof.lacking
    if survives:
        assert proof.kept
        assert not plant.observe().alarms
    elif within == 0.0:
        assert proof.lacking > 0


@settings(max_examples=examples(40), deadline=None, phases=(Phase.generate,))
@given(data=st.data())
def test_changing_tokens_loses_nothing_and_doubles_within_the_bound(data):
    plant = ring(hosts=4, replicas=data.draw(st.integers(0, 2)), rate="4000/s", seed=data.draw(st.integers(0, 99)))
    plant.apply(LeaseHost("h5", "vm"))
    plant.advance(6.0)
    for _ in range(data.draw(st.integers(1, 5))):
        hosts = data.draw(st.lists(st.sampled_from(["h1", "h2", "h3", "h4", "h5"]), min_size=3, unique=True))
        cuts = data.draw(st.lists(st.integers(0, 63), min_size=len(hosts), max_size=len(hosts), unique=True))
        tokens = tuple(zip(hosts, (cut / 64 for cut in cuts), strict=True))
        assert plant.apply(SetTokens("count", tokens)).succeeded
        plant.advance(plant.time + data.draw(st.floats(0.01, 8.0)))
    run_out(plant)
    proof = plant.exactness()
    assert proof.complete
    assert proof.unowned == 0


def test_more_failures_in_a_row_than_copies_are_reported():
    plant = ring(hosts=4, replicas=1)
    pair = plant.reducers.ring.nodes[:2]
    for name in pair:
        plant.reducers.agenda.at(20.0, lambda at, n=name: plant.fail(plant.reducers.nodes[n], at))
    run_out(plant)
    proof = plant.exactness()
    lost = sum(each.lost for each in recoveries(plant))
    assert proof.lacking == lost > 0
    (alarm,) = plant.observe().alarms
    assert "no host that is left had a copy" in alarm.said


def test_a_failed_zone_loses_nothing_with_neighbours_in_other_zones():
    zones = [replace(VM, name=zone, zone=zone) for zone in ("left", "right")]
    plant = ring(hosts=["left", "right"] * 3, types=zones, faults=(ZoneFailure(15.0, "left"),))
    run_out(plant)
    assert len(recoveries(plant)) == 3
    assert plant.exactness().complete


@pytest.mark.parametrize("link", [("mapper 1", "h2"), ("h2", None)])
def test_a_failed_link_is_the_failure_of_the_host_that_it_isolates(link):
    plant = ring(hosts=4)
    target = link[1] or plant.reducers.ring.successors("h2", 1)[0]
    plant = run_out(ring(hosts=4, faults=(LinkFailure(20.0, link[0], target),)))
    assert "h2" not in plant.reducers.ring
    assert plant.exactness().complete


def test_a_bound_below_the_latencies_loses_tuples_and_is_warned_of():
    late = {"latency": (0.0001, 0.4), "bound": 0.001, "mappers": 8}
    plant = ring(hosts=4, rate="8000/s", of=even_keys(), faults=(HostFailure(20.0, "h2"),), **late)
    assert any("bound (L_n)" in alarm.said for alarm in plant.observe().alarms)
    run_out(plant)
    assert plant.exactness().lacking > 0


def test_a_host_that_joins_takes_over_only_once_its_state_is_there():
    plant = ring(hosts=2, rate="4000/s")
    plant.apply(LeaseHost("h3", "vm"))
    plant.advance(20.0)
    tokens = (("h1", 0.0), ("h3", 0.25), ("h2", 0.5))
    assert plant.apply(SetTokens("count", tokens)).status == "accepted"
    assert "h3" not in plant.observe().rings["count"]
    plant.advance(22.0)
    (about,) = [each for each in plant.reducers.takeovers if each.why == "tokens"]
    assert about.host == "h3"
    assert about.decided > 20.0
    assert run_out(plant).exactness().complete


@pytest.mark.parametrize("action", [ReleaseHost, DrainHost])
def test_a_host_that_goes_hands_its_interval_on_clockwise(action):
    plant = ring(hosts=3)
    heir, token = plant.reducers.ring.successors("h2", 1)[0], plant.reducers.ring.tokens["h2"]
    plant.advance(10.0)
    assert plant.apply(action("h2")).succeeded
    plant.advance(12.0)
    assert plant.reducers.ring.tokens[heir] == token
    assert run_out(plant).exactness().complete


def test_upstream_backup_loses_local_state_but_not_external_state():
    lost = run_out(ring(hosts=3, protection=Protection.UPSTREAM, faults=(HostFailure(20.0, "h1"),)))
    kept = run_out(ring(hosts=3, protection=Protection.EXTERNAL, rate="1000/s", faults=(HostFailure(20.0, "h1"),)))
    assert lost.exactness().lacking > 0
    assert "which was local" in lost.observe().alarms[0].said
    assert kept.exactness().complete
    assert kept.exactness().twice > 0


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"replicas": -1}, "copies of state are 0 or more"),
        ({"replicas": 4}, "at most 3"),
        ({"bound": 0.0}, "bound on network latency"),
        ({"faults": (LinkFailure(1.0, "mapper 9", "h1"),)}, "mapper 9"),
        ({"of": even_keys(partitions=2)}, "2 partitions on 4 hosts"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(given_, said):
    with pytest.raises(InputError, match=said):
        ring(hosts=4, **given_)

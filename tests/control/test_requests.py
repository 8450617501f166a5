"""Requests of people: bounds and drains pass arbitration like any plan, and are journaled."""

import math
import os
import time
from dataclasses import replace

from elastream.control.guarding import GuardExtension
from elastream.control.journal import Journal
from elastream.control.loop import Loop
from elastream.control.requests import RequestExtension
from elastream.core.action import CancelDrain, DrainHost, LeaseHost, SwitchAlternate
from elastream.core.alarm import Alarms
from elastream.core.guarding import GuardDecision
from elastream.core.plant import Plan
from elastream.core.scaling import NO_RULES, ScalingRules, rule_of
from elastream.policies.common.measures import emptied
from elastream.policies.static import Static
from elastream.recording.guard_log import GuardLog
from elastream.recording.recorder import Collector
from elastream.recording.request_log import Request, RequestLog
from support.fake_plant import FakePlant
from support.page_runs import new_run


def looped(directory, requests, policy=None, *, hosts=3, limit=40.0, scaling=NO_RULES, **plant):
    """Run with `requests`, by the second in which they come; return the recording and the journal's entries."""
    log, extension, journal = RequestLog(directory.requests), RequestExtension(directory), Journal(directory.journal)
    fake, collector = FakePlant(hosts=hosts, **plant), Collector()
    pending = dict(requests)

    def write(now):
        for at in [at for at in pending if at <= now]:
            log.append(pending.pop(at))

    fake.clock._on_sleep = write
    policy = policy or Static(hosts=hosts)
    Loop(fake, policy, observers=[collector], extensions=(extension,), journal=journal, limit=limit, scaling=scaling).run()
    return collector.recording, [each.action for each in Journal(directory.journal).entries]


def test_a_drain_of_a_person_is_arbitrated_and_journaled(tmp_path):
    recording, actions = looped(new_run(tmp_path / "run"), {5.0: Request("drain", "page", host="h2")})
    proposals = [p for decision in recording.decisions for p in decision.proposals if p.by == "page"]
    assert [(p.action, p.refused) for p in proposals] == [(DrainHost("h2"), "")]
    assert DrainHost("h2") in actions


def test_a_drain_below_the_fewest_hosts_is_refused_with_the_reason(tmp_path):
    recording, actions = looped(new_run(tmp_path / "run"), {5.0: Request("drain", "page", host="h1")}, hosts=1, limit=100.0)
    refused = [p.refused for decision in recording.decisions for p in decision.proposals if p.by == "page"]
    assert set(refused) == {"min_hosts: at least 1 host must stay"}
    assert len(refused) <= 31, "it is given up after a minute"
    assert DrainHost("h1") not in actions


class Grows:
    """A policy that leases as long as it may, and wants back what drains."""

    name = "grows"

    def plan(self, observation, memory=None):
        empty = emptied(observation) if observation.time % 4 == 0 else []
        back = [CancelDrain(host) for host in observation.draining if all(host != each.host for each in empty)]
        return Plan((*empty, *back, LeaseHost(observation.host_name(), "small")))


def test_a_lower_bound_drains_what_is_above_it_and_nothing_comes_back(tmp_path):
    requests = {25.0: Request("bounds", "page", max_hosts=2)}
    recording, _ = looped(new_run(tmp_path / "run"), requests, Grows(), hosts=1, limit=80.0)
    leased = recording.leased
    assert leased[24] > 2
    assert set(leased[60:].tolist()) == {2.0}
    refused = {p.refused for decision in recording.decisions for p in decision.proposals if decision.time > 60}
    assert "max_hosts: at most 2 hosts may be leased" in refused


def test_a_higher_bound_leases_what_the_policy_does_not(tmp_path):
    requests = {10.0: Request("bounds", "page", min_hosts=4), 60.0: Request("bounds", "page", min_hosts=2)}
    recording, actions = looped(new_run(tmp_path / "run"), requests, Static(hosts=2), hosts=2, limit=80.0)
    assert (recording.leased[8], recording.leased[20]) == (2, 4)
    assert set(recording.leased[20:].tolist()) == {4.0}
    assert sum(isinstance(each, LeaseHost) for each in actions) == 2
    whys = {p.action.why for d in recording.decisions for p in d.proposals if isinstance(p.action, LeaseHost)}
    assert whys == {"at least 4 hosts: requested on the page"}


class Shrinks:
    """A policy that drains a host in each round after the first ones."""

    name = "shrinks"

    def plan(self, observation, memory=None):
        return Plan((DrainHost(observation.usable[-1]),) if observation.time > 4 else ())


def test_a_higher_bound_leases_no_host_for_a_drain_that_it_forbids(tmp_path):
    requests = {0.0: Request("bounds", "page", min_hosts=3)}
    recording, _ = looped(new_run(tmp_path / "run"), requests, Shrinks(), hosts=3, limit=60.0)
    assert recording.leased.max() == 3


def test_bounds_end_with_an_empty_request_and_never_exceed_the_runs_own(tmp_path):
    requests = {10.0: Request("bounds", "page", max_hosts=2), 30.0: Request("bounds", "page")}
    recording, _ = looped(new_run(tmp_path / "run"), requests, Grows(), hosts=1, limit=90.0, max_hosts=4)
    assert recording.leased[-1] == 4.0


def test_a_drain_that_is_requested_while_paused_is_done_afterwards(tmp_path):
    directory = new_run(tmp_path / "run")
    directory.pause()
    log, extension, fake, collector = (
        RequestLog(directory.requests),
        RequestExtension(directory),
        FakePlant(hosts=3),
        Collector(),
    )
    log.append(Request("drain", "page", host="h2"))
    fake.clock._on_sleep = lambda now: directory.unpause() if now >= 200 else None
    loop = Loop(
        fake,
        Static(hosts=3),
        observers=[collector],
        extensions=(extension,),
        limit=220.0,
        paused=lambda: directory.is_paused,
    )
    loop.run()
    drained = [d.time for d in collector.recording.decisions for o in d.outcomes if o.action == DrainHost("h2")]
    assert drained
    assert min(drained) >= 200


def test_leases_above_a_cost_wait_until_someone_agrees_and_the_approval_ends_with_the_cost(tmp_path):
    requests = {20.0: Request("approve", "page", hourly=1500.0), 60.0: Request("bounds", "page", max_hosts=1)}
    requests |= {100.0: Request("bounds", "page")}
    rules = ScalingRules(approve="800/h")  # a small host costs 360/h
    recording, _ = looped(new_run(tmp_path / "run"), requests, Grows(), hosts=1, limit=140.0, scaling=rules)
    leased = recording.leased
    assert [leased[19], leased[59], leased[99], leased[-1]] == [2, 4, 1, 2]
    refused = {p.refused for d in recording.decisions for p in d.proposals if rule_of(p.refused) == "approve"}
    assert "approve: 3 hosts would cost 1,080.00/h, above 800.00/h: someone must approve it" in refused
    assert any("waits until someone approves it" in alarm.said for alarm, _ in recording.alarms)


def test_an_approval_sets_no_limit_where_none_is_asked_for(tmp_path):
    requests = {5.0: Request("approve", "page", hourly=1.0)}
    recording, _ = looped(new_run(tmp_path / "run"), requests, Grows(), hosts=1, limit=60.0, max_hosts=5)
    assert recording.leased[-1] == 5


class Prefers:
    name = "prefers"

    def plan(self, observation, memory=None):
        return Plan((SwitchAlternate("words", "split"),))


def test_a_requested_alternate_runs_until_the_choice_is_given_back(tmp_path):
    wanted = Request("alternate", "page", operator="words", alternate="split_fast")
    requests = {10.0: wanted, 30.0: replace(wanted, alternate="")}
    recording, actions = looped(new_run(tmp_path / "run"), requests, Prefers())
    ran = {at: recording.compositions_at(at)[""].running("words") for at in (8.0, 12.0, 28.0, 34.0)}
    assert ran == {8.0: "split", 12.0: "split_fast", 28.0: "split_fast", 34.0: "split"}
    assert SwitchAlternate("words", "split_fast") in actions


def test_page_is_the_author_of_its_switch_beside_guards_that_are_not_given(tmp_path):
    directory, fake, collector = new_run(tmp_path / "run"), FakePlant(), Collector()
    extensions = (GuardExtension(GuardLog(tmp_path / "guards")), RequestExtension(directory))
    RequestLog(directory.requests).append(Request("alternate", "page", operator="words", alternate="split_fast"))
    Loop(fake, Prefers(), observers=[collector], extensions=extensions, limit=8.0).run()
    proposals = [p for d in collector.recording.decisions for p in d.proposals]
    switches = [p for p in proposals if p.action == SwitchAlternate("words", "split_fast")]
    assert {(p.by, p.action.why) for p in switches} == {("page", "requested on the page")}
    assert {p.refused for p in proposals if p.by == "prefers"} <= {
        "words is to run as split_fast: requested on the page", "it is running already"
    }  # fmt: skip
    standing = collector.recording.standings_at(8.0)["words"]
    assert math.isnan(standing.values["split_fast"])


def test_approval_that_is_not_used_ends(tmp_path):
    requests = {5.0: Request("approve", "page", hourly=1500.0)}
    rules = ScalingRules(approve="800/h")

    class Late(Grows):
        def plan(self, observation, memory=None):
            return super().plan(observation) if observation.time > 650 else Plan()

    recording, _ = looped(new_run(tmp_path / "run"), requests, Late(), hosts=1, limit=700.0, scaling=rules)
    assert recording.leased[-1] == 2


def test_rule_that_asks_for_approval_comes_after_the_others(tmp_path):
    rules = ScalingRules(approve="100/h", stabilization_up="1h")
    recording, _ = looped(new_run(tmp_path / "run"), {}, Grows(), hosts=1, limit=60.0, scaling=rules)
    refused = {rule_of(p.refused) for d in recording.decisions[1:] for p in d.proposals if p.refused}
    assert refused == {"stabilization_up"}
    assert recording.alarms == () or all(alarm.source != "approval" or cleared for alarm, cleared in recording.alarms)


def test_guards_hold_beside_a_requested_alternate(tmp_path):
    directory, fake = new_run(tmp_path / "run"), FakePlant()
    extension = RequestExtension(directory)
    RequestLog(directory.requests).append(Request("alternate", "page", operator="words", alternate="split_fast"))
    standing = {"words": GuardDecision("words", ("split",), texts={"split": "night"})}
    seen = extension.observed(replace(fake.observe(), standings=standing, guards=1), Alarms(fake.clock.now))
    assert seen.standings == standing


def test_a_repartition_waits_until_the_number_of_partitions_is_known(tmp_path):
    directory, fake, collector = new_run(tmp_path / "run"), FakePlant(), Collector()
    extension = RequestExtension(directory)
    RequestLog(directory.requests).append(Request("repartition", "x", partitions=8))
    known, fake.context = fake.context, replace(fake.context, partitions={})

    def batch(now):
        fake.context = known if now >= 6 else fake.context

    fake.clock._on_sleep = batch
    Loop(fake, Static(hosts=1), observers=[collector], extensions=(extension,), limit=20.0).run()
    proposed = [(d.time, p.action.partitions) for d in collector.recording.decisions for p in d.proposals if p.by == "x"]
    assert proposed == [(6.0, 8)]


def test_a_repartition_is_refused_where_no_batch_comes(tmp_path):
    directory, fake, collector = new_run(tmp_path / "run"), FakePlant(), Collector()
    extension, fake.context = RequestExtension(directory), replace(fake.context, partitions={})
    RequestLog(directory.requests).append(Request("repartition", "x", partitions=8))
    Loop(fake, Static(hosts=1), observers=[collector], extensions=(extension,), limit=90.0).run()
    proposed = [p.refused for d in collector.recording.decisions for p in d.proposals if p.by == "x"]
    assert proposed == ["no batch has ended since the driver started"]


def test_requests_to_an_earlier_driver_do_not_count(tmp_path):
    directory = new_run(tmp_path / "run")
    RequestLog(directory.requests).append(Request("drain", "page", host="h2"))
    directory.lock.touch()
    os.utime(directory.lock, (time.time() + 60, time.time() + 60))
    _, actions = looped(directory, {})
    assert DrainHost("h2") not in actions


def test_a_damaged_request_is_skipped(tmp_path):
    directory = new_run(tmp_path / "run")
    log = RequestLog(directory.requests)
    log.append(Request("pause", "page"))
    with directory.requests.open("a") as file:
        file.write('{"action": "drain"}\nnonsense\n')
    log.append(Request("unpause", "page"))
    assert [each.action for each in log.newer()] == ["pause", "unpause"]
    assert log.newer() == []

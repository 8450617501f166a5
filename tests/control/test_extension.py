"""Extensions of the loop: what they see, when they press, and what they propose."""

from dataclasses import replace

from elastream.control.extension import LoopExtension
from elastream.control.loop import Loop
from elastream.core.action import DrainHost
from elastream.core.decision import Proposal
from elastream.core.plant import Plan, Policy
from elastream.dataflow.signals import SignalReading
from elastream.recording.recorder import Collector
from support.fake_plant import FakePlant


class Idle(Policy):
    def __init__(self):
        self.observed = []

    def plan(self, observation, memory=None):
        self.observed.append(observation)
        return Plan()


class Eager(LoopExtension):
    """Adds a signal, and drains a host at once when second 3 comes."""

    def observed(self, observation, alarms):
        return replace(observation, signals={"time": SignalReading(observation.time, observation.time)})

    def urgent(self, observation):
        return observation.time == 3.0

    def proposals(self, observation, planned, alarms):
        return [Proposal(DrainHost("h2", "it is time"), "eager")] if observation.time == 3.0 else []


def run(*extensions):
    plant, policy, collector = FakePlant(hosts=2), Idle(), Collector()
    Loop(plant, policy, period=4.0, limit=9.0, observers=[collector], extensions=extensions).run()
    return plant, policy, collector.recording


def test_an_extension_that_overrides_nothing_changes_nothing():
    bare, _, without = run()
    extended, _, with_one = run(LoopExtension())
    assert bare.applied == extended.applied == []
    assert [each.time for each in without.decisions] == [each.time for each in with_one.decisions]


def test_an_urgent_round_is_held_at_once_and_tries_what_is_proposed():
    plant, policy, recording = run(Eager())
    assert plant.applied == [DrainHost("h2")]
    assert 3.0 in [each.time for each in recording.decisions]
    assert all(each.signals["time"].value == each.time for each in policy.observed)


def test_what_an_extension_proposes_is_arbitrated():
    class Twice(Eager):
        def proposals(self, observation, planned, alarms):
            return [*super().proposals(observation, planned, alarms)] * 2

    plant, _, recording = run(Twice())
    assert plant.applied == [DrainHost("h2")]
    refused = [each.refused for decision in recording.decisions for each in decision.proposals if each.refused]
    assert refused == ["the plan has it already"]

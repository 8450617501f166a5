"""Policies act on dataflows that nobody wrote for them, or say what they lack; `benchmarks/liveness.py` tries thousands."""

import math
from dataclasses import replace

import pytest

from elastream.control.loop import Loop
from elastream.core.frames import Frame, TaskFrame
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.recording.recorder import Collector
from elastream.simulator import SimulatedPlant
from elastream_papers.liveness.runs import CaseResult, tried
from elastream_papers.liveness.scenarios import FIXED, POLICIES, LivenessCase, cases, scenario

SIZING = ("threshold", "btu", "queue_threshold")
SEEDS = (3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (11, 19, 43)))
QUICK = [
    *(LivenessCase(3, policy, True) for policy in sorted(FIXED)),
    LivenessCase(40429, "btu", True),  # records wait for a query of two sources, one of which has fixed tasks
    LivenessCase(50045, "queue_threshold", False),  # at thousands a second, some records are always on their way
    LivenessCase(201, "e2df", True),  # slots are free on hosts that hold a part of the tasks with state already
    LivenessCase(100036, "threshold", False),  # latencies of cohorts, a little less than nothing
    LivenessCase(101978, "by_load", True),  # hosts went, and more would have before it showed
    LivenessCase(400022, "horizon", True),  # a large host is cheaper by core than the small one that is there
    LivenessCase(400276, "horizon", True),  # records may wait for as long as the operators promise
    LivenessCase(410124, "horizon", True),  # all tasks wait for one slow host
    LivenessCase(500241, "horizon", False),  # no promise at all
]
LONGER = [
    LivenessCase(20018, "threshold", True),  # hosts of unlike speed: a stage's tasks wait for the slowest
    LivenessCase(30064, "queue_threshold", True),  # hosts smaller than what the source declares
    LivenessCase(30021, "e2df", True),  # a micro-batch of minutes
    LivenessCase(30094, "btu", True),  # instances are added where they help, and what waits for fixed tasks is named
    LivenessCase(30094, "queue_threshold", True),
    LivenessCase(50014, "queue_threshold", True),  # the other of two sources of a query holds it up
    LivenessCase(50072, "btu", True),  # hosts smaller than what an operator declares
    LivenessCase(50088, "btu", False),  # records wait, but no longer than the service levels allow
    LivenessCase(71207, "btu", True),  # a run that begins with more instances than slots
    LivenessCase(71430, "threshold", True),  # as many tasks with state on some hosts as two turns take, on others three
    LivenessCase(70005, "threshold", True),  # hosts of unlike speed, which suffice by the sum of their cores
    LivenessCase(100266, "e2df", True),  # two stages with state, beside which the source's own work is nothing
    LivenessCase(100281, "e2df", True),  # a task with state on a slow host, for which all others wait
    LivenessCase(102038, "by_load", True),  # state partitions that hold the rate, but not on the hosts that are there
    LivenessCase(100307, "btu", True),  # four instances on a host each, of which a fifth is none
    LivenessCase(103396, "threshold", False),  # what waited is worked off, and each record of it becomes two
    LivenessCase(104901, "e2df", True),  # long micro-batches of one query beside short ones of another
    LivenessCase(103973, "by_load", True),  # what each batch costs holds it up, on however many hosts
    LivenessCase(300072, "e2df", True),  # five slots are leased at a time
    LivenessCase(300073, "e2df", False),
]


@pytest.mark.parametrize("policy", SIZING)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "apart"])
@pytest.mark.parametrize("seed", SEEDS)
def test_under_sustained_overload_a_policy_acts_or_names_what_it_lacks(policy, seed, fused):
    found = tried(LivenessCase(seed, policy, fused))
    assert found.silent == 0
    assert found.unpromised == ()


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in LONGER)], ids=str)
def test_what_was_silent_or_never_settled_holds(case):
    assert tried(case).holds


def test_a_case_is_the_same_whenever_it_is_drawn():
    for case in cases(12):
        assert scenario(case) == scenario(case)
    assert isinstance(tried(cases(1)[0]), CaseResult)


class Blind:
    """A plant of which nothing is known but its leases: every metric is unknown, or absent."""

    def __init__(self, plant: SimulatedPlant, *, absent: bool) -> None:
        self.plant, self.absent = plant, absent
        self.context, self.clock = plant.context, plant.clock
        self.apply, self.close, self.incidents = plant.apply, plant.close, plant.incidents

    finished = property(lambda self: self.plant.finished)
    ledger = property(lambda self: self.plant.ledger)

    def observe(self) -> Observation:
        seen = self.plant.observe()
        tasks = seen.tasks
        return replace(
            seen,
            application=self._blank(seen.application),
            operators=self._blank(seen.operators),
            hosts=self._blank(seen.hosts),
            tasks=TaskFrame(tasks.operator, tasks.index, tasks.host, seen.operators.ids, self._nothing(tasks)),
            history=tuple(replace(each, operators=self._blank(each.operators)) for each in seen.history),
        )

    def _nothing(self, frame: Frame) -> dict[Metric, list[float]]:
        return {} if self.absent else {metric: [math.nan] * len(frame) for metric in frame.metrics}

    def _blank(self, frame: Frame) -> Frame:
        return Frame(frame.ids, self._nothing(frame))


class Counting(Collector):
    """Counts the leased hosts at every observation."""

    def __init__(self, counted: list[int]) -> None:
        super().__init__()
        self.counted = counted

    def observed(self, observation: Observation) -> None:
        self.counted.append(len(observation.leases))


@pytest.mark.parametrize("absent", [True, False], ids=["absent", "unknown"])
@pytest.mark.parametrize("policy", POLICIES)
def test_with_nothing_known_hosts_never_go_to_zero_nor_to_the_most(policy, absent):
    drawn = scenario(LivenessCase(7, policy, True))
    plant = Blind(replace(drawn, max_hosts=12).plant(), absent=absent)
    counted: list[int] = []
    rounds = {"monitor": drawn.period, "period": drawn.period, "limit": 60 * drawn.period}
    Loop(plant, drawn.policy(policy), **rounds, observers=[Counting(counted)]).run()
    assert 1 <= min(counted) <= max(counted) < 12

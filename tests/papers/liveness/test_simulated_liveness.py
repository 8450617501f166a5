"""Policies act on dataflows that nobody wrote for them, or say what they lack; `benchmarks/liveness.py` tries thousands."""

import math
from dataclasses import replace

import pytest

from elastream.control.loop import Loop
from elastream.core.decision import Unknown
from elastream.core.frames import Frame, TaskFrame
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.core.promises import PlantKind
from elastream.recording.recorder import Collector
from elastream.simulator import SimulatedPlant
from elastream_papers.liveness.runs import Found, Promised, _Watch, is_unknown, tried
from elastream_papers.liveness.scenarios import FIXED, POLICIES, LivenessCase, cases, scenario

SIZING = ("threshold", "btu", "queue_threshold")
SEEDS = (3, 11, 19, 43)


def seconds(seed: int, policy: str) -> object:
    """A case of fused stages that takes seconds to play."""
    return pytest.param(LivenessCase(seed, policy, True), marks=pytest.mark.slow)


@pytest.mark.parametrize("policy", SIZING)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "apart"])
@pytest.mark.parametrize("seed", SEEDS)
def test_under_sustained_overload_a_policy_acts_within_three_rounds_or_names_what_it_lacks(policy, seed, fused):
    found = tried(LivenessCase(seed, policy, fused))
    assert found.silent == 0
    assert found.unpromised == ()


@pytest.mark.parametrize(
    "case",
    [
        LivenessCase(20018, "threshold", True),  # hosts of unlike speed: a stage's tasks wait for the slowest
        LivenessCase(30064, "queue_threshold", True),  # hosts smaller than what the source declares
        seconds(30021, "e2df"),  # a micro-batch of minutes
        LivenessCase(
            40429, "btu", True
        ),  # records wait for the query of two sources, one of which has a fixed number of tasks
        LivenessCase(50014, "queue_threshold", True),  # the other of two sources of a query holds it up
        LivenessCase(50045, "queue_threshold", False),  # at thousands a second, some records are always on their way
        LivenessCase(50072, "btu", True),  # hosts smaller than what an operator declares
        LivenessCase(50088, "btu", False),  # records wait, but no longer than the service levels allow
        LivenessCase(201, "e2df", True),  # slots are free on hosts that hold a part of the tasks with state already
        LivenessCase(71207, "btu", True),  # a run that begins with more instances than slots
        LivenessCase(71430, "threshold", True),  # as many tasks with state on some hosts as two turns take, on others three
        LivenessCase(70005, "threshold", True),  # hosts of unlike speed, which suffice by the sum of their cores
        seconds(100266, "e2df"),  # two stages with state, beside which the source's own work is nothing
        seconds(100281, "e2df"),  # a task with state on a slow host, for which all others wait
        LivenessCase(100036, "threshold", False),  # latencies of cohorts, a little less than nothing
        LivenessCase(102038, "by_load", True),  # state partitions that hold the rate, but not on the hosts that are there
        LivenessCase(100307, "btu", True),  # four instances on a host each, of which a fifth is none
        LivenessCase(103396, "threshold", False),  # what waited is worked off, and each record of it becomes two
        seconds(104901, "e2df"),  # long micro-batches of one query beside short ones of another
        LivenessCase(101978, "by_load", True),  # hosts went, and more would have before it showed
        seconds(103973, "by_load"),  # what each batch costs holds it up, on however many hosts
    ],
    ids=str,
)
def test_what_was_silent_or_never_settled_holds(case):
    assert tried(case).holds


def test_where_state_partitions_keep_hosts_from_being_of_use_a_policy_says_so():
    assert tried(LivenessCase(101873, "by_load", True)).silent == 0  # 1.09 of what 16 partitions hold


@pytest.mark.slow
@pytest.mark.parametrize("case", [LivenessCase(300072, "e2df", True), LivenessCase(300073, "e2df", False)], ids=str)
def test_a_policy_that_leases_five_slots_at_a_time_comes_to_rest_in_its_own_time(case):
    assert tried(case).holds


@pytest.mark.parametrize("policy", ["btu", "queue_threshold"])
def test_a_policy_that_adds_instances_says_what_waits_for_a_fixed_number_of_tasks_and_provides_for_the_rest(policy):
    found = tried(LivenessCase(30094, policy, True))
    assert (found.refused, found.broken) == ("", ())
    assert found.holds


def test_a_decision_that_is_told_again_with_its_effect_is_judged_once():
    drawn = scenario(LivenessCase(7, "threshold", True))
    plant = drawn.plant()
    watch = _Watch(LivenessCase(7, "threshold", True), plant, drawn)
    rounds = {"monitor": drawn.period, "period": drawn.period, "limit": 3 * drawn.period}
    Loop(plant, drawn.policy("threshold"), **rounds, observers=[watch]).run()
    assert [each.time for each in watch.rounds] == sorted({each.time for each in watch.rounds})


def test_a_case_is_the_same_whenever_it_is_drawn():
    for case in cases(12):
        assert scenario(case) == scenario(case)
    assert isinstance(tried(cases(1)[0]), Found)


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


def test_what_is_said_to_be_unknown_is_looked_up_for_every_kind_of_row():
    drawn = scenario(LivenessCase(7, "threshold", True))
    plant = drawn.plant()
    plant.advance(10 * drawn.period)
    seen = plant.observe()
    named = {
        Rows.OPERATOR: seen.operators.ids[0],
        Rows.HOST: seen.hosts.ids[0],
        Rows.TASK: str(seen.tasks.tasks[0]),
        Rows.APPLICATION: seen.application.ids[0],
    }
    unknown = Blind(plant, absent=False).observe()
    for rows, row in named.items():
        metric = Metric.LATENCY if rows is Rows.APPLICATION else Metric.BUSY_CORES if rows is not Rows.HOST else Metric.CPU
        assert not is_unknown(seen, Unknown(metric, rows, row))
        assert is_unknown(unknown, Unknown(metric, rows, row))


def test_a_promised_metric_that_is_unknown_in_three_rounds_in_which_records_pass_is_named():
    drawn = scenario(LivenessCase(7, "threshold", False))
    plant = drawn.plant()
    plant.advance(20 * drawn.period)
    seen = plant.observe()
    promised = Promised(drawn.layout, drawn.target, PlantKind.UNCHAINED)
    for _ in range(3):
        promised.look(seen)
    assert promised.broken == []
    blind = replace(seen, hosts=Frame(seen.hosts.ids))
    for _ in range(3):
        promised.look(blind)
    assert any(f"cpu of host '{seen.hosts.ids[0]}' is promised" in each for each in promised.broken)


def test_policies_that_keep_a_number_of_hosts_are_held_to_the_rest():
    for policy in sorted(FIXED):
        assert tried(LivenessCase(3, policy, True)).holds

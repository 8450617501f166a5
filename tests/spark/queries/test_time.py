"""The clock of the machine is set while queries run, and batches hang: what is known of a query then, and what is done."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.control.arbitration import arbitrate
from elastream.core.action import DrainHost, LeaseHost, ReleaseHost
from elastream.core.decision import Proposal
from elastream.core.frames import Frame
from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation, Sample
from elastream.core.task_id import TaskId
from elastream.policies.by_load import ByLoad
from elastream.spark.jvm.state_partitions import StatefulOperator, StatefulStage
from elastream.spark.placement.allocation import InMemoryPlan
from elastream.spark.placement.placing import Placing
from elastream.spark.queries.query import Query, QueryAccess, stalled
from elastream.spark.queries.watched import application_row, layout_of, operator_frame
from elastream.spark.telemetry.frames import task_frame
from elastream.spark.telemetry.stage_load import StageLoad
from support.batch_progress import START as EPOCH
from support.batch_progress import line, source
from support.sessions_without_jvm import without_jvm

EVERY, ROWS, PARTITIONS = 10.0, 100_000, 8
STAGE = StatefulStage("count0", PARTITIONS, "file:/state", (StatefulOperator(0, "StateStoreSave", ("default",), 0),))
KIND = HostType("m", cores=2, slots=2, price=0.0, billing=Billing(3600), start=10)


class Machine:
    """A driver whose query ends a batch of 8 s every EVERY seconds; `wall` is what the machine's clock says."""

    context = None

    def __init__(self):
        self.now, self.set_by, self.ended, self.began, self.silent, self.fails = 0.0, 0.0, [], None, False, False

    def wall(self):
        return EPOCH + self.now + self.set_by

    def begin(self):
        self.began = self.wall()

    def end(self):
        self.ended.append((len(self.ended), self.began, self.wall() - self.began))
        self.began = None

    def ask(self, method, _, seen=-1):
        if method == "state":
            return []
        assert method == "batches"
        if self.fails:
            raise ValueError("no answer")
        told = [] if self.silent else self.ended
        at = [line(n, s - EPOCH, took, source({"n": 0}, {"n": ROWS}, ROWS)) for n, s, took in told if n > seen]
        doing = (
            ["Waiting", str(len(self.ended) - 1)] if self.began is None else ["Processing new data", str(len(self.ended))]
        )
        return [*at[::-1], ["ProcessingTimeTrigger(10000)", *doing]]


class Session:
    """A query on four hosts that works steadily, seen every five seconds through a policy for hosts."""

    def __init__(self, target):
        self.machine, self.target, self.planned = Machine(), target, []
        spark = without_jvm(execution=object())
        clocks = {"wall": self.machine.wall, "steady": lambda: self.machine.now}
        self.query = Query(QueryAccess(spark, self.machine, Placing({}, lambda: 0.0, InMemoryPlan()), **clocks), "id", "q")
        self.query.run("run")
        self.query.stages = {"q/count0": STAGE}
        self.memory, self.history = None, ()

    def round(self, cpu=0.76):
        machine, query = self.machine, self.query
        before = query.newest
        query.look()
        for batch in range(before + 1, query.newest + 1):
            column = np.full(PARTITIONS, 7.6)
            ended = machine.ended[batch][1] + machine.ended[batch][2]
            took = ended - (machine.ended[batch - 1][1] + machine.ended[batch - 1][2]) if batch else math.nan
            load = StageLoad(batch, 0, (), (0,), False, took, ended, ("1",) * 8, column, *[column] * 7)
            query._take("q/count0", load)
        wall, layout = machine.wall(), layout_of((("q", query.operators),))
        leases = {
            f"h{n}": Lease(f"h{n}", KIND, 0.0).to(HostState.STARTING, 0).to(HostState.RUNNING, 0) for n in range(1, 5)
        }
        loads = query.loads(wall)
        held = {TaskId("q/count0", n): f"h{n % 4 + 1}" for n in range(PARTITIONS)}
        actions = ("MoveTask", "DrainHost", "LeaseHost", "ReleaseHost", "CancelDrain", "RenewHost")
        observation = Observation(
            time=machine.now,
            context=Context(layout, {"m": KIND}, self.target, max_hosts=40, min_hosts=1, capabilities=frozenset(actions)),
            operators=operator_frame(layout.graph, [query], loads, wall, 8 * cpu),
            application=application_row(layout.graph, [query], wall, 0.0),
            hosts=Frame(tuple(leases), {Metric.CPU: [cpu] * 4, Metric.TASKS: [2.0] * 4}),
            tasks=task_frame(layout.graph, tuple(leases), held, loads),
            leases=leases,
            history=self.history,
            next_host=9,
            stalled=stalled([query], wall),
        )
        self.history = (*self.history, Sample(observation.time, observation.operators))[-120:]
        plan = ByLoad().plan(observation, self.memory)
        self.memory = plan.memory
        wanted = [each for each in plan.actions if isinstance(each, LeaseHost | DrainHost | ReleaseHost)]
        decided = arbitrate([Proposal(each, "by load") for each in wanted], observation)
        self.planned += [(machine.now, each) for each in decided if not each.refused]
        return observation, decided

    def run(self, seconds, hangs=False, **kwargs):
        found = []
        for _ in range(int(seconds / 5)):
            self.machine.now += 5.0
            if self.machine.began is None:
                self.machine.begin()
            elif not hangs:
                self.machine.now += 3.0
                self.machine.end()
                self.machine.now -= 3.0
            found.append(self.round(**kwargs))
        return found


@pytest.mark.parametrize("target", [None, 20.0])
@pytest.mark.parametrize("step", [-3600.0, -60.0, -1.0, 1.0, 60.0, 3600.0])
def test_setting_the_clock_leases_nothing_and_keeps_rates_honest(step, target):
    watched = Session(target)
    watched.run(600)
    assert watched.planned == []
    watched.machine.set_by = step
    seen = watched.run(400)
    assert watched.planned == []
    for observation, _ in seen:
        rate = observation.application.value("queries", Metric.THROUGHPUT)
        assert math.isnan(rate) or 0.4 <= rate / (ROWS / EVERY) <= 2.5
        latency = observation.application.value("queries", Metric.LATENCY_P99)
        assert math.isnan(latency) or 0 <= latency < 60
    last = seen[-1][0].application.value("queries", Metric.THROUGHPUT)
    assert last == pytest.approx(ROWS / EVERY, rel=0.3), "and known again"


def test_clock_set_before_a_look_that_fails_is_noticed_all_the_same():
    watched = Session(20.0)
    watched.run(300)
    machine = watched.machine
    machine.set_by, machine.fails = 3600.0, True
    machine.now += 5.0
    with pytest.raises(ValueError, match="no answer"):
        watched.query.look()
    machine.fails = False
    for observation, _ in watched.run(100):
        latency = observation.application.value("queries", Metric.LATENCY_P99)
        assert math.isnan(latency) or 0 <= latency < 60
    assert watched.planned == []


def test_clock_set_in_a_look_that_fails_is_told_by_the_next():
    watched = Session(20.0)
    watched.run(100)
    watched.machine.set_by, watched.machine.fails = 3600.0, True
    with pytest.raises(ValueError, match="no answer"):
        watched.query.look()
    watched.machine.fails = False
    told = []
    for _ in range(2):
        watched.query.look()
        told.append(watched.query.stepped)
    assert told == [3600.0, 0.0]


def test_query_found_after_the_clock_was_set_tells_the_step():
    watched = Session(20.0)
    access = watched.query._with
    watched.machine.set_by = 3600.0
    found = Query(access, "id", "q")
    found.run("run", object())
    found.stages = {"q/count0": STAGE}
    found.look()
    assert found.stepped == 3600.0


@given(steps=st.lists(st.tuples(st.integers(1, 40), st.floats(-4000, 4000)), max_size=4))
def test_repeated_clock_changes_lease_and_drain_nothing(steps):
    watched = Session(20.0)
    watched.run(300)
    for rounds, step in steps:
        watched.machine.set_by += step
        watched.run(5.0 * rounds)
    assert watched.planned == []


@pytest.mark.parametrize("target", [None, 20.0])
@pytest.mark.parametrize("cpu", [0.0, 0.76, math.nan])
def test_a_batch_that_hangs_takes_no_host_away_and_the_refusal_says_so(cpu, target):
    watched = Session(target)
    watched.run(600)
    seen = watched.run(600, hangs=True, cpu=cpu)
    assert not [each for _, each in watched.planned if not isinstance(each.action, LeaseHost)]
    refused = [each.refused for _, decided in seen for each in decided if each.refused]
    assert all("no batch of 'q' has ended for" in each for each in refused)
    assert seen[-1][0].stalled["q"] > 500


def test_measurements_during_a_hung_batch_drain_no_host_later():
    watched = Session(None)
    watched.run(600)
    watched.run(60, hangs=True, cpu=0.0)
    seen = watched.run(20, cpu=0.2)
    assert not [each for _, each in watched.planned if not isinstance(each.action, LeaseHost)]
    assert seen[0][0].stalled["q"] > 30
    assert not watched.run(100)[-1][0].stalled

"""Loads, service figures and tables of `elastream bench nexmark`, and its errors: all without a query that runs."""

import json
import logging
import warnings
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.bench import suite
from elastream.bench.arms import Causes, Cluster, Pool, Scripted, arm_of, check_reached, wait
from elastream.bench.nexmark.events import Events
from elastream.bench.nexmark.workload import Nexmark, queries_of, query_of
from elastream.bench.runs import Job, Outcome, Setup, costs_of, pools_of, shares_of, trigger_interval
from elastream.bench.service import Batch, Service, batches_of, service
from elastream.bench.shapes import SHAPES, load_of
from elastream.clouds.provider import SMALL, PendingReason
from elastream.core.lateness import Diagnosis
from elastream.errors import EnvironmentProblem, InputError
from elastream.evaluation.page import render
from elastream.loads import constant
from elastream.policies.by_load import ByLoad
from support.commands import invoke
from support.fake_plant import FakePlant

LOAD = constant("10/s", lasts=10.0)
CLUSTER = Cluster(SMALL, max_hosts=2, partitions=2)
BEGAN = 1000.0


def batch(end, position, seconds=1.0):
    return Batch(end - seconds, seconds, position, BEGAN, 7)


def outcome(query="q5", arm="fixed:1", correct=True, p50=1.0):
    return Outcome(query, arm, Service(100, 10.0, 1.0, p50, 2.0, 1.5, 2_000_000, BEGAN), 10.0, 1.0, 1, correct, 3, "")


def workload(name, rate=10.0, target=None):
    return Nexmark(query_of(name), Events(load=constant(rate, lasts=10.0)), target)


def bench(*arguments):
    return invoke("bench", "nexmark", *arguments)


@pytest.mark.parametrize("shape", SHAPES)
def test_load_reaches_its_rate_and_ends_in_time(shape):
    load = load_of(shape, 100.0, 50.0)
    assert load.seconds == pytest.approx(50.0)
    assert max(max(piece.first, piece.last) for piece in load.pieces) == pytest.approx(100.0)


def test_recorded_load_is_compressed_to_the_time_and_scaled_to_the_rate(tmp_path):
    file = tmp_path / "load.csv"
    file.write_text("count\n10\n40\n20\n10\n")
    load = load_of(f"{file}:interval=60s", 100.0, 20.0)
    assert [piece.seconds for piece in load.pieces] == pytest.approx([5.0] * 4)
    assert [piece.first for piece in load.pieces] == pytest.approx([25.0, 100.0, 50.0, 25.0])


def test_service_counts_what_is_committed_within_the_target():
    figures = service([batch(BEGAN + 6.0, 50), batch(BEGAN + 14.0, 101)], LOAD, target=5.0)
    assert (figures.events, figures.seconds, figures.throughput) == (100, 14.0, pytest.approx(100 / 14))
    assert figures.in_time == pytest.approx(0.4 + 0.1)  # 40 of the first 50; 10 of the second
    assert (figures.p50, figures.p99) == (pytest.approx(4.9), pytest.approx(8.8))


def test_service_of_a_query_that_read_nothing_is_empty():
    assert service([batch(BEGAN, 0)], LOAD, target=5.0) == Service()


def test_events_count_once_all_streams_have_had_them():
    sources = [{"endOffset": json.dumps({"n": n, "started": BEGAN})} for n in (30, 20)]
    progress = {
        "timestamp": datetime.fromtimestamp(BEGAN, UTC).isoformat(),
        "durationMs": {"triggerExecution": 500},
        "sources": sources,
        "stateOperators": [{"memoryUsedBytes": 3}, {"memoryUsedBytes": 4}],
    }
    assert batches_of([progress]) == [Batch(BEGAN, 0.5, 20, BEGAN, 7)]


def test_hosts_count_from_the_beginning_of_the_load_to_the_last_commit():
    served = Service(100, 40.0, began=BEGAN)
    assert costs_of([(0.0, None), (BEGAN + 30.0, None), (0.0, BEGAN - 1.0)], served, SMALL) == (50.0, 3.0, 2)


def test_each_round_has_all_runs_in_an_order_of_its_own():
    queries, arms = [workload("q0"), workload("q5"), workload("q8")], [arm_of("fixed:1"), arm_of("autopilot")]
    runs = suite.Suite(Setup(CLUSTER), [[[query]] for query in queries], arms, rounds=2).runs
    first, second = ([(groups[0][0].name, arm.name) for groups, arm in runs[part * 6 :][:6]] for part in range(2))
    assert first != second
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 6


def test_queries_may_have_targets_of_their_own():
    chosen = queries_of("q5@20s, q0,q5@30s")
    assert {query.name: target for query, target in chosen.items()} == {"q5": 30.0, "q0": None}
    setup = Setup(CLUSTER, target_latency=5.0)
    assert [setup.target(workload("q0", target=each)) for each in (None, 20.0)] == [5.0, 20.0]
    (row,) = suite.table_of([replace(outcome(), target=20.0)], 5.0).rows
    assert row[0] == "q5 (within 20 s)"


@pytest.mark.parametrize(("target", "interval"), [(5.0, 2000), (6.0, 2400), (0.0001, 1)])
def test_trigger_is_an_interval_that_spark_reads(target, interval):
    assert trigger_interval(target) == f"{interval} milliseconds"


def test_scripted_autopilot_scales_out_and_in_as_requested():
    plant, requested = FakePlant(partitions=6), [1]
    policy = ByLoad(hosts=Scripted(lambda: requested[0]))

    def hosts(number):
        requested[0] = number
        for _ in range(20):
            plant.clock.sleep_until(plant.clock.now() + 1)
            for action in policy.plan(plant.observe()).actions:
                assert plant.apply(action).succeeded
        return len(plant.observe().working)

    assert [hosts(number) for number in (1, 2, 1)] == [1, 2, 1]


def test_most_frequent_cause_of_a_late_query_is_kept():
    causes = Causes()
    sentences = ["a is late because of b", "", "a is late because of c", "a is late because of b"]
    for sentence in sentences:
        causes.observed(SimpleNamespace(diagnoses={"a": Diagnosis(sentence=sentence)}))
    unknown = {"a": Diagnosis(sentence="the latency of a is unknown", measured=False)}
    for _ in range(9):
        causes.observed(SimpleNamespace(diagnoses=unknown))
    assert causes.sentences["a"].most_common(1) == [("a is late because of b", 2)]


def test_queries_that_run_together_have_a_pool_by_target():
    groups = [[workload("q0", target=2.0), workload("q1", target=10.0), workload("q2", target=10.0)]]
    assert pools_of(Setup(CLUSTER), groups) == [Pool("2 s", 5), Pool("10 s", 1)]
    assert pools_of(Setup(CLUSTER), [[each] for each in groups[0]]) == []


@given(seconds=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=9))
def test_host_time_is_divided_by_task_time(seconds):
    shares = shares_of(seconds)
    assert sum(shares) == pytest.approx(1.0)
    assert sorted(shares) == pytest.approx(sorted(each / sum(seconds) if sum(seconds) else shares[0] for each in seconds))


def test_table_has_medians_and_marks_wrong_answers():
    outcomes = [
        outcome(p50=1.0),
        outcome(p50=3.0),
        outcome(p50=2.0),
        outcome("q10", correct=False),
        outcome("q8", correct=None),
        replace(outcome("q11"), rows=0),
    ]
    table = suite.table_of(outcomes, 5.0)
    assert [row[0] for row in table.rows] == ["q5", "q8", "q10", "q11"]
    assert [row[-1] for row in table.rows] == ["correct", "incomplete", "WRONG", "no rows"]
    assert table.rows[0][3] == "2.00"
    assert table.good == (None, None, False, None)


def test_arms_that_scale_are_compared_with_the_best_fixed_arm_by_round():
    def run(arm, seconds, in_time):
        return Outcome("q5", arm, Service(100, 10.0, in_time, 1.0, 2.0, 1.5, 0, BEGAN), seconds, 1.0, 1, True)

    rounds = [
        [
            *(run("fixed:1", 50.0, 0.8), run("fixed:2", 100.0, 1.0), run("fixed:4", 200.0, 1.0)),
            *(run("dra", 90.0 + number, 0.9), run("autopilot", 60.0 + number, 1.0)),
        ]
        for number in range(3)
    ]
    table = suite.against([each for runs in rounds for each in runs])
    assert [row[1:3] for row in table.rows] == [
        ("autopilot", "fixed:2, best fixed"),
        ("autopilot", "dra"),
        ("dra", "fixed:2, best fixed"),
    ]
    assert [row[-1] for row in table.rows] == ["better", "better", "undecided"]
    assert table.rows[0][3].startswith("0.61 (")
    assert table.rows[0][5].startswith("1.000 (")


def test_one_round_decides_nothing_and_fixed_arms_alone_are_not_compared():
    assert suite.against([outcome(arm="fixed:1"), outcome(arm="dra")]).rows[0][-1] == "undecided"
    assert suite.against([outcome(arm="fixed:1")]) is None


def test_page_and_figures_hold_every_run():
    runs = suite.Suite(Setup(CLUSTER, kafka="a:1"), [[[workload("q5")]]], [arm_of("fixed:1")])
    facts = suite.conditions(runs, "constant", {"disorder, s": 1.0})
    figures = json.loads(json.dumps(suite.figures_of([outcome(p50=float("nan"))], facts), allow_nan=False))
    assert figures["runs"][0]["service"]["p50"] is None
    assert figures["runs"][0]["service"]["throughput"] == 10.0
    assert figures["conditions"]["load"] == "constant, 100 events in 10 s"
    assert figures["conditions"]["events"] == "through Kafka at a:1"
    page = render(suite.page_of("Nexmark", [outcome()], runs, facts))
    assert "two window aggregates in a row" in page


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--queries", "q0,q77"], "there is no query 'q77' (there are: q0 to q22)"),
        (
            ["--arms", "fixed:2,magic"],
            "there is no arm 'magic' (there are: fixed:N, watched:N, dra, autopilot, autopilot:POLICY)",
        ),
        (["--arms", "fixed:none"], "the arm 'fixed:none' needs a number of hosts, such as fixed:2"),
        (["--arms", "watched:0"], "the arm 'watched:0' needs a number of hosts, such as watched:2"),
        (["--queries", "q0@soon"], "target: "),
        (["--queries", "q0@0s"], "target is '0s'; it must be more than 0"),
        (["--arms", "autopilot:magic"], "magic"),
        (["--setting", "spark.jars"], "KEY=VALUE"),
        (
            ["--master", "mesos://a:1"],
            "'mesos://a:1' is not a master: it is spark://HOST:PORT, yarn or k8s://https://HOST:PORT",
        ),
        (["--master", "spark://"], "'spark://' is not a Standalone master: its URL is spark://HOST:PORT"),
        (["--master", "k8s://https://a:1"], "run an image: name it with --setting spark.kubernetes.container.image=IMAGE"),
        (["--master", "spark://a:1", "--kill", "1"], "--kill kills local hosts: leave out --master"),
        (["--scale"], "--scale lets Autopilot scale: choose --arms autopilot"),
        (["--load", "zigzag"], "there is no load 'zigzag' (there are: constant, wave, steps, burst, and files"),
        (["--rate", "900G/s"], "is not a rate"),
        (["--rate", "900M/s"], "a rate of 900.00M/s is more than this machine can make: its"),
        (["--disorder", "9s"], "a disorder of 9 s"),
        (["--folder", "/nowhere"], "'/nowhere' does not exist"),
        (["--queries", ""], "there is no query ''"),
        (["--arms", ""], "there is no arm ''"),
        (["--kafka", "broker"], "Kafka broker: 'broker' is not host:port"),
        (["--kafka", "a:1,b:port"], "Kafka broker: 'b:port' is not host:port"),
    ],
)
def test_bad_arguments_end_with_one_sentence_and_status_2(arguments, sentence):
    result = bench(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(("share", "refused"), [(0.0, False), (0.01, True)])
def test_late_events_behind_the_watermark_are_refused(share, refused):
    events = Events(load=LOAD, disorder=1.0, late_share=share, late_by=3.0)
    with pytest.raises(InputError, match="a disorder of 4 s") if refused else nullcontext():
        Nexmark(query_of("q5"), events)


def test_a_rate_within_the_measured_ceiling_is_allowed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        suite.check([workload("q0")])
    with pytest.raises(InputError, match=r"cores make .*/s"):
        suite.check([workload("q0"), workload("q1", rate=1e12)])


def test_failed_query_is_named_with_the_cause_in_the_jvm():
    text = "An exception was raised by the Python Proxy.\npy4j.protocol.Py4JJavaError\n: a.b.SparkException: Job aborted"
    query = SimpleNamespace(exception=lambda: RuntimeError(text))
    with pytest.raises(EnvironmentProblem, match=r"^q5 failed: Job aborted$"):
        Job(workload("q5"), query, Path(), 5.0).check()


def test_a_cluster_without_room_is_named_with_its_reason():
    pending = PendingReason("the master has no worker", refused=True)
    with pytest.raises(EnvironmentProblem, match="2 executors did not come within 0 s: the master has no worker"):
        wait(lambda: False, "2 executors", lambda: pending, timeout=0.0)


def test_executors_that_will_never_come_are_not_awaited():
    pending = PendingReason("no such image", refused=True, never=True)
    with pytest.raises(EnvironmentProblem, match="2 executors will not come: no such image"):
        wait(lambda: False, "2 executors", lambda: pending)


def test_executors_on_other_machines_need_a_folder():
    check_reached(["127.0.0.1"])
    with pytest.raises(EnvironmentProblem, match=r"an executor is at 192.0.2.7, on another machine: name a --folder"):
        check_reached(["127.0.0.1", "192.0.2.7"])


def test_a_spark_without_transform_with_state_is_named():
    with pytest.raises(EnvironmentProblem, match=r"q4 needs transformWithState, which PySpark .* lacks"):
        workload("q4").check(grouped=object)


def test_a_spark_without_the_best_rows_of_a_group_is_named():
    class Functions:
        @staticmethod
        def min_by(col, ord): ...

    with pytest.raises(EnvironmentProblem, match=r"q19 needs min_by\(..., k\), which PySpark .* lacks"):
        workload("q19").check(functions=Functions)


@pytest.mark.parametrize("error", [None, InputError("a fault")])
def test_command_leaves_logging_as_it_was(monkeypatch, error):
    package, during = logging.getLogger("elastream"), []
    before = list(package.handlers)

    def run(suite, tell):
        during.extend(package.handlers)
        if error:
            raise error
        return [outcome("q0")]

    monkeypatch.setattr(suite.Suite, "run", run)
    result = bench("--queries", "q0", "--arms", "fixed:1", "--rate", "10/s")
    assert result.exit_code == (2 if error else 0), result.output
    assert len(during) == len(before) + 1
    assert package.handlers == before

"""What Autopilot refuses before it begins, and its pause; without a session that works."""

from types import SimpleNamespace

import pytest

from elastream.api.autopilot import Autopilot
from elastream.clouds.executors import ExecutorProvider
from elastream.clouds.local.local import Local
from elastream.clouds.provider import ProviderOffer
from elastream.core.hosts import PriceList
from elastream.dataflow.endpoints import kafka
from elastream.errors import ElastreamError
from elastream.policies.threshold import Threshold
from elastream.recording.directory import RunDirectory
from support.fake_provider import SMALL, FakeProvider
from support.fake_session import FakeSession


def test_what_becomes_of_the_executors_is_one_of_two():
    with pytest.raises(ElastreamError, match="restore 'gone' is none of leave, original"):
        Autopilot(None, restore="gone")


def test_a_pilot_is_paused_by_the_program_and_by_the_folder(tmp_path):
    pilot = Autopilot(None, folder=tmp_path)
    assert not pilot.paused
    pilot.pause()
    assert pilot.paused
    pilot.unpause()
    assert not pilot.paused
    RunDirectory(tmp_path).pause()
    assert pilot.paused
    pilot.unpause()
    assert not pilot.paused
    assert not RunDirectory(tmp_path).is_paused


def test_a_page_needs_a_folder_to_read():
    with pytest.raises(ElastreamError, match="the live page reads a recording: give Autopilot a folder"):
        Autopilot(None, page=True)


def test_a_topic_whose_offsets_are_to_be_committed_has_a_group():
    with pytest.raises(ElastreamError, match="commits: the topic 'orders' has no group to commit its offsets to"):
        Autopilot(None, commits=[kafka("orders")])


CONTEXT = SimpleNamespace(executorMemory=lambda: 1000)
SESSION = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: CONTEXT)))
BY_CORE = PriceList(core_hour=3600.0)
"""A core costs 1 a second."""


@pytest.mark.parametrize(
    ("pilot", "provider", "price"),
    [
        (Autopilot(SESSION), None, 0.0),
        (Autopilot(SESSION, prices=BY_CORE), None, 2.0),
        (Autopilot(SESSION, prices=BY_CORE), FakeProvider(), 2.0),
        (Autopilot(SESSION), ExecutorProvider(ProviderOffer((SMALL,), 10), FakeSession()), SMALL.price),
        (Autopilot(SESSION, host_type=SMALL), None, SMALL.price),
    ],
    ids=["no price", "a price list", "beside hosts of another cloud", "of the cloud that is leased of", "declared"],
)
def test_executors_that_a_session_has_anyway_cost_what_is_known_of_them(pilot, provider, price):
    assert pilot._type_of_executors(provider, SMALL)(2).price == price


class ConnectSession:
    """What a session of Spark Connect answers where it is asked for what only a driver's process has."""

    builder = None

    def __getattr__(self, name):
        raise AttributeError(f"[JVM_ATTRIBUTE_NOT_SUPPORTED] {name}")


def test_session_of_spark_connect_is_left_alone_and_logged(caplog, tmp_path):
    pilot = Autopilot(ConnectSession(), folder=tmp_path / "run").watch()
    assert pilot.join(60)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "this one is Spark Connect: make the session with SparkSession.builder.master(...)" in record.message
    assert not (tmp_path / "run").exists()


class Looks:
    """An observer without most of what one has."""

    def started(self, header): ...


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"target_latency": -1}, "target_latency: -1 is not a duration: it is negative"),
        ({"target_latency": NAN}, "target_latency: nan is not a duration: it is not a number"),
        ({"target_latency": True}, "target_latency: True is not a duration"),
        ({"target_latency": 0}, "target_latency is 0; it must be more than 0"),
        ({"period": 0}, "period: 0 is not a time from one observation to the next"),
        ({"retention": "abc"}, "retention: 'abc' is not a duration"),
        ({"max_hosts": "8"}, "max_hosts is '8'; it must be a whole number, or None"),
        ({"max_hosts": True}, "max_hosts is True; it must be a whole number, or None"),
        ({"replicas": "1"}, "replicas is '1'; it must be a whole number"),
        ({"registry": 5}, "registry is 5; it must be a registry of prometheus_client, or None"),
        ({"min_hosts": None}, "min_hosts is None; it must be a whole number"),
        ({"min_hosts": 5, "max_hosts": 2}, "1 <= min_hosts <= max_hosts"),
        ({"policy": "threshhold"}, "threshhold"),
        ({"policy": Threshold}, r"policy is the class Threshold; it must be an object, such as Threshold\(\)"),
        (
            {"policy": SimpleNamespace(name="mine", plan=lambda seen: None)},
            "a policy, .*: its 'plan' does not take 2 arguments",
        ),
        ({"cloud": Local}, r"cloud is the class Local; it must be an object, such as Local\(\)"),
        ({"host_type": "small"}, "host_type is 'small'; it must be a HostType, or None"),
        ({"prices": {"core_hour": 1}}, "prices is {'core_hour': 1}; it must be a PriceList, or None"),
        ({"scaling": {"max_hosts": 3}}, "scaling is {'max_hosts': 3}; it must be ScalingRules"),
        ({"commits": "orders"}, r"commits is 'orders'; it must be a list of Kafka topics, kafka\(...\)"),
        ({"observers": [3]}, "observers: 3 is not an observer: it has no started, observed, decided, ended"),
        ({"observers": [Looks()]}, "observers: .* is not an observer: it has no observed, decided, ended"),
        ({"observe_only": "no"}, "observe_only is 'no'; it must be True or False"),
        ({"folder": 3}, "folder is 3; it must be a path, or None"),
        ({"metrics": 99999}, "metrics is 99999; it must be a port from 0 to 65535, or host:port"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_an_argument_of_another_kind_is_refused_by_its_name(arguments, said):
    with pytest.raises(ElastreamError, match=said):
        Autopilot(None, **arguments)


@pytest.mark.parametrize("query", ["q", None, 1, SimpleNamespace(id="a frame")])
def test_what_is_no_query_is_not_watched(query):
    pilot = Autopilot(None)
    with pytest.raises(ElastreamError, match=r"is not a streaming query; give what writeStream...start\(\) returned"):
        pilot.watch(query)
    assert not pilot.running


@pytest.mark.parametrize(
    ("pilot", "queries", "target", "said"),
    [
        ({}, 1, "20s", "watch: a target_latency needs queries, and one of Autopilot's for all others"),
        ({"target_latency": "2s"}, 0, "20s", "watch: a target_latency needs queries"),
        ({"target_latency": "2s"}, 1, "soon", "target_latency: "),
        ({"target_latency": "2s"}, 1, 0, "target_latency is 0; it must be more than 0"),
    ],
)
def test_a_target_of_some_queries_needs_them_and_another(pilot, queries, target, said):
    pilot = Autopilot(None, **pilot)
    with pytest.raises(ElastreamError, match=said):
        pilot.watch(*[SimpleNamespace(id="q", runId="r")] * queries, target_latency=target)
    assert not pilot.running


def test_an_autopilot_that_was_stopped_watches_nothing_more_and_says_so(caplog):
    pilot = Autopilot(ConnectSession())
    pilot.stop()
    assert not pilot.watch().running
    assert [record.message for record in caplog.records] == [
        "autopilot was stopped, and watches nothing more: create another one"
    ]


@pytest.mark.parametrize("session", [None, "spark"])
def test_what_is_no_session_is_called_so(session, caplog):
    assert Autopilot(session).watch().join(60)
    assert [record.message for record in caplog.records] == [f"autopilot does nothing: {session!r} is not a SparkSession"]


def test_a_session_that_was_stopped_is_called_so(caplog):
    stopped = SimpleNamespace(_jsparkSession=object(), sparkContext=SimpleNamespace(_jsc=None))
    assert Autopilot(stopped).watch().join(60)
    said = "autopilot does nothing: the session has been stopped: give it one that runs"
    assert [record.message for record in caplog.records] == [said]

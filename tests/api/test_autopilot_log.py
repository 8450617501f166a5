"""What Autopilot says: on the console, as its status, and at its end."""

import logging
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from elastream import Autopilot
from elastream.api.autopilot_log import AutopilotLog, AutopilotStatus, intentions, on_console
from elastream.core.action import LeaseHost, MoveTask, Outcome, Status
from elastream.core.decision import Decision, Proposal
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.latency import Basis
from elastream.core.metrics import Metric
from elastream.core.observation import Context, MicroBatch, Observation
from elastream.core.task_id import TaskId
from elastream.recording.observer import Ending
from elastream.settings import AutopilotSettings
from elastream.spark.jvm.capabilities import Capabilities
from elastream.spark.jvm.cluster_manager import SessionLimit
from elastream.spark.queries.watched import QueryService, layout_of

SERVICES = {}
QUERIES = SimpleNamespace(services=lambda diagnoses: SERVICES)
PLANT = SimpleNamespace(look_seconds=0.0, describe=lambda host: host, queries=QUERIES)
KIND = HostType("executor", cores=2, price=0.1)
LAYOUT = layout_of((("counts", ("counts/aggregate0",)),))


def spoken(**settings):
    return AutopilotLog(PLANT, AutopilotSettings(**settings), "only observes")


def observation(batches=(), share=math.nan):
    row = Frame(("queries",), {Metric.COMPLIANCE: [share]})
    bases = {"counts": Basis.BOUND}
    return Observation(5.0, Context(LAYOUT, {}, 2.0), Frame(), application=row, batches=batches, latency_basis=bases)


def decision(*outcomes, proposals=(), note="", round=1):
    return Decision(round, 5.0, "by_load", {}, tuple(proposals), tuple(outcomes), {}, note=note)


def steady(every, takes, count=20):
    """Return batches of a query that waits for its trigger: each record may have come right after the poll before."""
    return [MicroBatch("counts", every * n, takes, 10, every + takes, every + takes) for n in range(count)]


@pytest.mark.parametrize(
    ("can", "settings", "leases", "said"),
    [
        (
            Capabilities(None, object(), asks=True),
            {"max_hosts": 8},
            False,
            "may move state partitions and request 1 to 8 executors; leaves",
        ),
        (
            Capabilities(None, object(), asks=True),
            {},
            False,
            "may move state partitions; will not request executors (give it max_hosts); leaves",
        ),
        (
            Capabilities(None, object()),
            {"max_hosts": 4, "observe_only": True},
            True,
            "would only plan to move state partitions and lease and release hosts, up to 4 in all; leaves",
        ),
        (
            Capabilities(None),
            {"max_hosts": 4},
            False,
            "only observes; will not move state partitions or request executors;",
        ),
    ],
)
def test_start_says_what_it_may_do_and_what_not(can, settings, leases, said):
    assert intentions(can, AutopilotSettings(**settings), leases).startswith(said)


def test_status_has_the_figures_and_the_latest_lines():
    log = spoken(target_latency="2s")
    log.observed(observation(steady(every=1.0, takes=0.2), share=0.97))
    log.decided(decision(note="the load rises"))
    status = log.status
    assert (status.state, status.queries, status.basis) == ("watching", ("counts",), "upper bound")
    assert status.messages[-1] == "the load rises"
    assert status.rows()["in time"] == "97.0% within 2 s"
    assert "<td>counts</td>" in status._repr_html_()


def test_status_of_several_queries_says_who_is_late_and_why(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    monkeypatch.setitem(
        SERVICES, "fast", QueryService(2.0, 3.1, 0.5, 0.25, "fast is late because its tasks wait for slots")
    )
    monkeypatch.setitem(SERVICES, "slow", QueryService(20.0, 8.0, 1.0, 0.75))
    log = spoken(target_latency="2s")
    log.observed(observation())
    rows = log.status.rows()
    assert rows["fast"] == "at most 3.1 s of 2 s, 25% of the work; fast is late because its tasks wait for slots"
    assert rows["slow"] == "at most 8 s of 20 s, 75% of the work"
    log.ended(Ending("stopped", 60.0, "the program ended", facts={}))
    assert caplog.messages[-1].endswith("work of fast 25%, slow 75%")


def test_refusal_is_one_line_while_it_lasts(caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    log, lease = spoken(), LeaseHost("h3", "executor", "")
    for number in (1, 2):
        log.decided(decision(proposals=[Proposal(lease, "by_load", refused="max_hosts is 2")], round=number))
    assert [each for each in caplog.messages if "does not" in each] == [f"does not {lease.describe()}: max_hosts is 2"]


def test_remark_of_several_is_said_once_while_it_lasts(caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    log = spoken()
    for number, note in enumerate(["a takes 4 s", "a takes 5 s; b is lost", "a takes 6 s", "b is lost"]):
        log.decided(decision(note=note, round=number))
    assert caplog.messages == ["a takes 4 s", "b is lost", "b is lost"]


def test_end_sums_up_what_was_done(caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    log, move = spoken(target_latency="2s"), MoveTask(TaskId("counts/aggregate0", 1), "h2")
    log.observed(observation(share=0.9))
    log.decided(decision(Outcome(move, Status.DONE)))
    log.ended(Ending("stopped", 60.0, "the program ended", facts={"batches": 30, "records": 1200}))
    stopped, summary = caplog.messages[-2:]
    assert stopped == "autopilot stopped: the program ended"
    assert summary.startswith("autopilot summary: 30 batches of 1,200 records in 60.0 s, 1 partition moved, ")
    assert summary.endswith("90.0% of the records within 2 s (upper bound)")
    assert log.status.state == "ended"


def test_lines_are_on_stderr_unless_logging_is_configured(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest has installed its own
    log = spoken()
    with on_console(True):
        log.ended(Ending("stopped", 1.0, "first"))
        handler = logging.NullHandler()
        logging.getLogger().addHandler(handler)
        log.ended(Ending("stopped", 1.0, "second"))
        logging.getLogger().removeHandler(handler)
    log.ended(Ending("stopped", 1.0, "third"))
    with on_console(False):
        log.ended(Ending("stopped", 1.0, "fourth"))
    said = capsys.readouterr().err
    assert "autopilot stopped: first" in said
    assert not any(each in said for each in ("second", "third", "fourth"))


def test_overlapping_autopilots_leave_the_level_as_it_was(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    level = logging.getLogger("elastream.autopilot").level
    first, second = on_console(True), on_console(True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert logging.getLogger("elastream.autopilot").isEnabledFor(logging.INFO)
    second.__exit__(None, None, None)
    assert logging.getLogger("elastream.autopilot").level == level


def test_round_without_a_known_load_says_so(caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    log = spoken()
    log.observed(observation(steady(every=1.0, takes=0.2)))
    log.decided(decision())
    assert caplog.messages[-1] == "autopilot changes nothing: the load is unknown"


def test_autopilot_that_watches_nothing_yet_shows_its_state():
    pilot = Autopilot(None, target_latency="2s")
    assert repr(pilot) == "<Autopilot waiting>"
    assert pilot.status() == AutopilotStatus(target_latency=2.0)


def leased(state, *, at=100.0, **more):
    """An observation of one host, whose lease is in `state`."""
    lease = Lease("h2", HostType("executor", cores=1), 0.0, state, note=more.pop("note", ""))
    hosts = Frame(("h2",), {Metric.TASKS: [0.0]})
    return replace(observation(), time=at, leases={"h2": lease}, hosts=hosts, **more)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (leased(HostState.RUNNING, pinned={"h2": "1 task of fast"}), "h2 stays: 1 task of fast"),
        (leased(HostState.RELEASING, occupied={"h2": "a task"}), "h2 is leaving, and waits for a task"),
        (leased(HostState.REQUESTED, note="no quota"), "h2 is still pending: no quota"),
        (leased(HostState.REQUESTED), "h2 is still pending: Spark does not say why"),
    ],
    ids=["pinned", "waits", "pending", "pending without a reason"],
)
def test_host_that_cannot_go_or_come_is_explained_once(seen, said, caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    log = spoken()
    log.observed(seen)
    log.observed(replace(seen, time=seen.time + 60.0))
    assert [each.message for each in caplog.records if each.message.startswith("h2")] == [said]


@pytest.mark.parametrize(
    "seen",
    [
        leased(HostState.RUNNING, occupied={"h2": "a task"}),
        leased(HostState.REQUESTED, at=5.0),
        leased(HostState.RELEASING),
    ],
    ids=["it stays anyway", "it may come yet", "it goes"],
)
def test_ordinary_hosts_are_not_explained(seen, caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    spoken().observed(seen)
    assert not [each.message for each in caplog.records if each.message.startswith("h2")]


def test_limit_below_max_hosts_is_named_at_the_start():
    can = Capabilities(None, asks=True, limit=SessionLimit(2, "spark.cores.max=2"))
    said = intentions(can, AutopilotSettings(max_hosts=4), leases=False)
    assert "request 1 to 2 executors (spark.cores.max=2 allows no more)" in said
    assert "allows no more" not in intentions(can, AutopilotSettings(max_hosts=2), leases=False)


def test_the_cost_stands_beside_that_of_other_fleets(caplog):
    log = spoken(target_latency="2s")
    known = {Metric.COST: 0.4, Metric.ARRIVAL_RATE: 100.0, Metric.THROUGHPUT: 100.0}
    row = Frame(("queries",), {metric: [value] for metric, value in known.items()})
    busy = Frame(("counts",), {Metric.BUSY_CORES: [3.0]})
    lease = Lease("h1", KIND, 0.0).to(HostState.STARTING, 0.0).to(HostState.RUNNING, 1.0)
    for time in (5.0, 10.0):
        seen = Observation(time, Context(LAYOUT, {"executor": KIND}, 2.0), busy, application=row, leases={"h1": lease})
        log.observed(seen)
    assert log.status.rows()["cost so far"].startswith("0.40; fixed at the peak 0.30 (3 hosts)")
    with caplog.at_level(logging.INFO):
        log.ended(Ending("stopped", 10.0))
    assert "cost 0.40; fixed at the peak 0.30 (3 hosts)" in caplog.messages[-1]
    assert "cost so far" not in spoken().status.rows()

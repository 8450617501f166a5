"""Spans of planning rounds and actions, received by OpenTelemetry's own SDK."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from elastream.control.loop import Loop
from elastream.core.action import LeaseHost, MoveTask, Outcome, ReleaseHost, Status
from elastream.core.decision import Decision, Fault, Proposal
from elastream.core.plant import Plan
from elastream.core.task_id import TaskId
from elastream.observability.tracing import ROUND_SPAN, SpanObserver
from elastream.recording.observer import Ending
from support.fake_plant import FakePlant


@pytest.fixture
def received():
    return InMemorySpanExporter()


@pytest.fixture
def spans(received):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(received))
    return SpanObserver(provider)


def decision(*outcomes, **more):
    return Decision(3, 10.0, "threshold", outcomes=outcomes, seconds=0.25, **more)


def named(received):
    return {span.name: span for span in received.get_finished_spans()}


def test_a_round_shows_planning_time_inputs_and_refusals(spans, received):
    refused = Proposal(LeaseHost("h9", "small"), "threshold", "max_hosts: at most 4 hosts may be leased")
    spans.decided(decision(seen={"backlog": 7.0, "latency": float("nan")}, proposals=(refused,), hosts=4.0))
    (span,) = received.get_finished_spans()
    assert (span.name, span.start_time, span.end_time) == (ROUND_SPAN, 10_000_000_000, 10_250_000_000)
    assert span.attributes["elastream.seen.backlog"] == 7.0
    assert "elastream.seen.latency" not in span.attributes
    assert span.attributes["elastream.hosts.wanted"] == 4.0
    (event,) = span.events
    assert event.attributes["reason"] == "max_hosts: at most 4 hosts may be leased"


def test_an_action_is_in_the_trace_of_its_round(spans, received):
    spans.decided(decision(Outcome(MoveTask(TaskId("count", 0), "h2", why="busy"), Status.ACCEPTED)))
    found = named(received)
    assert found["elastream.MoveTask"].parent.span_id == found[ROUND_SPAN].context.span_id
    assert found["elastream.MoveTask"].attributes["elastream.why"] == "busy"


def test_what_failed_and_what_raised_are_errors(spans, received):
    fault = Fault.of("policy", "the policy raised", ValueError("no"))
    spans.decided(decision(Outcome(LeaseHost("h2", "small"), Status.FAILED, "no quota"), faults=(fault,)))
    found = named(received)
    assert found["elastream.LeaseHost"].status.status_code is StatusCode.ERROR
    assert found["elastream.LeaseHost"].status.description == "no quota"
    assert found[ROUND_SPAN].status.status_code is StatusCode.ERROR
    assert "ValueError: no" in found[ROUND_SPAN].events[0].attributes["exception.stacktrace"]


def test_a_repeated_decision_is_no_second_round(spans, received):
    spans.decided(decision().with_actual({"cost": 1.0}))
    assert received.get_finished_spans() == ()


def test_what_is_under_way_at_the_end_ends_with_the_run(spans, received):
    spans.decided(decision(Outcome(ReleaseHost("h1"), Status.ACCEPTED)))
    assert "elastream.ReleaseHost" not in named(received)
    spans.ended(Ending("finished", 60.0))
    assert named(received)["elastream.ReleaseHost"].end_time == 60_000_000_000


class LeasesOne:
    name = "leases one"

    def plan(self, observation, memory):
        lease = LeaseHost(observation.host_name(), next(iter(observation.context.host_types)))
        return Plan(() if memory else (lease,), memory=True)


def test_a_lease_lasts_until_its_host_has_come(spans, received):
    Loop(FakePlant(), LeasesOne(), observers=[spans], limit=120.0).run()
    found = named(received)
    assert found["elastream.LeaseHost"].end_time > found["elastream.LeaseHost"].start_time
    assert found["elastream.LeaseHost"].status.status_code is StatusCode.UNSET

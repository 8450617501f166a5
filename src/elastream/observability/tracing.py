"""OpenTelemetry spans of planning rounds and actions. The program or `opentelemetry-instrument` sets up exporters."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from elastream.core.action import Action, DrainHost, LeaseHost, Outcome, ReleaseHost
from elastream.core.decision import Decision
from elastream.core.observation import Observation
from elastream.errors import needed_by
from elastream.recording.observer import Ending, Header

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

ROUND_SPAN = "elastream.round"  # an action's span is `elastream.` and its class
Attributes = Mapping[str, str | int | float]


class SpanObserver:
    """Observer that makes a span for each planning round, and in its trace one for each action.

    A round's span covers planning. A host action's span ends when the host is ready or gone, another action's when it is
    applied.

    Args:
        provider: OpenTelemetry's provider; default: the program's.
    """

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        with needed_by("tracing"):
            from opentelemetry import trace

        self._api = trace
        self._tracer = trace.get_tracer("elastream", tracer_provider=provider)
        self._epoch = 0.0
        self._run: Attributes = {}
        self._open: dict[str, tuple[Action, Span]] = {}

    def started(self, header: Header) -> None:
        self._epoch = header.started
        self._run = {"elastream.flow": header.flow, "elastream.policy": header.policy}

    def observed(self, observation: Observation) -> None:
        for host, (action, span) in list(self._open.items()):
            lease = observation.leases.get(host)
            if lease is None or (isinstance(action, LeaseHost) and lease.ready_at() is not None):
                if lease is None and isinstance(action, LeaseHost):
                    self._set_error(span, f"{host} did not come")
                del self._open[host]
                span.end(self._nanoseconds(observation.time))

    def decided(self, decision: Decision) -> None:
        """Make the spans of a round, unless the decision repeats with its actual effect."""
        if decision.actual:
            return
        begin, end = self._nanoseconds(decision.time), self._nanoseconds(decision.time + decision.seconds)
        metrics = {f"elastream.seen.{name}": value for name, value in decision.seen.items() if value == value}
        hosts = {"elastream.hosts.wanted": decision.hosts} if decision.hosts == decision.hosts else {}
        about: Attributes = {
            "elastream.round": decision.round,
            "elastream.note": decision.remarks,
            "elastream.mode": decision.mode,
        }
        span = self._tracer.start_span(ROUND_SPAN, start_time=begin, attributes={**self._run, **about, **metrics, **hosts})
        for proposal in decision.proposals:
            if proposal.refused:
                span.add_event("refused", {"action": proposal.action.describe(), "reason": proposal.refused}, end)
        for fault in decision.faults:
            span.add_event("exception", {"exception.message": fault.said, "exception.stacktrace": fault.traceback}, end)
            self._set_error(span, fault.said)
        within = self._api.set_span_in_context(span)
        for outcome in decision.outcomes:
            action = outcome.action
            action_span = self._tracer.start_span(
                f"elastream.{type(action).__name__}",
                context=within,
                start_time=end,
                attributes={
                    **self._run,
                    "elastream.action": action.describe(),
                    "elastream.status": outcome.status.value,
                    "elastream.reason": outcome.reason,
                    "elastream.why": action.why,
                },
            )
            self._track(outcome, action_span, end)
        span.end(end)

    def ended(self, ending: Ending) -> None:
        for _, span in self._open.values():
            span.set_attribute("elastream.status", "under way at the end")
            span.end(self._nanoseconds(ending.time))
        self._open.clear()

    def _track(self, outcome: Outcome, span: "Span", at: int) -> None:
        action = outcome.action
        if not outcome.succeeded:
            self._set_error(span, outcome.reason)
        elif isinstance(action, LeaseHost | DrainHost | ReleaseHost):
            if (before := self._open.pop(action.host, None)) is not None:
                before[1].end(at)
            self._open[action.host] = action, span
            return
        span.end(at)

    def _set_error(self, span: "Span", why: str) -> None:
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, why))

    def _nanoseconds(self, time: float) -> int:
        return round((self._epoch + time) * 1e9)

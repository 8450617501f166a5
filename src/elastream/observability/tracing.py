"""Exports planning rounds and actions as OpenTelemetry spans, to whatever the program has set up to receive them.

Only the API of OpenTelemetry is used, as is meant for libraries: the program, or `opentelemetry-instrument`, chooses the
SDK and the exporter; without one nothing is sent. The library is imported only where spans are made.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from elastream.core.action import Action, DrainHost, LeaseHost, Outcome, ReleaseHost
from elastream.core.decision import Decision
from elastream.core.observation import Observation
from elastream.errors import needed_by
from elastream.recording.observer import Ending, Header

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

ROUND = "elastream.round"
"""Name of the span of a planning round; that of an action is `elastream.` and its class."""
Attributes = Mapping[str, str | int | float]


class SpanObserver:
    """An observer that makes a span for each planning round, and in its trace one for each action.

    The span of a round is what planning took. That of an action on a host lasts until the host has come, or is gone; of any
    other action until it was applied. provider: OpenTelemetry's; by default the program's.
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
        """Take note of what runs."""
        self._epoch = header.started
        self._run = {"elastream.flow": header.flow, "elastream.policy": header.policy}

    def observed(self, observation: Observation) -> None:
        """End the spans of hosts that have come, or are gone."""
        for host, (action, span) in list(self._open.items()):
            lease = observation.leases.get(host)
            if lease is None or (isinstance(action, LeaseHost) and lease.ready_at() is not None):
                if lease is None and isinstance(action, LeaseHost):
                    self._fails(span, f"{host} did not come")
                del self._open[host]
                span.end(self._at(observation.time))

    def decided(self, decision: Decision) -> None:
        """Make the spans of a round; nothing where it is repeated with its actual effect."""
        if decision.actual:
            return
        begin, end = self._at(decision.time), self._at(decision.time + decision.seconds)
        known = {f"elastream.seen.{name}": value for name, value in decision.seen.items() if value == value}
        wanted = {"elastream.hosts.wanted": decision.hosts} if decision.hosts == decision.hosts else {}
        about: Attributes = {
            "elastream.round": decision.round,
            "elastream.note": decision.said,
            "elastream.mode": decision.mode,
        }
        span = self._tracer.start_span(ROUND, start_time=begin, attributes={**self._run, **about, **known, **wanted})
        for proposal in decision.proposals:
            if proposal.refused:
                span.add_event("refused", {"action": proposal.action.describe(), "reason": proposal.refused}, end)
        for fault in decision.faults:
            span.add_event("exception", {"exception.message": fault.said, "exception.stacktrace": fault.traceback}, end)
            self._fails(span, fault.said)
        within = self._api.set_span_in_context(span)
        for outcome in decision.outcomes:
            action = outcome.action
            made = self._tracer.start_span(
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
            self._begun(outcome, made, end)
        span.end(end)

    def ended(self, ending: Ending) -> None:
        """End the spans of what is still under way."""
        for _, span in self._open.values():
            span.set_attribute("elastream.status", "under way at the end")
            span.end(self._at(ending.time))
        self._open.clear()

    def _begun(self, outcome: Outcome, span: "Span", at: int) -> None:
        action = outcome.action
        if not outcome.succeeded:
            self._fails(span, outcome.reason)
        elif isinstance(action, LeaseHost | DrainHost | ReleaseHost):
            if (before := self._open.pop(action.host, None)) is not None:
                before[1].end(at)
            self._open[action.host] = action, span
            return
        span.end(at)

    def _fails(self, span: "Span", why: str) -> None:
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, why))

    def _at(self, time: float) -> int:
        """Nanoseconds since 1970 of a time of the run, in seconds."""
        return round((self._epoch + time) * 1e9)

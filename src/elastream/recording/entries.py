"""Takes a run's events apart into the entries of a recording: header, observations, decisions, ending."""

from dataclasses import asdict

from elastream.core.decision import Decision
from elastream.core.observation import Observation
from elastream.dataflow.stages import Layout
from elastream.recording.form import written_ending, written_observation
from elastream.recording.formats import FORMAT
from elastream.recording.observer import Ending, Header, Json, described_further


class Entries:
    """Converts an observer's events to entries for `_write`.

    The header is written when there is something to describe - a plant that watches queries may begin with none, of which
    nothing is recorded - and again, with what was described before, when more comes to run.
    """

    def __init__(self) -> None:
        self._header = Header("", "")
        self._layout: Layout | None = None
        self._hosts: frozenset[str] = frozenset()
        self._described = False
        self._last: Observation | None = None

    def started(self, header: Header) -> None:
        self._header = header
        if header.operators:
            self._describe(header)

    def observed(self, observation: Observation) -> None:
        layout, hosts = observation.context.layout, observation.leases.keys()
        if layout is not self._layout or not hosts <= self._hosts:
            self._layout, self._hosts = layout, frozenset(hosts)
            further = described_further(self._header, observation.context, observation.leases.values())
            if further != self._header and further.operators:
                self._describe(further)
            self._header = further
        if self._described:
            self._write(written_observation(observation, self._last))
            self._last = observation

    def decided(self, decision: Decision) -> None:
        if self._described:
            self._write({"kind": "decision", **decision.to_json()})

    def ended(self, ending: Ending) -> None:
        if not self._described:
            self._describe(self._header)
        self._write(written_ending(ending))

    def _describe(self, header: Header) -> None:
        self._header, self._described = header, True
        self._write({"kind": "start", "format": FORMAT, **_timed(header), **asdict(header)})

    def _write(self, entry: Json) -> None:
        raise NotImplementedError


def _timed(header: Header) -> Json:
    """The time of a header that begins a later part: what is read from the end finds one in each file."""
    return {"time": header.before["time"]} if header.before else {}

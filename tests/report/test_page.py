"""The report is one file that holds the run: its figures, every decision, every lease, every operator."""

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape

from elastream.core.action import LeaseHost
from elastream.core.alarm import Alarm
from elastream.core.decision import Decision, Fault, Proposal
from elastream.core.observation import Observation
from elastream.core.wording import amount, duration_text
from elastream.errors import EnvironmentProblem
from elastream.recording.observer import Ending, Header
from elastream.recording.recorder import Collector, Recording
from elastream.report.flow import flow_html, flow_of_run
from elastream.report.page import MAX_ROWS, cards, render, report_problem, write_report
from elastream.report.plots import plot_html
from elastream.report.summary import summarise
from elastream.report.timeline import timeline
from support.example_run import example_events, example_header, example_recording, lacking_decisions


class Text(HTMLParser):
    """Text of a page, row by row of its tables, and everything it would load from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[str] = []
        self.loaded: list[str] = []
        self.headings: list[str] = []
        self._heading = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._heading = tag in ("h1", "title") or (self._heading and tag == "span")
        if tag == "tr":
            self.rows.append("")
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("h1", "title"):
            self._heading = False

    def handle_data(self, data: str) -> None:
        if self._heading:
            self.headings.append(data)
        if self.rows:
            self.rows[-1] += " " + data.strip()


@pytest.fixture(scope="module")
def recording() -> Recording:
    return example_recording()


@pytest.fixture(scope="module")
def page(recording: Recording) -> str:
    return render(recording)


@pytest.fixture(scope="module")
def text(page: str) -> Text:
    return Text(page)


def test_the_page_has_every_plot_and_mark_of_the_timeline(recording: Recording, page: str) -> None:
    drawn = timeline(recording)
    for plot in drawn.plots:
        assert plot_html(plot) in page
    for mark in (mark for lane in drawn.lanes for mark in lane.marks):
        assert f'data-t="{escape(mark.text)}"' in page


def test_the_page_draws_the_dataflow(recording: Recording, page: str) -> None:
    assert flow_html(flow_of_run(recording.header)) in page
    for name in recording.operators:
        assert f">{name}</text>" in page


def test_nothing_is_loaded_from_elsewhere(page: str, text: Text) -> None:
    assert text.loaded == []
    assert not re.search(r"https?:|@import|<script|url\((?!#)", page)


def test_every_acting_decision_has_a_row_that_says_what_and_why(recording: Recording, text: Text) -> None:
    for decision in recording.decisions:
        if not (decision.proposals or decision.outcomes):
            continue
        (row,) = [row for row in text.rows if re.match(rf"\s*\S+\s+{decision.round}\s", row)]
        for outcome in decision.outcomes:
            assert outcome.action.describe() in row
            assert outcome.action.why in row
            assert outcome.reason in row
        for proposal in decision.proposals:
            assert proposal.refused in row
        for name in decision.predicted:
            assert name.replace("_", " ") in row


def test_idle_rounds_are_reported_together_and_none_is_left_out(recording: Recording, text: Text) -> None:
    told: set[int] = set()
    for row in text.rows:
        times_and_rounds = re.match(r"\s*[\d:]+(?: – [\d:]+)?\s+(\d+)(?: – (\d+))?\s", row)
        if times_and_rounds:
            first, last = times_and_rounds.groups()
            told |= set(range(int(first), int(last or first) + 1))
    assert told == {decision.round for decision in recording.decisions}


def test_every_lease_and_operator_has_a_row(recording: Recording, text: Text) -> None:
    for lease in recording.hosts:
        (row,) = [row for row in text.rows if re.match(rf"\s*{lease.host}\s+small\s", row)]
        assert f" {lease.units(recording.end)} " in row
    for name in recording.operators:
        assert any(re.match(rf"\s*{name}\s", row) for row in text.rows)


def test_what_was_not_measured_is_a_dash(text: Text) -> None:
    (row,) = [row for row in text.rows if re.match(r"\s*lines\s+source", row)]
    assert row.split()[-3:] == ["–", "–", "–"]


def test_the_cards_say_what_the_summary_says(recording: Recording) -> None:
    summary = summarise(recording)
    shown = {card.label: card for card in cards(summary, recording)}
    assert shown["records processed"].value == amount(summary.records)
    assert shown["latency, 99th percentile"].value == duration_text(summary.latency_p99)
    assert shown["latency, 99th percentile"].good is (summary.latency_p99 <= 2.0)
    assert shown["hosts at most"].value == "6"


@pytest.mark.parametrize(("plant", "said"), [("simulated", True), ("spark", False)])
def test_only_a_simulated_run_says_so_in_title_and_heading(plant: str, said: bool) -> None:
    headings = Text(render(example_recording(plant=plant))).headings
    assert len(headings) >= 2
    assert any("simulated" in heading for heading in headings[:1]) is said
    assert any("simulated" in heading for heading in headings[1:]) is said


def test_text_from_a_run_cannot_become_markup() -> None:
    sly = "</script><script>alert(1)</script>"
    collector = Collector()
    collector.started(Header(sly, sly, operators=(), environment={sly: sly}))
    collector.decided(Decision(1, 1.0, "p", note=sly))
    collector.ended(Ending("failed", 2.0, sly))
    page = render(collector.recording)
    assert sly not in page
    assert html.escape(sly) in page


def test_what_a_round_noted_stands_beside_what_it_did() -> None:
    collector = Collector()
    collector.started(example_header())
    refused = Proposal(LeaseHost("h9", "small"), "region manager of east", "infrastructure manager: west has room")
    collector.decided(Decision(1, 1.0, "p", proposals=(refused,), note="every host is full"))
    collector.ended(Ending("stopped", 2.0, ""))
    page = render(collector.recording)
    assert "by region manager of east – infrastructure manager: west has room" in page
    assert ">every host is full<" in page


def test_a_run_of_which_only_the_header_is_known_can_be_reported() -> None:
    collector = Collector()
    collector.started(example_header())
    assert "No planning round was recorded" in render(collector.recording)


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path: Path, recording: Recording) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"^the report .*file/report\.html cannot be written: "):
        write_report(recording, tmp_path / "file" / "report.html")


def test_a_fault_of_the_report_is_logged_as_one_sentence(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    broken = replace(recording, header=replace(recording.header, host_types=({"name": "small"},)))
    sentence = report_problem(broken, "report.html")
    assert sentence == "the report report.html cannot be written: KeyError: 'billing'"
    assert caplog.messages == [sentence]


def test_alarms_have_a_table_with_their_tracebacks(page: str) -> None:
    recorder = Collector()
    recorder.started(example_header())
    seen = next(event for event in example_events() if isinstance(event, Observation))
    recorder.observed(replace(seen, alarms=(Alarm("mover", "thread died <1>", 1.0, "Traceback\n  KeyError"),)))
    written = render(recorder.recording)
    (row,) = [row for row in Text(written).rows if "mover" in row]
    assert " ".join(row.split()).startswith("0:01 not cleared mover thread died <1> traceback Traceback KeyError")
    assert "<h2>Alarms" not in page, "a run without alarms has no table of them"


def test_rounds_in_which_a_policy_lacked_a_metric_share_a_row_that_says_so() -> None:
    recorder = Collector()
    recorder.started(example_header())
    for decision in lacking_decisions():
        recorder.decided(decision)
    (shown,) = [" ".join(row.split()) for row in Text(render(recorder.recording)).rows if "unknown for" in row]
    assert shown.startswith("0:45 – 1:15 3 – 5 cannot size: processed rate of 'lines' unknown for 60 s")
    lacked = summarise(recorder.recording).lacked
    assert lacked
    page = html.unescape(render(recorder.recording))
    assert all(f"The policy {each}." in page for each in lacked), "at the head"


def test_a_round_in_which_something_raised_shows_its_traceback() -> None:
    recorder = Collector()
    recorder.started(example_header())
    fault = Fault("policy mine", "policy mine failed", "Traceback\n  <KeyError>")
    recorder.decided(Decision(1, 2.0, "mine", note=fault.said, faults=(fault,)))
    recorder.decided(Decision(2, 4.0, "mine", {}, (Proposal(LeaseHost("h2", "small"), "mine", "no"),), faults=(fault,)))
    shown = [row for row in Text(render(recorder.recording)).rows if "fault: policy mine Traceback" in row]
    assert [row.split()[:2] for row in shown] == [["0:02", "1"], ["0:04", "2"]]
    assert all("<KeyError>" in row for row in shown)


def many_rounds(count: int) -> Recording:
    recorder = Collector()
    recorder.started(example_header())
    seen = next(event for event in example_events() if isinstance(event, Observation))
    for number in range(count):
        recorder.observed(replace(seen, time=float(number)))
        lease = Proposal(LeaseHost(f"h{number}", "small"), "mine", "no")
        recorder.decided(Decision(number + 1, float(number), "mine", proposals=(lease,)))
    return recorder.recording


def test_report_of_many_rounds_shows_the_first_and_the_last() -> None:
    rows = [row.split() for row in Text(render(many_rounds(1000))).rows]
    rounds = [int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit() and "by" in row]
    assert rounds == [*range(1, MAX_ROWS + 1), *range(1000 - MAX_ROWS + 1, 1001)]
    assert any(f"{1000 - 2 * MAX_ROWS} rows left out" in " ".join(row) for row in rows)


MOST_BYTES = 1_500_000


def test_page_of_a_long_run_is_small() -> None:
    page = render(many_rounds(6_000))
    assert len(page.encode()) <= MOST_BYTES
    assert "(one in 24)" in page

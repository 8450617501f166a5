"""`elastream advise`: output, files and exit statuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elastream.cli.app import app
from support.event_logs import LogOf, Query, Stage, progress


def call(*arguments: object) -> Result:
    """Run the command as in a pipe: each row of a table is one line."""
    return CliRunner(env={"COLUMNS": None}).invoke(app, ["advise", *map(str, arguments)])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A healthy job with a trigger of five seconds, on two executors of two cores."""
    log = LogOf((2, 2))
    for number in range(40):
        rows = 500 + 100 * (number % 9)
        log.batch(Query(), number, 5.0 * number, rows, [Stage([rows / 1000] * 4, rows)], slots=4)
    return log.write(tmp_path / "app-1")


def test_healthy_job_ends_with_status_0(log):
    result = call(log, "--price", "0.1/h")
    assert result.exit_code == 0
    assert "buy this if it stays fixed" in result.output
    assert "0 findings; 1 executor of 2 cores fixed for 99%" in result.output


def test_findings_end_with_status_1(log):
    result = call(log, "--target-latency", "4s")
    assert result.exit_code == 1
    assert "counts is late because of its trigger" in result.output


def test_json_holds_findings_sizes_and_what_is_unknown(log):
    advice = json.loads(call(log, "--json", "--target-latency", "4s").output)
    assert [finding["kind"] for finding in advice["findings"]] == ["trigger"]
    assert advice["sizing"]["curve"][0]["cost"] is None
    assert advice["queries"][0]["trigger"] == 5.0
    assert advice["unknown"]


def test_page_is_one_self_contained_file(log, tmp_path):
    assert call(log, "--html", tmp_path / "advice.html").exit_code == 0
    page = (tmp_path / "advice.html").read_text()
    assert "Advice for shop" in page
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Lines of progress of a query with state that grows."""
    rows = [100 + 20 * (n % 9) for n in range(40)]
    path = tmp_path / "progress.jsonl"
    entries = [progress(Query(), n, 5.0 * n, 0.6 + r / 200, r, state=100 * n) for n, r in enumerate(rows)]
    path.write_text("\n".join(map(json.dumps, entries)))
    return path


def test_lines_of_progress_ask_for_the_cores(lines):
    result = call(lines)
    assert result.exit_code == 1
    assert "no watermark ends it" in result.output
    assert "does not say how many cores the tasks had; give them with --cores" in result.output


def test_lines_of_progress_give_sizes_with_the_cores(lines):
    result = call(lines, "--cores", "4", "--json")
    sizing = json.loads(result.output)["sizing"]
    assert sizing["fixed"]["hosts"] == 2
    assert sizing["error"][1] < 0.1


def test_cores_of_a_log_that_has_them_are_refused(log):
    result = call(log, "--cores", "4")
    assert result.exit_code == 2
    assert "says itself that its tasks had 4 cores: leave out --cores" in result.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "there is no file"), ("", "not a log that can be read"), ("{}\n", "not a log that can be read")],
)
def test_bad_source_ends_with_status_2_and_one_sentence(content, why, tmp_path):
    path = tmp_path / "log"
    if content is not None:
        path.write_text(content)
    result = call(path)
    assert result.exit_code == 2
    assert why in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_price_needs_a_time(log):
    assert call(log, "--price", "3").exit_code == 2

"""The command line: what users see, what goes to stderr, and the exit status - without an engine."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from elastream import __version__
from elastream.cli.app import COMMANDS
from elastream.core.action import LeaseHost, SetParallelism
from elastream.core.alarm import Alarm
from elastream.core.decision import Decision, Fault, Proposal
from elastream.core.latency import Basis
from elastream.core.observation import Observation
from elastream.recording.recorder import Recorder
from support.commands import invoke
from support.example_run import example_events, example_header, lacking_decisions, play
from support.waiting import ended

TESTS = Path(__file__).parent.parent

PROGRAM = """\
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path

from elastream.api.run import Command, launcher
from support.example_run import example_context, play
from elastream.dashboard.showing import shown
from elastream.recording.directory import RunDirectory
from elastream.recording.recorder import Recorder
from elastream.errors import ElastreamError
from elastream.settings import RunSettings

# What run(...) does with the settings of a command, without an engine.
graph, command = example_context().graph, launcher()
if not isinstance(command, Command):
    command(graph, RunSettings(cloud=None))
options = command.applied(RunSettings(cloud=None))
directory = RunDirectory(Path(options.runs) / "word_count-1")
directory.root.mkdir(parents=True)
recorders = [Recorder(directory.recording)]
if options.record:
    recorders.append(Recorder(options.record))
with shown(graph, directory, options) as views:
    for observer in (*recorders, *views, *options.observers):
        play(observer, plant="spark", directory=str(directory.root), end={end})
    {during}
{after}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(textwrap.dedent(text))
    return path


def program(after: str = "", end: bool = True, during: str = "") -> Path:
    return write("job.py", PROGRAM.format(tests=str(TESTS), after=after, during=during, end=end))


@pytest.fixture
def recorded() -> Path:
    folder = Path("runs/word_count-1")
    folder.mkdir(parents=True)
    play(Recorder(folder))
    return folder


def test_the_version_is_the_package_s() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"elastream {__version__}\n")


NESTED = [["bench", "nexmark"], ["guards", "check"], ["tables", "set"]]


@pytest.mark.parametrize("command", [[], *([command.__name__] for command in COMMANDS), *NESTED], ids=str)
def test_every_command_has_help(command: list[str]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
    assert not command or "env var" not in result.stdout


def test_help_and_version_load_no_engine_and_no_templates() -> None:
    code = """
        import sys
        from elastream.cli.app import app
        try:
            app(["--version"])
        except SystemExit:
            pass
        print([name for name in ("pyspark", "jinja2", "pandas", "numpy", "pydantic", "ruamel") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_options_are_read_from_environment_variables(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTREAM_EXPLAIN_ROUND", "10")
    monkeypatch.setenv("ELASTREAM_VERSION", "1")
    assert invoke("explain", recorded).stdout.startswith("round 10 at 0:20")
    assert invoke("explain", recorded, "--round", "1").stdout.startswith("round 1 at")
    monkeypatch.setenv("ELASTREAM_EXPLAIN_ROUND", "soon")
    assert invoke("explain", recorded).exit_code == 2


def test_options_of_run_stand_in_groups() -> None:
    text = invoke("run", "--help", columns=200).stdout
    for group in (
        "Goal and policy",
        "Hosts and Spark",
        "Dataflow and state",
        "Run and its folder",
        "Output and monitoring",
    ):
        assert f"─ {group} ─" in text
    assert "ELASTREAM_RUN" not in text


def test_shell_completion_names_the_commands() -> None:
    environment = {**os.environ, "_ELASTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "elastream st", "COMP_CWORD": "1"}
    code = "from elastream.cli.app import app; app(prog_name='elastream')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["status", "stop", "state"]


def test_quiet_run_writes_its_report_and_prints_nothing() -> None:
    result = invoke("-q", "run", program())
    assert (result.exit_code, result.stdout) == (0, "")
    assert Path("runs/word_count-1/report.html").exists()


def test_verbose_command_logs_to_stderr() -> None:
    code = "import logging; logging.getLogger('elastream.x').info('hello')"
    write("job.py", code)
    command = [sys.executable, "-c", "from elastream.cli.app import app; app()", "-v", "run", "job.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "INFO elastream.x: hello" in done.stderr


def test_a_run_is_followed_summed_up_and_reported_with_the_path_last() -> None:
    result = invoke("run", program(), "--record", "copy.jsonl", "--no-live")
    assert result.exit_code == 0, result.output
    assert "word_count: started with policy threshold" in result.stdout
    assert "39,810 in 211 micro-batches" in result.stdout
    assert result.stdout.splitlines()[-1] == "report  runs/word_count-1/report.html"
    assert "<b>Latency, s</b>" in Path("runs/word_count-1/report.html").read_text(encoding="utf-8")
    assert Path("copy.jsonl").read_text() == Path("runs/word_count-1/recording.jsonl").read_text()


def test_the_report_goes_where_it_is_wanted() -> None:
    result = invoke("run", program(), "--runs", "elsewhere", "--report", "mine.html")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "report  mine.html"
    assert Path("mine.html").exists()
    assert not Path("elsewhere/word_count-1/report.html").exists()


def test_a_run_that_failed_midway_is_reported_as_far_as_it_went() -> None:
    result = invoke("run", program(during="raise ElastreamError('the disk is full')", end=False))
    assert result.exit_code == 2
    assert result.stderr == "elastream: job.py:26: the disk is full\n"
    assert result.stdout.splitlines()[-1] == "report  runs/word_count-1/report.html"
    assert "the recording breaks off" in Path("runs/word_count-1/report.html").read_text()


def test_a_report_that_cannot_be_written_costs_no_result() -> None:
    Path("file").write_text("")
    result = invoke("run", program(), "--report", "file/report.html")
    assert result.exit_code == 0
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("elastream: the report file/report.html cannot be written: ")
    assert "39,810 in 211 micro-batches" in result.stdout
    assert "report  " not in result.stdout


def test_a_summary_that_fails_costs_no_result_and_is_one_sentence() -> None:
    result = invoke("run", program(end=False, during="directory.recording.write_text('no recording')"))
    assert result.exit_code == 0
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("elastream: the run cannot be summed up: ")


def test_a_report_that_cannot_be_written_does_not_hide_what_ended_the_run() -> None:
    Path("file").write_text("")
    result = invoke("run", program(during="raise ElastreamError('the disk is full')"), "--report", "file/report.html")
    first, second = result.stderr.splitlines()
    assert first.startswith("elastream: the report file/report.html cannot be written: ")
    assert second == "elastream: job.py:26: the disk is full"


def test_an_interrupt_ends_with_status_130_and_a_report() -> None:
    result = invoke("run", program(during="raise KeyboardInterrupt", end=False))
    assert result.exit_code == 130
    assert Path("runs/word_count-1/report.html").exists()
    assert "Traceback" not in result.output


STOPPED = """
from elastream.recording.observer import Ending
for observer in options.observers:
    observer.ended(Ending("stopped", 50.0, "{why}"))
"""


@pytest.mark.parametrize(
    ("why", "limit", "status"),
    [("on request", None, 130), ("its limit of 60 s was reached", "1min", 0)],
)
def test_a_run_that_ended_in_order_after_an_interrupt_has_status_130(why: str, limit: str | None, status: int) -> None:
    extra = ["--limit", limit] if limit else []
    result = invoke("run", program(STOPPED.format(why=why), end=False), *extra)
    assert result.exit_code == status


def test_program_is_the_main_module_and_has_its_own_exit_status() -> None:
    write("neighbour.py", "answer = 42\n")
    result = invoke("run", program("import neighbour; print(__name__, neighbour.answer, sys.argv); sys.exit(7)"))
    assert "__main__ 42 ['job.py']" in result.stdout
    assert result.exit_code == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", ":1: SyntaxError: '(' was never closed"),
        ("def f():\n    return 1 / 0\n\nf()\n", ":2: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('')\n", ":2: JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("from elastream.loads import ramp\n\nramp('5 parsecs', '7/s', over='1s')\n", ":3: '5 parsecs' is not a rate: "),
        ("x = 1\n", " runs no dataflow: call run(flow) in it"),
        (
            "from elastream import Dataflow\nmine = Dataflow('words')\n",
            " declares the dataflow 'words' but",
        ),
        (
            "from elastream import Dataflow\na, b = Dataflow('a'), Dataflow('b')\n",
            " declares 2 dataflows (a, b) but",
        ),
    ],
)
def test_a_program_that_fails_is_one_sentence_with_file_and_line(text: str, said: str) -> None:
    result = invoke("run", write("broken.py", text))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"elastream: broken.py{said}")


def test_a_fault_of_ours_keeps_its_stack_trace() -> None:
    text = "from elastream.core.wording import clock\nclock('not a number')\n"
    result = invoke("run", write("broken.py", text))
    assert isinstance(result.exception, ValueError)
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nothing.py"], "there is no file nothing.py"),
        (["check", "nothing.yaml"], "there is no file nothing.yaml"),
        (["run", "job.txt"], "job.txt is neither a Python program (.py) nor a document (.yaml)"),
        (["explain", "runs/word_count-1", "--round", "99"], "runs/word_count-1 has no round 99: it has 1 to 90"),
        (
            ["explain", "runs/word_count-1", "--at", "1s"],
            "runs/word_count-1: no planning round by 1 s; the first round was at 2 s",
        ),
        (["report", "elsewhere"], "there is no recording at elsewhere: No such file or directory"),
    ],
)  # fmt: skip
def test_what_a_user_can_put_right_is_one_sentence(recorded: Path, arguments: list[str], sentence: str) -> None:
    Path("job.txt").write_text("")
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr) == (2, f"elastream: {sentence}\n")


@pytest.mark.parametrize("arguments", [["--limit", "soon"], ["--limmit", "3s"], []])
def test_a_wrong_option_is_a_usage_error(arguments: list[str]) -> None:
    assert invoke("run", *arguments).exit_code == 2


def test_a_report_is_written_beside_the_recording(recorded: Path) -> None:
    result = invoke("report", recorded)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"report  {recorded}/report.html")
    assert (recorded / "report.html").exists()
    assert invoke("report", recorded / "recording.jsonl", "-o", "out.html").exit_code == 0
    assert Path("out.html").exists()


@pytest.mark.parametrize(
    "command", [("report", "-o"), ("report", "--html"), ("advise", "--html"), ("experiment", "--html")]
)
def test_page_needs_a_file(recorded: Path, command: tuple[str, str]) -> None:
    name, option = command
    result = invoke(name, recorded, option, "-")
    assert result.exit_code == 2
    assert "a page cannot go to standard output: name a file" in " ".join(result.stderr.replace("│", " ").split())
    assert not Path("-").exists()


def test_explain_lists_what_was_done_and_why(recorded: Path) -> None:
    out = invoke("explain", recorded).stdout
    assert re.search(r"0:20\s+10\s+lease h2 \(small\) \(utilisation 75% is above 70%\)", out)
    assert "of 90 rounds had nothing to do" in out


def test_figures_of_a_run_are_printed_as_json(recorded: Path) -> None:
    rounds = json.loads(invoke("explain", recorded, "--json").stdout)["rounds"]
    assert (len(rounds), rounds[9]["time"]) == (90, 20.0)
    single = json.loads(invoke("explain", recorded, "--round", "10", "--json").stdout)
    assert single["outcomes"][0]["status"] == "accepted"
    summary = json.loads(invoke("report", recorded, "--json").stdout)
    assert (summary["status"], summary["rounds"]) == ("finished", 90)
    assert Path(summary["report"]).exists()


def test_report_is_opened_on_request(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    assert invoke("report", recorded, "--open").exit_code == 0
    assert opened == [(recorded / "report.html").resolve().as_uri()]


def test_nothing_wraps_in_a_pipe(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    narrow = invoke("explain", recorded).stdout
    monkeypatch.delenv("COLUMNS")
    wide = invoke("explain", recorded).stdout
    assert len(wide.splitlines()) < len(narrow.splitlines())
    assert wide.split() == narrow.split()


@pytest.mark.parametrize(
    "which", [["--round", "10"], ["--at", "20s"], ["--at", "21.5s"], ["--at", "0:20"], ["--at", "0:00:21"]]
)
def test_explain_shows_a_round_from_metrics_to_measured_results(recorded: Path, which: list[str]) -> None:
    out = invoke("explain", recorded, *which).stdout
    for part in (
        "round 10 at 0:20 (20.0 s), policy threshold",
        "arrival rate: 83/s",
        "lease h2 (small), by infrastructure - utilisation 75% is above 70%",
        "lease h2 (small): accepted, the worker is starting",
        "utilisation: 38% predicted, 89% measured",
    ):
        assert part in out


def test_explain_tells_why_a_proposal_was_refused_and_why_nothing_was_done(recorded: Path) -> None:
    assert "refused: 6 hosts are leased, which is the most allowed" in invoke("explain", recorded, "--at", "80s").stdout
    assert "nothing: within its thresholds" in invoke("explain", recorded, "--round", "1").stdout


def test_explain_tells_refusals_and_remarks_of_managers() -> None:
    recorder = Recorder(Path("runs/managers-1"))
    play(recorder, end=False)
    refused = (
        Proposal(SetParallelism("split", 3), "operator manager of split", "application manager: no token is left"),
        Proposal(LeaseHost("h9", "small"), "region manager of east", "infrastructure manager: west has room"),
    )
    for number in (201, 202):
        recorder.decided(Decision(number, 500.0 + number, "e2df", proposals=refused, note="every host is full"))
    told = invoke("explain", "runs/managers-1", "--round", "201").stdout
    assert "split x 3, by operator manager of split; refused: application manager: no token is left" in told
    assert "lease h9 (small), by region manager of east; refused: infrastructure manager: west has room" in told
    assert "noted\n  every host is full" in told
    listed = " ".join(invoke("explain", "runs/managers-1").stdout.split())
    assert listed.count("infrastructure manager: west has room; every host is full") == 1, "told again"


def test_a_manager_that_cannot_be_is_one_sentence() -> None:
    result = invoke("manager", "manager.yaml")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "manager.yaml cannot be read: No such file" in result.stderr


def test_explain_lists_alarms_and_shows_those_that_stood_at_a_round() -> None:
    recorder = Recorder(Path("runs/alarms-1"))
    recorder.started(example_header())
    seen = next(event for event in example_events() if isinstance(event, Observation))
    alarm = Alarm("mover", "thread died: KeyError: 'x'", 1.0, "Traceback:\n  in step")
    for second in range(4):
        recorder.observed(replace(seen, time=float(second), alarms=(alarm,) if second in (1, 2) else ()))
        recorder.decided(Decision(second + 1, float(second), "threshold"))
    assert "alarm at 0:01, cleared at 0:03  mover: thread died: KeyError: 'x'" in invoke("explain", "runs/alarms-1").stdout
    told = invoke("explain", "runs/alarms-1", "--round", "3").stdout
    assert "alarms\n  mover: thread died: KeyError: 'x' (since 1.0 s)\n    Traceback:\n      in step\n" in told
    assert all("alarms" not in invoke("explain", "runs/alarms-1", "--round", n).stdout for n in ("1", "4"))


def test_explain_tells_for_how_long_a_policy_lacked_a_metric() -> None:
    recorder = Recorder(Path("runs/lacking-1"))
    recorder.started(example_header())
    for decision in lacking_decisions(4):
        recorder.decided(decision)
    (line,) = [line for line in invoke("explain", "runs/lacking-1").stdout.splitlines() if "unknown" in line]
    assert line.split("  ")[-1] == "cannot size: processed rate of 'lines' unknown for 45 s"
    assert line.split()[:2] == ["0:45", "3"], "rounds that say the same share a line, from the first of them on"
    told = invoke("explain", "runs/lacking-1", "--round", "2").stdout
    assert "\n  cannot size: processed rate of 'lines' unknown for 15 s\n" in told


def test_explain_lists_and_shows_rounds_that_failed_and_the_newest_metrics() -> None:
    recorder = Recorder(Path("runs/faults-2"))
    recorder.started(example_header())
    seen = next(event for event in example_events() if isinstance(event, Observation))
    recorder.observed(replace(seen, latency_basis={"lines": Basis.BOUND}))
    fault = Fault("policy mine", "policy mine failed: KeyError: 'x'", "Traceback:\n  in plan")
    recorder.decided(Decision(1, 2.0, "mine", faults=(fault,)))
    recorder.decided(Decision(2, 4.0, "mine"))
    told = invoke("explain", "runs/faults-2", "--round", "1").stdout
    assert "fault\n  policy mine failed: KeyError: 'x'\n    Traceback:\n      in plan\n" in told
    told = " ".join(invoke("explain", "runs/faults-2").stdout.split())
    assert "0:02 1 policy mine failed: KeyError: 'x' 1 of 2" in told
    assert "1 of 2 rounds had nothing to do, 1 failed (--round N shows why)" in told
    assert re.search(r"newest metrics, at 0:0\d: arrival rate \d+/s", told)
    assert "latency is measured: upper bound" in told


def test_explain_takes_a_round_or_a_time(recorded: Path) -> None:
    assert invoke("explain", recorded, "--round", "1", "--at", "1s").exit_code == 2


DOCUMENT = """\
dataflow: word_count
operators:
  lines: {source: {text_files: books/}}
  words: {from: lines, flat_map: "builtins:list", returns: word string}
  out: {from: words, sink: {collect: words}}
"""


@pytest.fixture
def books() -> None:
    Path("books").mkdir()
    Path("books/one.txt").write_text("to be or not to be\n")


VALID = "flow.yaml: dataflow 'word_count' is valid: 3 operators, 1 stage, 1 query"


@pytest.mark.usefixtures("books")
def test_check_shows_what_a_run_and_a_simulation_need() -> None:
    result = invoke("check", write("flow.yaml", DOCUMENT))
    assert result.exit_code == 0
    simulation = "--load (source 'lines' declares none); --calibrate RUN ('words' declares no cost)"
    assert result.stdout.splitlines()[-3:] == [
        "to run it, give --cloud, such as --cloud in-process",
        f"to simulate it, give {simulation}; --prices (no host type is declared)",
        VALID,
    ]


CLOUDLESS = """
from elastream import Dataflow, run
from elastream.io import collect, records
from elastream.loads import constant
flow = Dataflow("a")
lines = flow.source(records([{"value": "x"}], "value string"), load=constant("50/s", lasts="20s"))
lines.map(lambda row: row, returns="value string").sink(collect("c"))
run(flow)
"""


def test_a_program_that_names_no_cloud_needs_none() -> None:
    result = invoke("check", write("cloudless.py", CLOUDLESS))
    assert result.exit_code == 0
    assert "to run it" not in result.stdout


def test_check_refuses_what_a_run_would_refuse() -> None:
    result = invoke("check", write("flow.yaml", DOCUMENT))
    assert (result.exit_code, result.stderr) == (
        2,
        "elastream: flow.yaml:3: operators.lines.source: there is no file or folder books\n",
    )


def test_a_document_without_a_cloud_cannot_be_run() -> None:
    result = invoke("run", write("flow.yaml", DOCUMENT))
    assert (result.exit_code, result.stderr) == (
        2,
        "elastream: flow.yaml: key 'cloud' is missing: a run needs one, such as 'cloud: in-process'\n",
    )


@pytest.mark.usefixtures("books")
def test_check_stops_a_program_where_it_would_run() -> None:
    result = invoke("check", program("raise AssertionError('it went on')"))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "job.py: dataflow 'word_count' is valid: 4 operators, 2 stages, 1 query"
    assert not Path("runs").exists()


@pytest.mark.usefixtures("books")
def test_check_takes_a_program_that_only_declares_its_dataflow() -> None:
    text = """\
        from elastream import Dataflow
        from elastream.io import collect, text_files
        flow = Dataflow("short")
        flow.source(text_files("books")).filter(bool).sink(collect("y"))
    """
    result = invoke("check", write("flow.py", text))
    assert result.stdout.splitlines()[-1] == "flow.py: dataflow 'short' is valid: 3 operators, 1 stage, 1 query"


def test_ctrl_c_ends_the_real_command_with_130_and_no_stack_trace() -> None:
    during = "print('ready', flush=True); import time; time.sleep(600)"
    job = program(during=during, end=False)
    command = [sys.executable, "-c", "from elastream.cli import main; main()", "run", str(job)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        while (line := running.stdout.readline()) != "ready\n":
            assert line, "it ended"
        os.kill(running.pid, signal.SIGINT)
        out, problems = ended(running)
    assert running.returncode == 130
    assert out.splitlines()[-1] == "report  runs/word_count-1/report.html"
    assert problems == ""


REAL = (sys.executable, "-c", "from elastream.cli import main; main()")


def test_a_terminal_that_lacks_a_character_shows_another() -> None:
    write("öl.yaml", "dataflow: öl\noperators:\n  a: {source: simulated}\n  b: {from: a, sink: simulated}\n")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = (*REAL, "check", "öl.yaml")
    shown = subprocess.run(command, capture_output=True, env=environment, text=True, timeout=60)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "dataflow '?l' is valid" in shown.stdout


def test_output_on_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run((*REAL, "--help"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (shown.returncode, shown.stderr) == (2, "elastream: the output cannot be written: No space left on device\n")

"""What is wrong with a program, its input or the machine: one clear sentence, exit status 2, nothing left running."""

import socket
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from typer.testing import Result

from elastream.recording.recorder import Recording
from support.commands import invoke

SOUND = """
from elastream import Dataflow, HostType, Local, run
from elastream.clouds import Pool
from elastream.io import collect, text_files
from elastream.loads import constant
from elastream.policies import Threshold

flow = Dataflow("words")
lines = flow.source(text_files({path!r}), load=constant("1/s", "1s"), name="lines")
lines.flat_map(str.split, returns="word string", name="split").key_by("word").count().sink(collect("out"))
run(flow, policy=Threshold(), cloud={cloud}{more})
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("books").mkdir()
    Path("books/one.txt").write_text("to be or not to be\n")


def run(program: str) -> Result:
    Path("job.py").write_text(textwrap.dedent(program))
    return invoke("run", "job.py", "--no-live")


def program(path: str = "books", cloud: str = "Local()", more: str = "") -> str:
    return SOUND.format(path=path, cloud=cloud, more=more)


def refused(result: Result, *named: str) -> None:
    """One sentence that names the thing, status 2, no stack trace, no process of ours."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    # A command that takes ten seconds, as on a busy machine, prints its progress.
    (told,) = [line for line in result.stderr.splitlines() if line.strip() and " done: " not in line]
    assert told.startswith("elastream: ")
    for name in named:
        assert name in told
    assert javas() <= THERE


def javas() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True) if "java" in each.name()}


THERE: set[int] = set()
"""Java processes of this one that ran before the test: a session that tests of other modules share."""


@pytest.fixture(autouse=True)
def known_javas() -> None:
    THERE.clear()
    THERE.update(javas())


def unreadable() -> None:
    Path("books/two.txt").write_bytes(b"caf\xe9\n")


def emptied() -> None:
    Path("books/one.txt").unlink()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [(unreadable, ("two.txt", "UTF-8")), (emptied, ("books",))],
)
def test_input_that_cannot_be_read_is_named(spoil: Callable[[], None], named: tuple[str, ...]) -> None:
    spoil()
    refused(run(program()), *named)


@pytest.mark.parametrize(
    ("cloud", "named"),
    [
        ("Local(HostType('cheap', cores=1, memory=2000, price=-1))", ("'cheap'", "negative price")),
        ("Local(host_type='enormous')", ("'enormous'", "small")),
        ("Local(), ports=range(7077, 7078)", ("ports", "two")),
        ("Pool('http://127.0.0.1:9', 'words')", ("no pool answers at http://127.0.0.1:9",)),
        ("Pool('nowhere', 'words')", ("nowhere",)),
    ],
)
def test_hosts_that_cannot_be_are_named(cloud: str, named: tuple[str, ...]) -> None:
    refused(run(program(cloud=cloud)), *named)


def test_no_java_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    refused(run(program()), "Java 17")


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(run(program(more=f", ports=range({port}, {port + 2})")), str(port), "in use")


def test_a_runs_folder_that_cannot_be_written_is_named() -> None:
    Path("file").write_text("")
    result = invoke("run", _written(program()), "--no-live", "--runs", "file/runs")
    refused(result, "file/runs")


def _written(text: str) -> Path:
    path = Path("job.py")
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["reactive", "--plant", "spark"], ("reactive", "spark", "simulated")),
        (["nothing"], ("nothing", "visp")),
        (["visp", "--moves", "1,4"], ("visp", "moves")),
        (["nstorm", "--moves", "1,17"], ("1 to 16", "1,17")),
        (["policies", "--plant", "spark"], ("policies", "spark", "simulated")),
        (["policies", "--sensitivity"], ("policies", "sensitivity")),
        (["policies", "--rates", "nowhere.csv"], ("nowhere.csv",)),
        (["visp", "--cells", "3"], ("visp", "cells")),
    ],
)
def test_an_experiment_that_cannot_be_run_is_named_with_those_that_can(
    arguments: list[str], named: tuple[str, ...]
) -> None:
    result = invoke("experiment", *arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    for name in named:
        assert name in result.output


@pytest.mark.parametrize("command", [("experiment", "otd"), ("bench", "nexmark"), ("bench", "demand", "nexmark:q5")])
@pytest.mark.parametrize("option", ["--json", "--html"])
def test_file_of_figures_that_cannot_be_written_is_refused_first(tmp_path: Path, command: tuple[str, ...], option) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "page"):
        result = invoke(*command, option, place)
        assert result.exit_code == 2
        assert "cannot be written" in result.stderr


def test_devices_take_figures() -> None:
    for place in ("/dev/null", "-"):
        result = invoke("experiment", "nothing", "--json", place)
        assert "there is no experiment 'nothing'" in result.stderr


def test_command_without_experiments_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastream.evaluation.experiments.entry_points", lambda group: ())
    result = invoke("experiment", "visp")
    assert result.exit_code == 2
    assert "pip install elastream-papers" in result.output


def test_a_run_that_could_not_be_started_keeps_a_recording_that_says_why() -> None:
    burning = "def open(self, folder, **more): raise CloudError('the rack is on fire')"
    cloudy = f"from elastream.errors import CloudError\nclass Rack(Local):\n    {burning}\n"
    text = textwrap.dedent(program(cloud="Rack()"))
    refused(run(text.replace("\nflow = ", f"\n{cloudy}\nflow = ", 1)), "the rack is on fire")
    (folder,) = Path("runs").iterdir()
    recording = Recording.read(folder)
    assert recording.operators
    assert recording.ending is not None
    assert recording.ending.status == "failed"
    explained = invoke("explain", folder)
    assert (explained.exit_code, "no planning round" in explained.stderr) == (2, True)
    assert "the rack is on fire" in explained.stderr
    reported = invoke("report", folder)
    assert reported.exit_code == 0, reported.output
    assert "the rack is on fire" in (folder / "report.html").read_text()


DOCUMENT = """
dataflow: payments
target_latency: {target}
operators:
  payments: {{source: {{text_files: books}}, load: {load}}}
  parse: {{from: payments, map: 'builtins:str', returns: x string, cost: {cost}, cores: {cores}}}
  out: {{from: parse, sink: {{collect: out}}}}
policy: threshold
cloud: {{local: {{host_type: small, max_hosts: 2}}}}
"""
USUAL = {"target": "20s", "load": "{constant: {rate: 2k/s, lasts: 1min}}", "cost": "50us", "cores": "0.25"}


def with_document(*command: str, **changed: str) -> Result:
    Path("flow.yaml").write_text(DOCUMENT.format(**(USUAL | changed)))
    return invoke(*command, "flow.yaml")


@pytest.mark.parametrize("command", ["check", "simulate", "run"])
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"cores": "64"}, ("flow.yaml:6: operators.parse.cores:", "no host type")),
        ({"target": "50ms", "cost": "200ms"}, ("flow.yaml:3: target_latency:", "no number of hosts can keep that")),
        ({"load": "{ramp: {from: 5/s}}"}, ("flow.yaml:5: operators.payments.load:", "'to'")),
    ],
)
def test_every_command_names_the_field_of_a_document_that_cannot_work(
    command: str, changed: dict[str, str], named: tuple[str, ...]
) -> None:
    refused(with_document(command, **changed), *named)


def test_a_load_without_an_end_needs_a_limit_to_be_simulated() -> None:
    refused(with_document("simulate", load="2k/s"), "flow.yaml:5: operators.payments.load:", "--limit")


def test_a_load_as_a_bare_number_lacks_its_unit() -> None:
    refused(with_document("simulate", "--load", "5"), "'5' has no unit", "'5/s'")


def test_a_gap_in_a_recorded_load_names_what_the_command_line_takes() -> None:
    Path("gap.csv").write_text("minute,requests\n0,100\n1,120\n3,100\n")
    refused(with_document("simulate", "--load", "gap.csv"), "gap.csv, line 4", "write gap.csv:gaps=hold")
    for load in ("gap.csv:gaps=hold", "{trace: {path: gap.csv, gaps: hold}}"):
        assert "440 records in 4.0 min" in with_document("simulate", "--load", load).output


def test_check_says_where_the_peak_fills_more_hosts_than_there_may_be() -> None:
    result = with_document("check", cost="5ms")
    assert result.exit_code == 0
    assert (
        "the load's peak fills 29 hosts of type 'small' to 70%, and the cloud has 2 at most (`max_hosts`)" in result.output
    )


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("", ("holds no price", "usd_per_hour")),
        ("instance_type,vcpu,memory_gib\nm1,1,2\n", ("line 2", "usd_per_hour")),
        ("instance_type,usd_per_hour,vcpu,memory_gib\nm1,-0.1,1,2\n", ("line 2: usd_per_hour of 'm1' is '-0.1'",)),
        ("instance_type,usd_per_hour,vcpu,memory_gib\nm1,nan,1,2\n", ("line 2: usd_per_hour of 'm1' is 'nan'",)),
        ("instance_type,usd_per_hour,vcpu,memory_gib\nm1,0.1,1,2 GB\n", ("line 2: memory_gib of 'm1' is '2 GB'",)),
        ("instance_type,usd_per_hour,vcpu,memory_gib\nm2,0.1,1,2\n", ("no host type 'm1'",)),
    ],
)
def test_a_price_list_that_cannot_be_used_names_line_and_column(lines: str, named: tuple[str, ...]) -> None:
    Path("prices.csv").write_text(lines)
    refused(with_document("simulate", "--prices", "prices.csv", "--host", "m1"), "prices.csv", *named)


def test_a_policy_that_raises_in_a_simulation_is_said_once_with_its_line() -> None:
    Path("bad.py").write_text("class Bad:\n    name = 'bad'\n    def plan(self, seen, memory=None):\n        1 / 0\n")
    refused(with_document("simulate", "--policy", "bad.py:Bad"), "ZeroDivisionError: division by zero (bad.py, line 4)")

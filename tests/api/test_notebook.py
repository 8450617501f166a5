"""A notebook, carried out by the kernel that people have: a run is shown as it goes, its result as figures and frames."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TESTS = Path(__file__).parents[1]


def carried_out(folder: Path, *cells: str) -> list[list[nbformat.NotebookNode]]:
    """The outputs of each cell; an error in one fails the test with its traceback."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


def html_of(outputs: list[nbformat.NotebookNode]) -> str:
    """The only output of a cell, as HTML."""
    (output,) = outputs
    return output["data"]["text/html"]


SHOWN = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from elastream import RunResult
from elastream.dashboard.showing import shown
from elastream.recording.directory import RunDirectory
from elastream.recording.recorder import Recorder
from elastream.settings import CommandSettings
from support.example_run import example_context, play

# What run(...) does, without an engine.
directory = RunDirectory(Path("runs/word_count-1"))
directory.root.mkdir(parents=True)
with shown(example_context().graph, directory, CommandSettings(cloud=None, show={{show}})) as views:
    for observer in (Recorder(directory.recording), *views):
        play(observer, plant="spark", directory=str(directory.root))
"""


def test_notebook_shows_a_run_in_one_output_and_its_result(tmp_path):
    shown, result, frames = carried_out(
        tmp_path,
        SHOWN.format(show=True),
        "result = RunResult.read('runs/word_count-1')\nresult",
        "frames = result.frames\n"
        "assert frames.application.index.name == 'time' and len(frames.application) == 180\n"
        "assert set(frames.operators.index.get_level_values('operator')) == {'lines', 'words', 'count', 'out'}\n"
        "assert frames.leases['cost'].sum() == result.summary.cost\n"
        "frames.application[['arrival_rate', 'hosts_ready']].max().to_dict()",
    )
    assert "word_count" in html_of(shown)
    assert "3:00" in html_of(shown), "the last state stays"
    text = html_of(result)
    assert "word_count finished after 3.0 min" in text
    assert "39,810" in text
    assert text.count("<svg") == 3
    assert "runs/word_count-1/report.html" in text
    assert (tmp_path / "runs/word_count-1/report.html").exists()
    (frame,) = frames
    assert frame["data"]["text/plain"] == "{'arrival_rate': 550.0, 'hosts_ready': 6.0}"


@pytest.mark.slow
def test_show_false_shows_nothing_and_writes_the_report(tmp_path):
    (outputs,) = carried_out(tmp_path, SHOWN.format(show=False))
    assert outputs == []
    assert (tmp_path / "runs/word_count-1/report.html").exists()


SIMULATED = """
from elastream import Alternate, Dataflow, HostType, simulate
from elastream.io import collect, records
from elastream.loads import constant
from elastream.policies import Static
from elastream.core.plant import Plan

class Idle:
    name = "idle"
    def plan(self, observation, memory=None):
        return Plan()

shop = Dataflow("shop")
requests = shop.source(records([{"value": "a"}], "value string"), load=constant("5/s", lasts="2min"))
requests.map([Alternate("answer", str.upper, cost=0.02)], returns="value string", cores=0.5).sink(collect("answers"))
simulate(shop, [Static(hosts=2), Idle()], host_types=[HostType("small", cores=1.0, memory=4000.0, price=1.0)])
"""


@pytest.mark.slow
def test_a_notebook_simulates_policies_of_its_own_and_shows_the_comparison(tmp_path):
    (outputs,) = carried_out(tmp_path, SIMULATED)
    text = html_of(outputs)
    assert "<table" in text
    assert "idle" in text


RUN = """
from elastream import Dataflow, HostType, Local, run
from elastream.io import collect, records
from elastream.loads import constant
from elastream.policies import Static

flow = Dataflow("small")
lines = flow.source(records([{"value": "a b"}], "value string"), load=constant("40/s", lasts="5s"))
words = lines.flat_map(str.split, returns="word string")
words.key_by("word").count().sink(collect("counts"))
tiny = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
result = run(flow, policy=Static(hosts=1), cloud=Local(tiny, max_hosts=1), target_latency="2s", state_partitions=2)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_notebook_runs_a_dataflow_on_spark_and_has_its_rows(tmp_path):
    shown, result, rows = carried_out(
        tmp_path,
        RUN,
        "result",
        "counts = result.collected['counts'].drop_duplicates('word', keep='last')\n"
        "dict(zip(counts['word'], counts['count'].tolist()))",
    )
    assert any("small" in output.get("data", {}).get("text/html", "") for output in shown)
    assert "small finished" in html_of(result)
    (counted,) = rows
    assert counted["data"]["text/plain"] == "{'a': 200, 'b': 200}"

"""Run settings: one declaration makes a keyword, an option, a key of documents and a line of the reference page."""

import inspect
import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from elastream import Autopilot, Dataflow, Local, run, simulate
from elastream.api.run import Command, commanded, launcher, launching
from elastream.cli.options import options_of
from elastream.cli.program import declared
from elastream.core.composition import Consistency
from elastream.core.scaling import ScalingRules
from elastream.core.width import RepartitionRule
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.key_table import KeyTable
from elastream.documents.dataflow import SETTINGS, load_document
from elastream.documents.schema import key_of
from elastream.errors import InputError
from elastream.settings import (
    AutopilotSettings,
    Flag,
    Mode,
    RunSettings,
    Seconds,
    SimulateSettings,
    SparkSettings,
    Whole,
    declares,
    keywords_of,
    setting,
    settings_of,
)

ROOT = Path(__file__).parents[1]
FRONTS = [(run, RunSettings), (simulate, SimulateSettings), (Autopilot, AutopilotSettings)]


@declares
class More(RunSettings):
    """Run settings with three more."""

    spare: int = setting("Hosts to keep spare.", Whole(least=0), default=1, key=True, group="Own")
    wait: float | str | None = setting("Time to wait.", Seconds(positive=True), default=None, key=True, group="Own")
    eager: bool = setting("Lease at once.", Flag(), default=False, key=True, group="Own")


@keywords_of(More)
def started(flow: str, settings: More) -> More:
    """Start `flow`."""
    return settings


@pytest.mark.parametrize(("front", "declaring"), FRONTS, ids=["run", "simulate", "Autopilot"])
def test_fronts_show_every_setting_with_its_default(front: Any, declaring: type) -> None:
    keywords = inspect.signature(front).parameters
    assert {each.name for each in fields(declaring)} <= keywords.keys()
    for each in fields(declaring):
        assert keywords[each.name].default == each.default


@pytest.mark.parametrize(("front", "declaring"), FRONTS, ids=["run", "simulate", "Autopilot"])
def test_every_setting_has_one_sentence_of_help(front: Any, declaring: type) -> None:
    text = inspect.getdoc(front if inspect.isfunction(front) else front.__init__) or ""
    for name, each in settings_of(declaring).items():
        assert each.help.endswith(".")
        assert f"{name}: {each.help}" in text


def test_a_new_setting_is_a_keyword_an_option_and_a_key_by_its_declaration() -> None:
    assert started("it", cloud=Local(), spare=3, wait="2s").wait == 2.0
    with pytest.raises(InputError, match="spare is -1; it must be a whole number, 0 or more"):
        started("it", cloud=Local(), spare=-1)
    found: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @options_of(More)
    def command(**settings: Any) -> None:
        found.update(settings)

    assert CliRunner().invoke(app, ["--spare", "3", "--wait", "2s", "--eager"]).exit_code == 0
    assert found == {"spare": 3, "wait": 2.0, "eager": True}
    assert key_of(settings_of(More)["eager"], False) is bool


def test_a_keyword_that_does_not_exist_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"run\(\): got an unexpected keyword argument 'polcy'"):
        run(Dataflow("it"), cloud=Local(), polcy=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"run\(\): missing a required argument: 'flow'"):
        run()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Autopilot\(\): got an unexpected keyword argument 'polcy'"):
        Autopilot(None, polcy=None)  # type: ignore[arg-type, call-arg]


def test_modes_are_those_of_consistency() -> None:
    assert get_args(Mode) == tuple(mode.value for mode in Consistency)


def test_a_run_that_goes_on_cannot_begin_afresh() -> None:
    with pytest.raises(InputError, match="leave out either resume or fresh"):
        RunSettings(cloud=Local(), resume="runs/it", fresh=True)


def test_key_tables_are_one_or_several() -> None:
    table = KeyTable("words", "tag", ("customer",), {})
    assert RunSettings(tables=table).tables == RunSettings(tables=[table]).tables == (table,)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"tables is 'tables\.csv'; it must be key tables, KeyTable\(\.\.\.\)"):
        RunSettings(tables="tables.csv")  # type: ignore[arg-type]


def test_settings_of_a_command_replace_those_of_the_call() -> None:
    command = Command({"replicas": 2, "runs": Path("elsewhere")}, ("max_hosts=3",))
    settings = command.applied(RunSettings(cloud=Local(), replicas=1, retention="1h", scaling=ScalingRules(min_hosts=2)))
    assert (settings.replicas, settings.runs, settings.retention) == (2, Path("elsewhere"), 3600.0)
    assert settings.scaling == ScalingRules(min_hosts=2, max_hosts=3)
    assert command.calls == 1


def test_spark_settings_of_a_command_are_added_to_those_of_the_call() -> None:
    command = Command({"settings": {"spark.b": "2", "spark.c": "3"}})
    settings = command.applied(RunSettings(cloud=Local(), settings={"spark.a": True, "spark.b": 1}))
    assert settings.settings == {"spark.a": "true", "spark.b": "2", "spark.c": "3"}
    assert SparkSettings().read("settings", ["spark.a=x=y", "spark.b="]) == {"spark.a": "x=y", "spark.b": ""}
    for wrong in (["spark.a"], ["=1"]):
        with pytest.raises(InputError, match="it is not KEY=VALUE, such as"):
            SparkSettings().read("settings", wrong)


def test_a_launcher_is_in_force_only_inside_its_context() -> None:
    calls = []
    with launching(lambda graph, settings: calls.append(settings.replicas)):  # type: ignore[arg-type, return-value, func-returns-value]
        flow = Dataflow("it")
        flow.source(records([{"n": 1}], "n long")).sink(collect("out"))
        run(flow, cloud=Local(), replicas=2)
    assert calls == [2]
    with commanded(runs="elsewhere"):
        inside = launcher()
        assert isinstance(inside, Command)
        assert inside.settings == {"runs": "elsewhere"}
    assert launcher() is not inside


PROGRAM = """
from elastream import Dataflow, Local, run
from elastream.io import collect, records

flow = Dataflow("it")
flow.source(records([{"n": 1}], "n long")).sink(collect("out"))
try:
    run(flow, cloud=Local(max_hosts=3), replicas=2, target_latency="5s")
finally:
    run(flow, cloud=Local(max_hosts=4))
"""


def test_what_a_program_declares_is_its_first_run_whatever_it_does_then(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(PROGRAM)
    found = declared(file)
    assert found.graph.name == "it"
    assert (found.settings.replicas, found.settings.latency, found.settings.cloud.max_hosts) == (2, 5.0, 3)
    assert isinstance(launcher(), Command)


DOCUMENT = """\
dataflow: it
target_latency: 5s
replicas: 2
state_partitions: 8
retention: 7d
state_store: disk
repartition: {when: 0 3 * * *, longest_pause: 1m}
consistency: wave
currency: EUR
guards: mine.yaml
settings: {spark.executor.memory: 2g, spark.speculation: true}
operators:
  source: {source: simulated}
  work: {from: source, cost: 1ms}
  out: {from: work, sink: simulated}
"""


def test_keys_of_a_document_are_settings_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(DOCUMENT)
    found = load_document(file).settings
    assert found.keys() == {*SETTINGS, "tables", "scaling"} - {"freshness"}  # another service level
    settings = RunSettings(cloud=Local(), **found)
    assert (settings.latency, settings.replicas, settings.state_partitions, settings.consistency) == (5.0, 2, 8, "wave")
    assert settings.settings == {"spark.executor.memory": "2g", "spark.speculation": "true"}
    assert settings.repartition == RepartitionRule("0 3 * * *", 60.0)
    assert (settings.retention, settings.currency, settings.guards) == (7 * 86_400.0, "EUR", tmp_path / "mine.yaml")


def test_the_reference_page_is_what_the_declarations_say() -> None:
    page = "\n".join(runpy.run_path(str(ROOT / "scripts" / "settings_page.py"))["page"]()).rstrip()
    written = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert written == page + "\n", "run: python scripts/settings_page.py > docs/reference/settings.md"

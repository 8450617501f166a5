"""Policies, clouds, sources and sinks of the user's own, named in a document or on the command line."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.api.run import Command
from elastream.clouds.provider import SupportsOpen
from elastream.core.plant import SupportsPlan
from elastream.dataflow.endpoints import StreamReader, StreamWriter
from elastream.documents.dataflow import load_document
from elastream.documents.registry import CLOUD, LINKS, POLICY, SINK, SOURCE, SPEEDS, Registry, made, named_in, parameters_of
from elastream.documents.user_code import References
from elastream.errors import DataflowError, ElastreamError, InputError
from elastream.loads import LinkSource, SpeedSource
from elastream.policies.btu import Btu
from elastream.policies.highest_value import HighestValue
from elastream.settings import RunSettings
from support.commands import invoke

MINE = '''
from dataclasses import dataclass

from elastream.clouds.local.local import Local
from elastream.core.plant import Plan


@dataclass(frozen=True)
class Mine:
    threshold: float = 0.5
    every: float = 10.0
    name = "mine"

    def plan(self, observation, memory=None):
        return Plan()

    def __post_init__(self):
        if self.threshold > 1:
            raise ValueError(f"threshold {self.threshold} is above 1")


class Lacking:
    name = "lacking"


class Broken:
    def __init__(self):
        {}["nothing"]


class Ending:
    def __init__(self):
        raise SystemExit("no licence")


class Numbered:
    name = "numbered"
    plan = 3


class Forgetful:
    name = "forgetful"

    def plan(self, observation):
        return Plan()


class Misty:
    types, max_hosts = 5, 1

    def open(self, folder, *, ports=None, session=None, alarms=None):
        raise NotImplementedError


class Foggy(Local):
    @property
    def types(self):
        raise RuntimeError("no list of types")


class Cloudy(Local):
    """A cloud of the user's own."""


class Reader:
    schema = "word string, n long"

    def __init__(self, place="here"):
        self.place = place

    def read(self, spark):
        ...


class Writer:
    def write(self, rows, batch):
        ...


number = 5
'''
DOCUMENT = """\
dataflow: mine
operators:
  lines: {source: SOURCE}
  words: {from: lines, select: {word: value}, returns: word string, cost: 1ms}
  out: {from: words, sink: SINK}
policy: POLICY
cloud: CLOUD
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A document's folder, which is not the working directory."""
    below = tmp_path / "below"
    below.mkdir()
    (below / "mine.py").write_text(MINE)
    (below / "failing.py").write_text("import math\nmath.no_such_thing\n")
    (below / "half.py").write_text("class Half(:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    return below


def document(folder: Path, **written: str) -> Path:
    text = DOCUMENT
    for key, otherwise in (("SOURCE", "{text_files: books/}"), ("SINK", "simulated"), ("POLICY", "threshold")):
        text = text.replace(key, written.get(key.lower(), otherwise))
    path = folder / "flow.yaml"
    path.write_text(text.replace("CLOUD", written.get("cloud", "{local: {host_type: small}}")))
    return path


def test_policy_in_a_file_beside_the_document_gets_its_parameters(folder: Path) -> None:
    setting = load_document(document(folder, policy="{mine.py:Mine: {threshold: 0.7, every: 1min}}")).policy
    assert setting is not None
    policy = setting.build()
    assert (policy.name, policy.own.threshold, policy.own.every) == ("mine", 0.7, 60.0)
    setting = load_document(document(folder, policy="{elastream.policies.static:Static: {hosts: 3}}")).policy
    assert setting is not None
    assert setting.build().hosts == 3


@pytest.mark.parametrize("name", sorted(POLICY.known))
def test_a_recorded_policy_is_made_again_from_its_recorded_parameters(name: str) -> None:
    policy = made(POLICY, name, {"hosts": 2} if name == "static" else {}, References(Path()))
    recorded = json.loads(json.dumps(parameters_of(policy)))
    assert json.loads(json.dumps(parameters_of(made(POLICY, name, recorded, References(Path()))))) == recorded


def test_a_policy_within_a_policy_is_recorded_by_its_name_and_made_again() -> None:
    policy = HighestValue(sizing=Btu(window=0.1))
    assert parameters_of(policy)["sizing"]["btu"]["window"] == 0.1
    assert made(POLICY, "highest_value", parameters_of(policy), References(Path())) == policy


def test_a_cloud_of_the_users_own_leases_the_documents_host_types(folder: Path) -> None:
    path = document(folder, cloud="{mine.py:Cloudy: {host_type: tiny}}")
    path.write_text(path.read_text() + "host_types: {tiny: {cores: 0.5}}\n")
    setting = load_document(path).cloud
    assert setting is not None
    assert [(kind.name, kind.cores) for kind in setting.build().types] == [("tiny", 0.5)]


def test_operators_read_and_write_sources_and_sinks_of_the_user(folder: Path) -> None:
    graph = load_document(document(folder, source="{mine.py:Reader: {place: there}}", sink="mine.py:Writer")).graph
    lines, out = graph.operator("lines"), graph.operator("out")
    assert isinstance(lines.reads, StreamReader)
    assert isinstance(out.writes, StreamWriter)
    assert (lines.reads.place, lines.returns) == ("there", "word string, n long")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({"policy": "mine.py:Nobody"}, "6: policy: mine.py has no policy 'Nobody'"),
        ({"policy": "none.py:Mine"}, "6: policy: there is no file below/none.py"),
        ({"policy": "no.such:Mine"}, "6: policy: there is no module 'no'"),
        ({"policy": "mine.py:Lacking"}, "6: policy: mine.py:Lacking is not a policy: it has no 'plan'"),
        ({"policy": "mine.py:number"}, "6: policy: 'number' of mine.py is not a policy but int"),
        ({"policy": "failing.py:Mine"}, "6: policy: below/failing.py:2: AttributeError: "),
        ({"policy": "half.py:Half"}, "6: policy: below/half.py:1: SyntaxError: "),
        ({"policy": "mine.py:Broken"}, "6: policy: below/mine.py:28: KeyError: 'nothing'"),
        ({"policy": "mine.py:Ending"}, "6: policy: below/mine.py:33: SystemExit: no licence"),
        ({"policy": "mine.py:Numbered"}, "6: policy: mine.py:Numbered is not a policy: its 'plan' is 3, which cannot be"),
        ({"policy": "mine.py:Forgetful"}, "6: policy: mine.py:Forgetful is not a policy: its 'plan' does not take 2"),
        ({"cloud": "mine.py:Misty"}, "7: cloud: mine.py:Misty is not a cloud: its 'types' is 5, not tuple | list"),
        ({"cloud": "mine.py:Foggy"}, "7: cloud: below/mine.py:58: RuntimeError: no list of types"),
        ({"policy": "{mine.py:Mine: {treshold: 1}}"}, "6: policy.mine.py:Mine.treshold: there is no such parameter, did"),
        ({"policy": "{mine.py:Mine: {threshold: 2}}"}, "6: policy.mine.py:Mine.threshold: threshold 2 is above 1"),
        ({"cloud": "mine.py:Mine"}, "7: cloud: mine.py:Mine is not a cloud: it has no 'types'"),
        ({"source": "mine.py:Writer"}, "3: operators.lines.source: mine.py:Writer is not a source: it has no 'read'"),
        ({"sink": "mine.py:Reader"}, "5: operators.out.sink: mine.py:Reader is not a sink: it has no 'write'"),
        ({"source": "mine.py:Reader", "policy": "statik"}, "6: policy: there is no policy 'statik', did you mean"),
    ],
)
def test_reference_that_is_missing_or_fails_is_named_with_its_place(
    folder: Path, written: dict[str, str], sentence: str
) -> None:
    path = document(folder, **written).relative_to(folder.parent)
    result = invoke("check", path)
    assert result.exit_code == 2, result.output
    assert result.output.startswith(f"elastream: below/flow.yaml:{sentence}")
    assert result.output.count("\n") == 1


LOADED = """\
dataflow: mine
operators:
  lines: {source: simulated}
  words: {from: lines, select: {word: value}, returns: word string, cost: 1ms}
  out: {from: words, sink: simulated}
cloud: {local: {host_type: small}}
"""


def simulate(*arguments: str) -> tuple[int, str]:
    result = invoke("simulate", "below/flow.yaml", "--load", "10/s", "--limit", "2min", *arguments)
    return result.exit_code, result.output


def test_a_policy_of_the_users_own_is_simulated_by_its_name_and_parameters(folder: Path) -> None:
    (folder / "flow.yaml").write_text(LOADED)
    status, output = simulate("--policy", "mine.py:Mine:threshold=0.7", "--policy", "threshold")
    assert status == 0, output
    assert "mine.py:Mine:threshold=0.7" in "".join(output.split())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mine.py:Mine:treshold=1", "treshold: there is no such parameter, did you mean 'threshold'?"),
        ("mine.py:Mine:threshold", "'threshold' in 'mine.py:Mine:threshold' is not key=value"),
        ("failing.py:Mine", "below/failing.py:2: AttributeError: module 'math' has no attribute 'no_such_thing'"),
        ("statik:hosts=3", "there is no policy 'statik', did you mean 'static'?"),
        ("static", "the parameter 'hosts' is missing, which has no default"),
        (".:x", "'.' is not a name of a module"),
        ("static:0", "elastream: --policy static:0: hosts: 0 is not a whole number of 1 or more, 'peak' or 'mean'"),
        ("static:hosts=many", "'many' is not a whole number of 1 or more, 'peak' or 'mean'"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "run"])
def test_a_name_on_the_command_line_that_is_wrong_ends_with_one_sentence(
    folder: Path, name: str, sentence: str, command: str
) -> None:
    (folder / "flow.yaml").write_text(LOADED)
    result = invoke(command, "below/flow.yaml", "--policy", name)
    assert result.exit_code == 2
    assert result.output.startswith("elastream: ")
    assert sentence in result.output
    assert result.output.count("\n") == 1


def test_the_working_directory_comes_before_the_documents_folder(folder: Path) -> None:
    (folder.parent / "mine.py").write_text(MINE.replace('name = "mine"', 'name = "nearer"'))
    assert made(POLICY, "mine.py:Mine", {}, References(Path(), folder)).name == "nearer"


def test_policy_and_cloud_of_the_command_replace_those_of_the_program(folder: Path) -> None:
    found = load_document(document(folder, source="mine.py:Reader"))
    theirs = made(POLICY, "mine.py:Mine", {}, References(folder))
    other = made(CLOUD, "mine.py:Cloudy", {"host_type": "small", "max_hosts": 2}, References(folder))

    assert found.cloud is not None
    ours, cloud = made(POLICY, "threshold", {}, References(folder)), found.cloud.build()
    for replaced, expected in (
        ({}, (ours, cloud)),
        ({"policy": theirs}, (theirs, cloud)),
        ({"cloud": other}, (ours, other)),
    ):
        settings = Command(replaced).applied(RunSettings(policy=ours, cloud=cloud))
        assert (settings.policy, settings.cloud) == expected


def test_a_source_of_the_users_own_cannot_be_simulated_without_a_load(folder: Path) -> None:
    document(folder, source="mine.py:Reader", policy="threshold")
    result = invoke("simulate", "below/flow.yaml")
    assert result.exit_code == 2
    place = "elastream: below/flow.yaml:3: operators.lines"
    assert result.output.startswith(
        f"{place}: there is no load to simulate: source 'lines' declares none; give one with --load"
    )


def test_a_load_cannot_be_declared_for_what_has_no_records_to_replay(folder: Path) -> None:
    path = document(folder, source="mine.py:Reader, load: 5/s")
    path.write_text(
        path.read_text().replace("{source: mine.py:Reader, load: 5/s}", "{source: mine.py:Reader, load: {constant: 5/s}}")
    )
    with pytest.raises(DataflowError, match="a load needs records"):
        load_document(path)


NEEDED = [(POLICY, SupportsPlan), (CLOUD, SupportsOpen), (SOURCE, StreamReader), (SINK, StreamWriter)]


@pytest.mark.parametrize(("registry", "protocol"), [*NEEDED, (SPEEDS, SpeedSource), (LINKS, LinkSource)])
def test_what_is_named_needs_what_its_protocol_has(registry: Registry, protocol: type) -> None:
    members = {*vars(protocol), *protocol.__annotations__}
    assert set(registry.needs) == {name for name in members if not name.startswith("_")}


@given(st.text(st.sampled_from("abc.:=,1"), max_size=12))
def test_any_text_is_a_name_with_parameters_or_refused(text: str) -> None:
    try:
        name, parameters = named_in(text, POLICY)
    except InputError:
        return
    assert text.startswith(name)
    assert all(isinstance(key, str) for key in parameters)
    with pytest.raises(ElastreamError):
        made(POLICY, name, parameters, References(Path("/nowhere")))

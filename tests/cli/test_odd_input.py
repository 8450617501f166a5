"""Odd input, and code that ends its process: one sentence, status 2, no stack trace."""

import contextlib
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import Result

from elastream.errors import ElastreamError
from elastream.loads import trace
from support.commands import invoke
from support.property_examples import examples

DOCUMENT = """
dataflow: words
target_latency: 3s
operators:
  lines: {source: {records: [{value: a b}], schema: value string}, load: {constant: {rate: 10/s, lasts: 20s}}}
  words: {from: lines, flat_map: "words.py:split", returns: word string, cost: 1ms}
  out: {from: words, sink: {collect: words}}
policy: threshold
cloud: {local: {max_hosts: 2}}
"""
SPLIT = "def split(line):\n    return line.split()\n"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(DOCUMENT)
    Path("words.py").write_text(SPLIT)


def refused(result: Result, *named: str) -> None:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for name in named:
        assert name in result.stderr


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (("--seed", "1" + 20 * "0"), "seed is 100000000000000000000; it must be a whole number from 0 to 4294967295"),
        (("--seed", "-1"), "invalid value"),
        (("--max-hosts", "0"), "invalid value"),
        (("--max-hosts", "-3"), "invalid value"),
        (("--policy", "static:hosts=-1"), "-1 is not a whole number of 1 or more"),
        (("--period", "1us"), "is not a time from one plan to the next: the least is 10 ms"),
        (("--period", "-1s"), "it is negative"),
        (("--limit", "0s"), "is not a duration"),
        (("--limit", "1e300s"), "31 years"),
        (("--policy", "threshold:window=-1"), "window is -1; it must be 0 or more, and finite"),
        (("--policy", "threshold:spare=-3"), "spare is -3; it must be 0 or more, and finite"),
        (("--policy", "threshold:cool_down=nan"), "nan is not a finite number"),
        (("--policy", "threshold:settle=inf"), "inf is not a finite number"),
    ],
)
def test_options_out_of_range_are_refused(option, named):
    refused(invoke("simulate", "job.yaml", *option), named)


@pytest.mark.parametrize("text", ["a: " + 3000 * "[" + 3000 * "]", "a: " + 2000 * "{a: " + "1" + 2000 * "}"])
def test_a_document_that_is_nested_too_deeply_is_one_sentence(text):
    Path("deep.yaml").write_text(text)
    refused(invoke("check", "deep.yaml"), "this is nested more than 200 levels deep")


def test_a_byte_order_mark_costs_no_row():
    Path("load.csv").write_bytes(b"\xef\xbb\xbftime,count\n0,600\n60,600\n")
    plain = invoke("simulate", "job.yaml", "--load", "load.csv")
    Path("load.csv").write_bytes(b"time,count\n0,600\n60,600\n")
    assert plain.exit_code == 0, plain.output
    assert invoke("simulate", "job.yaml", "--load", "load.csv").stdout == plain.stdout


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("raise SystemExit(0)", "ended by itself (status 0) before it called run(...)"),
        ("import os\nos._exit(0)", "ended with status 0 before it finished"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "was killed by signal 9 before it finished"),
        ("raise SystemExit('no')", "ended by itself (status no)"),
    ],
)
def test_a_program_that_ends_its_process_is_not_valid(code, named):
    Path("job.py").write_text(code)
    refused(invoke("check", "job.py"), named)


@pytest.mark.parametrize("code", ["import os\nos._exit(0)\n", "import sys\nsys.exit(0)\n", "1 / 0\n"])
def test_code_that_a_document_names_is_imported_in_another_process(code):
    Path("words.py").write_text(code + SPLIT)
    refused(invoke("check", "job.yaml"))


def test_what_check_imports_leaves_nothing_behind_in_its_own_process():
    Path("words.py").write_text("import os, sys\nos.environ['LEFT'] = '1'\nsys.path.append('left')\n" + SPLIT)
    assert invoke("check", "job.yaml").exit_code == 0
    assert "LEFT" not in os.environ
    assert "left" not in sys.path


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=200), st.text(alphabet="0123456789,;.-:TZ\n\t eE+naif", max_size=200).map(str.encode)
    )
)
def test_any_recorded_load_is_taken_or_refused_in_a_sentence(content):
    Path("odd.csv").write_bytes(content)
    with contextlib.suppress(ElastreamError):
        assert trace("odd.csv").count(1.0) >= 0


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("{max_hosts: 2}", "{host_type: {name: t, cores: 1}, max_hosts: 2}", "declare it under 'host_types', by its name"),
        ("cost: 1ms", "cost: 1ms, unrolled: 1000000000", "1000000000 is out of range: it must be at most 1000"),
        ("cost: 1ms", "cost: 1ms, on_error: maybe", "input should be 'fail', 'skip' or 'dead_letter'"),
        ("10/s", "1e18/s", "makes no sense: at most 1e+12/s"),
        ("20s}", "1e18s}", "is longer than 31 years"),
        ("3s", "1e300s", "is longer than 31 years"),
    ],
)
def test_documents_that_make_no_sense_are_refused_where_they_do_not(before, after, named):
    Path("job.yaml").write_text(DOCUMENT.replace(before, after, 1))
    refused(invoke("check", "job.yaml"), "job.yaml:", named)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("repartition", "c", "--partitions", "x"), "invalid value for '--partitions': "),
        (("simulate", "job.yaml", "--seed", "1.5"), "invalid value for '--seed': "),
        (("simulate", "job.yaml", "--max-hosts", "0"), "invalid value for '--max-hosts': "),
        (("bench", "shuffle", "--executor-cores", "x"), "invalid value for '--executor-cores': "),
        (("repartition", "c"), "missing option '--partitions'"),
        (("repartition", "c", "64", "--partitions", "64"), "got unexpected extra argument"),
        (("state",), "missing argument 'PLACE'"),
        (("state", "--jsom", "c"), "no such option: --jsom"),
        (("stat", "c"), "no such command 'stat'"),
        (("--jsom",), "no such option: --jsom"),
    ],
)
def test_wrong_command_line_is_one_sentence_that_names_its_help(words, sentence):
    result = invoke(*words)
    refused(result, f"elastream: {sentence}", f"; see elastream {words[0]}".removesuffix(" --jsom").removesuffix(" stat"))
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(" --help\n")
    assert result.stdout == ""

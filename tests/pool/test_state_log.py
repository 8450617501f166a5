"""What a manager remembers, and what a crash or another process makes of it."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.errors import EnvironmentProblem, InputError
from elastream.pool.state_log import StateLog


@dataclass(frozen=True)
class Record:
    until: float
    hosts: tuple[str, ...] = ()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def reopened(path):
    log = StateLog(path, "region manager of east")
    log.close()
    return log.read


def test_only_what_changed_is_written_and_all_of_it_is_found_again(tmp_path):
    path = tmp_path / "east.journal"
    log = StateLog(path, "region manager of east")
    log.commit({"hosts": {"h1": Record(float("inf"), ("a",)), "h2": Record(2.0)}, "counters": {"term": 1}})
    log.commit({"hosts": {"h1": Record(float("inf"), ("a",)), "h2": Record(3.0)}, "counters": {"term": 1}})
    log.commit({"hosts": {"h2": Record(3.0)}, "counters": {"term": 1}})
    log.commit({"hosts": {"h2": Record(3.0)}, "counters": {"term": 1}})
    log.close()
    assert lines(path)[2:] == [
        {"put": {"hosts": {"h2": {"until": 3.0, "hosts": []}}}, "gone": {}},
        {"put": {}, "gone": {"hosts": ["h1"]}},
    ]
    assert lines(path)[1]["put"]["hosts"]["h1"] == {"until": "Infinity", "hosts": ["a"]}
    assert reopened(path) == {"hosts": {"h2": {"until": 3.0, "hosts": []}}, "counters": {"term": 1}}


tables = st.dictionaries(
    st.sampled_from(["hosts", "counters"]), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3)), max_size=2
)


@given(st.lists(tables.map(lambda found: {"hosts": {}, "counters": {}, **found}), max_size=6), st.integers(0, 400))
def test_a_crash_in_the_middle_of_a_line_leaves_an_earlier_commit_whole(tmp_path_factory, commits, torn):
    path = tmp_path_factory.mktemp("log") / "east.journal"
    log = StateLog(path, "region manager of east")
    sizes, stands = [path.stat().st_size], [{}]
    for each in commits:
        log.commit(each)
        sizes.append(path.stat().st_size)
        stands.append(each)
    log.close()
    size = max(sizes[0], sizes[-1] - torn)
    path.write_bytes(path.read_bytes()[:size])
    last = max(number for number, length in enumerate(sizes) if length <= size)
    assert {k: v for k, v in reopened(path).items() if v} == {k: v for k, v in stands[last].items() if v}


def test_a_long_journal_is_written_anew_with_equal_content(tmp_path):
    path = tmp_path / "east.journal"
    log = StateLog(path, "region manager of east", max_lines=5)
    for number in range(20):
        log.commit({"counters": {"number": number}, "hosts": {f"h{number}": number}})
    log.close()
    assert len(lines(path)) <= 6
    assert reopened(path) == {"counters": {"number": 19}, "hosts": {"h19": 19}}


def test_two_processes_cannot_have_one_journal(tmp_path):
    log = StateLog(tmp_path / "j", "infrastructure manager")
    with pytest.raises(EnvironmentProblem, match="another process runs the infrastructure manager with the journal"):
        StateLog(tmp_path / "j", "infrastructure manager")
    log.close()
    StateLog(tmp_path / "j", "infrastructure manager").close()


def test_another_managers_journal_is_refused(tmp_path):
    StateLog(tmp_path / "j", "region manager of east").close()
    with pytest.raises(InputError, match="j is not the journal of the region manager of west"):
        StateLog(tmp_path / "j", "region manager of west")


@pytest.mark.parametrize("damage", ['{"gone": {"hosts": ["h9"]}}', '{"put": 3}', "nonsense", "[]"])
def test_a_damaged_line_is_named(tmp_path, damage):
    StateLog(tmp_path / "j", "m").close()
    (tmp_path / "j").write_text((tmp_path / "j").read_text() + damage + "\n")
    with pytest.raises(InputError, match="j, line 2: "):
        StateLog(tmp_path / "j", "m")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match=r"the journal .* cannot be written"):
        StateLog(tmp_path / "file" / "j", "m")

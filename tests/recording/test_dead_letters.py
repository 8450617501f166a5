"""Dead letters on disk: a batch is there once, whenever its writer is killed, and the oldest make room."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.recording.dead_letters import DeadLetters, LeftOutBatch, letters
from support.property_examples import examples


def batch(number: int, query: str = "source", count: int = 2) -> LeftOutBatch:
    return LeftOutBatch(query, number, {"f": count}, [{"operator": "f", "record": n} for n in range(count)])


@given(cut=st.integers(0, 400), numbers=st.lists(st.integers(0, 30), max_size=6, unique=True).map(sorted))
@settings(max_examples=examples(100))
def test_batch_is_there_once_wherever_its_writer_was_killed(tmp_path_factory, cut, numbers):
    path = tmp_path_factory.mktemp("run") / "dead-letters.jsonl"
    written = DeadLetters(path)
    for number in numbers:
        written.take(batch(number))
    written.close()
    if path.exists():
        content = path.read_bytes()
        path.write_bytes(content[: max(0, len(content) - cut)])
    again = DeadLetters(path)
    for number in numbers:
        if not again.has("source", number):
            again.take(batch(number))
    assert [each["batch"] for each in letters(path)] == [number for number in numbers for _ in range(2)]
    assert again.counts == ({"f": 2 * len(numbers)} if numbers else {})
    again.close()


def test_queries_are_counted_apart_and_letters_name_them(tmp_path):
    log = DeadLetters(tmp_path / "dead-letters.jsonl")
    log.take(batch(3))
    log.take(LeftOutBatch("other", 1, {"g": 5}))
    assert (log.has("source", 3), log.has("source", 4), log.has("other", 1), log.has("third", 0)) == (
        True,
        False,
        True,
        False,
    )
    assert log.counts == {"f": 2, "g": 5}
    assert [*letters(log.path)] == [
        {"query": "source", "batch": 3, "operator": "f", "record": 0},
        {"query": "source", "batch": 3, "operator": "f", "record": 1},
    ]
    log.close()


def test_the_newest_are_kept_and_all_are_counted(tmp_path):
    path = tmp_path / "dead-letters.jsonl"
    for number in range(200):  # each opened anew, as by drivers that were killed
        log = DeadLetters(path, full=2000)
        assert not log.has("source", number)
        log.take(batch(number))
        log.close()
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 2 * 2300
    kept = [each["batch"] for each in letters(path)]
    assert kept[-1] == 199
    assert kept == sorted(kept)
    assert DeadLetters(path).counts == {"f": 400}


def test_no_letters_make_no_file_and_damage_is_one_sentence(tmp_path):
    path = tmp_path / "dead-letters.jsonl"
    assert (DeadLetters(path).counts, [*letters(path)]) == ({}, [])
    assert not path.exists()
    path.write_text('{"format":1}\nnonsense\n')
    with pytest.raises(InputError, match=r"dead-letters.jsonl, line 2: not JSON"):
        [*letters(path)]

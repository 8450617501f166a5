"""Records that loads draw from: how files are found and read, what is refused by name, and that they are frozen."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.dataflow.endpoints import Files, Records, TextFiles
from elastream.errors import InputError
from elastream.spark.dataflow.corpus import (
    BLOCK_BYTES,
    check_files,
    check_text,
    input_files,
    open_corpus,
    read_records,
    slices,
    store_corpus,
)

LINE = pa.schema([("value", pa.string())])
EVENT = pa.schema([("name", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


def test_missing_and_empty_inputs_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"no file or folder {tmp_path}/none"):
        input_files(f"{tmp_path}/none")
    with pytest.raises(InputError, match="no file matches"):
        input_files(f"{tmp_path}/*.txt")
    with pytest.raises(InputError, match=f"folder {tmp_path} holds no file"):
        input_files(str(tmp_path))
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match="is empty"):
        input_files(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (b"caf\xe9 au lait", 3),
        (b"ok\n" * 10 + b"\xff", 30),
        (b"x" * (BLOCK_BYTES - 1) + b"\xc3\xa9" + b"y" * BLOCK_BYTES + b"\xc3(", 2 * BLOCK_BYTES + 1),
        (b"x" * (BLOCK_BYTES - 1) + b"\xc3" + b"(", BLOCK_BYTES - 1),
        (b"cut off \xe2\x82", 8),
    ],
)
def test_text_that_is_not_utf8_is_refused_naming_the_byte(tmp_path: Path, content: bytes, position: int) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"latin.txt is not UTF-8 text: byte {position} is 0x"):
        check_text(path)


def test_lines_are_those_that_spark_would_read_less_the_blank_ones(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"third\n   \nfourth")
    (tmp_path / "a.txt").write_bytes("\ufefffirst\r\n\r\nsec\x0bond\r".encode())
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"fifth\n"))
    found = read_records(TextFiles(str(tmp_path)), LINE)
    assert found["value"].to_pylist() == ["first", "sec\x0bond", "third", "fourth", "fifth"]


def test_parquet_json_and_csv_hold_the_same_records(tmp_path: Path) -> None:
    table = read_records(
        Records(({"name": "a", "n": 1, "at": "2024-05-01"}, {"name": "b", "n": None, "at": "2024-05-02"}), ""),
        pa.schema([("name", pa.string()), ("n", pa.int64()), ("at", pa.string())]),
    )
    expected = table.set_column(2, "at", table["at"].cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")))
    pq.write_table(expected.append_column("more", pa.array([1, 2])), tmp_path / "e.parquet")
    (tmp_path / "e.csv").write_text("n,name,at,more\n1,a,2024-05-01 00:00:00,x\n,b,2024-05-02 00:00:00,y\n")
    (tmp_path / "e.json").write_text(
        '{"name":"a","n":1,"at":"2024-05-01 00:00:00","x":1}\n{"name":"b","at":"2024-05-02 00:00:00"}\n'
    )
    for format in ("parquet", "csv", "json"):
        found = read_records(Files(f"{tmp_path}/e.{format}", "", format), EVENT)
        assert found.to_pylist() == expected.to_pylist(), format


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("parquet", b"PAR"),
        ("csv", b"n\n1\n"),
        ("csv", b"name,n,at\na,many,2024-01-01\n"),
        ("json", b'{"name": 3}'),
        ("json", b"{"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path, format: str, content: bytes) -> None:
    path = tmp_path / "events"
    path.write_bytes(content)
    with pytest.raises(InputError, match=str(path)):
        read_records(Files(str(path), "", format), EVENT)


def test_checking_files_finds_unknown_formats_and_false_parquet(tmp_path: Path) -> None:
    (tmp_path / "e").write_text("no")
    with pytest.raises(InputError, match="'orc' is not one of parquet, json, csv"):
        check_files(Files(str(tmp_path), "", "orc"))
    with pytest.raises(InputError, match="is not a parquet file"):
        check_files(Files(str(tmp_path), ""))


def test_records_outside_their_schema_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column 'm'"):
        read_records(Records(({"n": 1, "m": 2},), "n long"), pa.schema([("n", pa.int64())]))
    with pytest.raises(InputError, match="do not fit"):
        read_records(Records(({"n": "one"},), "n long"), pa.schema([("n", pa.int64())]))


def test_frozen_records_stay_as_they_were(tmp_path: Path) -> None:
    source, stored = tmp_path / "in.txt", tmp_path / "control" / "corpus.arrow"
    source.write_text("one\ntwo\n")
    store_corpus(TextFiles(str(source)), LINE, stored)
    source.write_text("other\n")
    store_corpus(TextFiles(str(source)), LINE, stored)
    assert open_corpus(stored)["value"].to_pylist() == ["one", "two"]


def test_a_run_cannot_resume_with_another_input(tmp_path: Path) -> None:
    stored = tmp_path / "corpus.arrow"
    store_corpus(Records(({"n": 1},), "n long"), pa.schema([("n", pa.int64())]), stored)
    with pytest.raises(InputError, match="cannot resume with"):
        store_corpus(Records(({"n": 2},), "n long"), pa.schema([("n", pa.int64())]), stored)


@given(st.integers(1, 25_000), st.integers(0, 10**9), st.integers(0, 40_000))
def test_a_slice_is_the_endless_repetition_of_the_records(size: int, first: int, count: int) -> None:
    table = pa.table({"n": pa.array(range(size))})
    batches = list(slices(table, first, first + count))
    found = [n for batch in batches for n in batch.column(0).to_pylist()]
    assert found == [(first + k) % size for k in range(count)]
    assert all(0 < batch.num_rows <= 10_000 for batch in batches)

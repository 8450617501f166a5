"""Key tables as people write them."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastream.dataflow.key_table import Selection
from elastream.documents.dataflow import load_document
from elastream.documents.key_table_files import load_key_table
from elastream.errors import DataflowError, InputError

SELECTION = Selection("forecasting", "predict", {"customer": "bigint", "since": "date"}, ("mean", "arima"))


def test_csv_and_parquet_say_the_same(tmp_path):
    text, parquet = tmp_path / "t.csv", tmp_path / "t.parquet"
    text.write_text("customer,since,alternate\n1,2026-01-02,mean\n\n2,2026-01-03,arima\n")
    days = [datetime.date(2026, 1, 2), datetime.date(2026, 1, 3)]
    pq.write_table(pa.table({"customer": [1, 2], "since": days, "alternate": ["mean", "arima"]}), parquet)
    found = load_key_table(text, SELECTION)
    assert found == load_key_table(parquet, SELECTION)
    assert dict(found.rows) == {(1, days[0]): "mean", (2, days[1]): "arima"}
    assert found.check(SELECTION) is found


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "line 1: the columns are missing"),
        ("customer,alternate\n", "has customer, since, alternate"),
        ("customer,since,alternate\n1,2026-01-02\n", "line 2: 2 cells, not 3"),
        ("customer,since,alternate\n1.5,2026-01-02,mean\n", "line 2: '1.5' is not a whole number"),
        ("customer,since,alternate\n1,tomorrow,mean\n", "line 2: 'tomorrow' is not a date"),
        ("customer,since,alternate\n1,2026-01-02,naive\n", "line 2: operator 'predict' has no alternate 'naive'"),
        (
            "customer,since,alternate\n1,2026-01-02,mean\n1,2026-01-02,arima\n",
            "line 3: the key 1, 2026-01-02 is in it twice",
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, content, sentence):
    file = tmp_path / "t.csv"
    file.write_text(content)
    with pytest.raises(InputError) as refused:
        load_key_table(file, SELECTION)
    assert sentence in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "none.csv", tmp_path / "none.parquet", binary):
        with pytest.raises(InputError, match=file.name):
            load_key_table(file, SELECTION)


DOCUMENT = """
dataflow: grid
operators:
  meters: {source: simulated, load: {constant: 50/s}}
  forecast: {from: meters, select_by: [customer], alternates: {tree: {cost: 1ms}, arima: {cost: 100ms}}}
  out: {from: forecast, sink: simulated}
host_types: {vm: {cores: 2, price: 1, btu: 60s}}
policy: {static: {hosts: 1}}
tables: {WHO: tables.csv}
"""


def written(folder: Path, who: str = "forecast", alternate: str = "arima") -> Path:
    (folder / "tables.csv").write_text(f"customer,alternate\n1,{alternate}\n")
    document = folder / "grid.yaml"
    document.write_text(DOCUMENT.replace("WHO", who))
    return document


def test_a_document_names_the_key_tables_that_a_run_begins_with(tmp_path):
    (table,) = load_document(written(tmp_path)).settings["tables"]
    assert (table.operator, dict(table.rows)) == ("forecast", {("1",): "arima"})


def test_table_of_a_document_that_fits_nothing_is_named_with_its_place(tmp_path):
    with pytest.raises(DataflowError, match=r"grid.yaml:9: tables.out: operator 'out' does not choose"):
        load_document(written(tmp_path, "out"))
    with pytest.raises(DataflowError, match=r"grid.yaml:9: tables.forecast: .*line 2: .* no alternate 'naive'"):
        load_document(written(tmp_path, alternate="naive"))

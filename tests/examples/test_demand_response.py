"""The demand response example: its operators, what it checks, and a small run on Spark."""

import json
import tempfile
from pathlib import Path

import demand_response
import numpy as np
import pandas as pd
import pytest
from demand_response import CURTAILED, Plan, forecast_error, forecast_hour, select_customers

from elastream.api.run import commanded
from elastream.guards.document import load_guards
from elastream.policies.forecasting.selection import Selector
from elastream.recording.recorder import Recording
from elastream_papers.thesis.dynamic_dataflow.methods import HISTORY, HORIZON, METHODS, Fitted


class Constant:
    """A network that always says the same."""

    def __init__(self, number):
        self.number = number

    def choose(self, vectors):
        return np.full(len(vectors), self.number)


@pytest.fixture(scope="module")
def given():
    loads = 100 + 10 * np.random.default_rng(0).random((2, HISTORY + 8 * HORIZON))
    selector = Selector("demand_response", "forecast", tuple(METHODS), Constant(2), 5.0, {})
    return Plan(
        loads,
        np.repeat(loads, 15, axis=1),
        HISTORY,
        8,
        Fitted(np.zeros((2, 3)), None),
        selector,
        np.full((2, 4), 0.1),
        210.0,
    )


def rows(intervals):
    return pd.DataFrame({"interval": intervals, "kw": [100.0 + each for each in intervals]})


def test_alternates_share_the_past_whichever_runs(given):
    whole, parted = rows(range(12)), None
    one, _ = forecast_hour("sliding1", given.known, ("c01",), whole, None)
    found = []
    for method, part in (("arima", range(4)), ("caiso", range(4, 8)), ("sliding1", range(8, 12))):
        made, parted = forecast_hour(method, given.known, ("c01",), rows(part), parted)
        found.append(made)
    assert [made.method.item() for made in found] == ["arima", "caiso", "sliding1"]
    assert found[-1].kw.item() == one.kw.iloc[-1]
    assert one.hour.tolist() == [1, 2, 3]


def test_the_error_of_an_hour_is_judged_when_all_of_it_came():
    made = pd.DataFrame([{"hour": 3, "method": "caiso", "kw": "[100, 100, 100, 100]"}])
    came = pd.DataFrame(
        {"interval": [15, 12, 13, 14], "kw": [50.0, 100.0, 100.0, 200.0], "deviation": [0.4, 0.1, 0.2, 0.3]}
    )
    (row,) = forecast_error(("c01",), made, came).to_dict("records")
    assert row["error"] == pytest.approx(100 * (1 + 0.5) / 4)
    assert json.loads(row["deviations"]) == [0.1, 0.2, 0.3, 0.4]
    assert forecast_error(("c01",), made, came.iloc[:3]).empty
    assert forecast_error(("c01",), made.iloc[:0], came).empty


def test_the_fewest_customers_bring_the_hour_down_to_the_capacity():
    item = {"hour": 9, "expected": 130.0, "reductions": json.dumps({"a": 5.0, "b": 20.0, "c": 12.0, "d": 12.0})}
    chosen = list(select_customers(100.0, item))
    assert [row["customer"] for row in chosen] == ["b", "c"]
    assert list(chosen[0]) == [column.split()[0] for column in CURTAILED.split(", ")]
    assert not list(select_customers(130.0, item))


def test_its_guards_fit_it(given, tmp_path):
    graph = demand_response.dataflow(given, tmp_path).graph
    document = load_guards(Path(demand_response.__file__).with_name("guards.yaml"), graph)
    assert {element.name for element in document.elements} == {"forecast", "demand_response"}


@pytest.mark.spark
@pytest.mark.slow
def test_on_spark_forecasts_switch_and_a_peak_wakes_curtailment(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with commanded(runs=tmp_path / "runs"):
        demand_response.main(8, 6)
    said = capsys.readouterr().out
    assert "48 forecasts by" in said
    (folder,) = (tmp_path / "runs").iterdir()
    recording = Recording.read(folder)
    assert recording.ending is not None
    assert recording.ending.facts["query runs"] == 4

"""What a selector chooses as key tables of a run."""

import numpy as np
import pytest

from elastream.api.run import admit
from elastream.clouds.local.local import Local
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import records
from elastream.dataflow.key_table import Selection
from elastream.errors import InputError
from elastream.policies.forecasting.selection import Selector, SelectorSink
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.recording.observer import Header
from elastream.settings import RunSettings

METHODS = ("calm", "wild")
VECTOR = "[0.1, 0.1, 0.1, 0.1]"


class Always:
    """A network that always says the same."""

    def choose(self, vectors):
        return np.full(len(vectors), 1)


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "flow")


@pytest.fixture
def tables(run):
    return KeyTableLog(run, {"forecast": Selection("flow", "forecast", {"customer": "string"}, METHODS)})


@pytest.fixture
def choosing(run):
    selector = Selector("flow", "forecast", METHODS, Always(), 5.0, {})
    made = SelectorSink(selector, key="customer", period="hour", method="method", error="error", vector="deviations")
    made.started(header(run))
    return made


def header(run, flow="flow"):
    return Header(flow, "static", "spark", environment={"directory": str(run.root)})


def test_what_became_bad_is_replaced_by_a_new_table(choosing, tables):
    choosing.judge([("a", 5, "calm", 4.0, VECTOR), ("b", 5, "calm", 6.0, VECTOR)])
    assert tables.newest() == {"forecast": 1}
    assert dict(tables.find("forecast", 1).rows) == {("a",): "calm", ("b",): "wild"}
    assert choosing.running == {"a": "calm", "b": "wild"}


def test_a_batch_that_comes_again_changes_nothing(choosing, tables):
    for _ in range(2):
        choosing.judge([("b", 5, "calm", 6.0, VECTOR)])
    assert tables.newest() == {"forecast": 1}


def test_what_still_ran_before_a_choice_is_no_reason_for_another(choosing, tables):
    choosing.judge([("b", 5, "calm", 6.0, VECTOR)])
    choosing.judge([("b", 6, "calm", 60.0, VECTOR)])
    choosing.judge([("b", 7, "wild", 4.0, [0.1] * 4)])
    assert tables.newest() == {"forecast": 1}


def test_a_selector_of_another_dataflow_is_refused_at_the_start(choosing, run):
    def flow(name="flow", operator="forecast", **selects):
        made = Dataflow(name)
        rows = records([{"customer": "a"}], "customer string")
        alternates = dict.fromkeys(METHODS, dict)
        made.source(rows).map(alternates, returns="customer string", name=operator, **selects).sink(choosing)
        return made.graph

    by_customer = {"select_by": "customer"}
    admit(flow(**by_customer), RunSettings(cloud=Local()))
    for graph, said in (
        (flow("other", **by_customer), "the selector is of dataflow 'flow', not of 'other'"),
        (flow(operator="predict", **by_customer), "chooses for operator 'forecast', which 'flow' does not have"),
        (flow(), "operator 'forecast' does not choose its alternate by the key 'customer'"),
    ):
        with pytest.raises(InputError, match=said):
            admit(graph, RunSettings(cloud=Local()))
    with pytest.raises(InputError, match="of dataflow 'flow', not of 'other'"):
        choosing.started(header(run, "other"))


def test_keys_that_were_not_judged_keep_what_they_began_with(run, tables):
    selector = Selector("flow", "forecast", METHODS, Always(), 5.0, {})
    begun = {"a": "wild", "b": "calm"}
    choosing = SelectorSink(
        selector, key="customer", period="hour", method="method", error="error", vector="deviations", running=begun
    )
    choosing.started(header(run))
    choosing.judge([("b", 5, "calm", 6.0, VECTOR)])
    assert dict(tables.find("forecast", 1).rows) == {("a",): "wild", ("b",): "wild"}

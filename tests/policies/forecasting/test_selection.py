"""Learned selection: what a network learns, when a selector asks it, and which files are refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.dataflow.builder import Dataflow
from elastream.dataflow.operators import Alternate
from elastream.errors import EnvironmentProblem, InputError
from elastream.policies.forecasting import selection
from support.property_examples import examples

METHODS = ("calm", "wild")


def hours(count, seed=0):
    """Vectors of which a small deviation tells that the first method is best, a large one the second; and their errors."""
    rng = np.random.default_rng(seed)
    wild = rng.random(count) < 0.5
    vectors = np.where(wild, 0.2, 0.01)[:, None] * rng.uniform(0.8, 1.25, (count, 4))
    errors = np.stack([np.where(wild, 20.0, 2.0), np.where(wild, 5.0, 8.0)], axis=1)
    return vectors, errors


@pytest.fixture(scope="module")
def network():
    return selection.train(*hours(600))


def selector(network, **changes):
    return replace(selection.Selector("flow", "forecast", METHODS, network, 3.0, {"a": 6.0}), **changes)


def flow(*alternates):
    made = Dataflow("flow")
    each = [Alternate(name, str.strip) for name in alternates]
    made.source(None, name="lines").map(each, returns="value string", name="forecast").sink(None)
    return made.graph


def test_a_network_tells_apart_what_it_was_shown(network):
    vectors, errors = hours(200, seed=1)
    assert selection.agreement(errors, network.choose(vectors)) == 1.0
    assert selection.excess(errors, network.choose(vectors)) == 0.0


def test_it_chooses_what_scikit_learn_would(network):
    vectors, _ = hours(300, seed=2)
    inputs = (np.log(vectors) - network.mean) / network.scale
    theirs = selection.learned("sklearn.neural_network").MLPClassifier(
        hidden_layer_sizes=(70,), activation="logistic", tol=0.01, learning_rate_init=0.01, max_iter=500, random_state=0
    )
    trained = hours(600)
    theirs.fit((np.log(trained[0]) - network.mean) / network.scale, selection.best(trained[1]))
    assert network.choose(vectors).tolist() == theirs.predict(inputs).tolist()


def test_equal_errors_are_equally_good():
    errors = np.array([[2.0, 2.0 + 1e-12, 3.0], [4.0, 1.0, 1.0]])
    assert selection.best(errors).tolist() == [0, 1]
    assert selection.agreement(errors, np.array([1, 2])) == 1.0


def test_the_network_is_asked_only_where_what_runs_became_bad(network):
    wild, calm = [0.2] * 4, [0.01] * 4
    chosen = selector(network)
    assert chosen.next("a", "calm", 5.9, wild) == "calm"
    assert chosen.next("a", "calm", 6.1, wild) == "wild"
    assert chosen.next("b", "calm", 5.9, wild) == "wild", "a key that it does not know has the common bound"
    assert chosen.next("a", None, 0.0, calm) == "calm"
    assert chosen.next("a", "wild", float("nan"), calm) == "calm", "an unknown error is no reason to go on"
    assert chosen.next("a", "gone", 1.0, calm) == "calm"


@settings(max_examples=examples(200))
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=4, max_size=4))
def test_whatever_was_measured_a_method_is_chosen(vector):
    network = selection.NeuralNetwork(
        np.zeros(4), np.ones(4), (np.ones((4, 3)), np.zeros(3)), (np.ones((3, 1)), np.zeros(1)), np.array([0, 1])
    )
    assert selector(network).next("a", None, 0.0, vector) in METHODS


def test_a_selector_comes_back_from_its_file(network, tmp_path):
    file = tmp_path / "selector.json"
    selector(network).save(file)
    again = selection.load_selector(file, flow("calm", "wild"))
    vectors, _ = hours(100, seed=3)
    assert again.chooser.choose(vectors).tolist() == network.choose(vectors).tolist()
    assert (again.methods, again.bound, again.bounds) == (METHODS, 3.0, {"a": 6.0})


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (flow("calm", "other"), "names the alternate 'wild', which 'forecast' does not have"),
        (replace(flow("calm", "wild"), name="another"), "is of dataflow 'flow', not of 'another'"),
    ],
)
def test_a_selector_of_another_dataflow_is_refused(network, tmp_path, graph, said):
    file = tmp_path / "selector.json"
    selector(network).save(file)
    with pytest.raises(InputError, match=said):
        selection.load_selector(file, graph)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"network": {}}', '{"network": 3}'])
def test_a_file_that_is_no_selector_is_refused(tmp_path, text):
    file = tmp_path / "selector.json"
    file.write_text(text)
    with pytest.raises(InputError, match="is not a selector"):
        selection.load_selector(file)


def test_an_online_tree_learns_as_it_goes():
    online = selection.Online(len(METHODS))
    vectors, errors = hours(800)
    assert online.choose(vectors[:2]).tolist() == [0, 0]
    for vector, each in zip(vectors, errors, strict=True):
        online.learn(vector, each)
    vectors, errors = hours(200, seed=5)
    assert selection.agreement(errors, online.choose(vectors)) > 0.95


def test_without_the_library_what_to_install_is_said():
    with pytest.raises(EnvironmentProblem, match=r"no_such_library is needed.*elastream\[learned\]"):
        selection.learned("no_such_library.of_learning")


def test_three_methods_are_chosen_among():
    rng = np.random.default_rng(0)
    kind = rng.integers(3, size=900)
    vectors = np.array([0.01, 0.05, 0.3])[kind][:, None] * rng.uniform(0.9, 1.1, (900, 4))
    errors = np.where(np.arange(3) == kind[:, None], 1.0, 9.0)
    assert selection.agreement(errors, selection.train(vectors, errors).choose(vectors)) > 0.99


def test_numbers_that_name_no_method_are_refused(network, tmp_path):
    file = tmp_path / "selector.json"
    selector(network).save(file)
    data = json.loads(file.read_text())
    data["network"]["classes"] = [0, 7]
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match="methods that it does not name"):
        selection.load_selector(file)

"""Learned selection of the method that will perform best next.

The network of the thesis (pp. 52-54) maps the past hour's deviations to the next hour's best method. It learns from an
oracle, or with `Online` during the run. Learning needs scikit-learn and river; a learned network is a few hundred
numbers in JSON.
"""

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, KeyTables, Selection
from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.recording.observer import Header, Observer
from elastream.units import ROUNDING

# Neurons of the hidden layer (p. 52).
HIDDEN = 70
# Threshold of the stopping criterion (p. 52). There it bounds the slope of the error; here the loss must improve by this
# much within ten epochs.
STOP = 0.01
# Step of Adam, ten times its default: input vectors are short, and STOP ends early.
PACE = 0.01
# Most epochs; STOP ends earlier.
EPOCHS = 500
# Standard deviations at which inputs are clipped: sigmoids are flat long before.
FAR = 1e3
# Deviation below which a signal counts as constant, before logarithms.
LEAST = 1e-6


class Chooser(Protocol):
    def choose(self, vectors: Floats) -> Integers:
        """Return the number of the best method for each row of `vectors`, shape (n, inputs)."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class NeuralNetwork:
    """A trained network with one hidden layer. Inputs are logarithms of deviations, less `mean`, over `scale`.

    Attributes:
        hidden: Weights (inputs, HIDDEN) and biases.
        classes: Numbers of the methods that were ever best.
    """

    mean: Floats
    scale: Floats
    hidden: tuple[Floats, Floats]
    output: tuple[Floats, Floats]
    classes: Integers

    def choose(self, vectors: Floats) -> Integers:
        inputs = np.clip(np.nan_to_num((_logarithms(vectors) - self.mean) / self.scale, nan=0.0), -FAR, FAR)
        layer = 1 / (1 + np.exp(-np.clip(inputs @ self.hidden[0] + self.hidden[1], -500, 500)))
        scores = layer @ self.output[0] + self.output[1]
        if len(self.classes) == 1:
            return np.full(len(vectors), self.classes[0])
        number = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes[number])


class Online:
    """Tree that learns from each hour and adapts if the best method changes (river)."""

    def __init__(self, methods: int, seed: int = 0) -> None:
        self._model = learned("river.tree").HoeffdingAdaptiveTreeClassifier(seed=seed)
        self._methods = methods

    def learn(self, vector: Floats, errors: Floats) -> None:
        self._model.learn_one(_named(vector), int(best(errors)))

    def choose(self, vectors: Floats) -> Integers:
        """Return the best method's number for each row; 0 before anything was learned."""
        return np.array([self._model.predict_one(_named(vector)) or 0 for vector in vectors], dtype=np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Selector:
    """Selection of the alternate of `operator` for each key.

    Attributes:
        bound: Error above which the method is chosen again, for keys without an entry in `bounds`.
        bounds: The same bound by key.
    """

    dataflow: str
    operator: str
    methods: tuple[str, ...]
    chooser: Chooser
    bound: float
    bounds: Mapping[str, float]

    def next(self, key: str, running: str | None, error: float, vector: Sequence[float] | Floats) -> str:
        """Return the method for the next hour of `key`.

        The running one stays unless its `error` exceeds the bound or is unknown.
        """
        if running is not None and not self.asks(key, running, error):
            return running
        return self.methods[int(self.chooser.choose(np.asarray(vector, dtype=float)[None, :])[0])]

    def asks(self, key: str, running: str | None, error: float) -> bool:
        return running not in self.methods or not error <= self.bounds.get(key, self.bound)

    def check(self, graph: Graph, where: str = "this selector") -> None:
        """Raise InputError unless the selector fits the name, an operator and the alternates of `graph`."""
        if self.dataflow != graph.name:
            raise InputError(f"{where} is of dataflow {self.dataflow!r}, not of {graph.name!r}")
        operator = next((each for each in graph.operators if each.name == self.operator), None)
        if operator is None:
            raise InputError(f"{where} chooses for operator {self.operator!r}, which {graph.name!r} does not have")
        names = [each.name for each in operator.alternates]
        if unknown := [name for name in self.methods if name not in names]:
            raise InputError(
                f"{where} names the alternate {unknown[0]!r}, which {self.operator!r} does not have "
                f"(it has: {', '.join(names)})"
            )

    def save(self, path: Path) -> None:
        if not isinstance(self.chooser, NeuralNetwork):
            raise TypeError(f"{type(self.chooser).__name__} cannot be saved")
        network = {name: _lists(getattr(self.chooser, name)) for name in NETWORK}
        about = {name: getattr(self, name) for name in ("dataflow", "operator", "methods", "bound")}
        path.write_text(json.dumps({**about, "bounds": dict(self.bounds), "network": network}) + "\n", encoding="utf-8")


NETWORK = ("mean", "scale", "hidden", "output", "classes")


def load_selector(path: Path, graph: Graph | None = None) -> Selector:
    """Read a selector that `Selector.save` wrote; raise InputError if it is none, or for another dataflow."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        network_fields = fields["network"]
        network = NeuralNetwork(
            np.array(network_fields["mean"], dtype=float),
            np.array(network_fields["scale"], dtype=float),
            _layer(network_fields["hidden"]),
            _layer(network_fields["output"]),
            np.array(network_fields["classes"], dtype=np.int64),
        )
        selector = Selector(
            str(fields["dataflow"]),
            str(fields["operator"]),
            tuple(map(str, fields["methods"])),
            network,
            float(fields["bound"]),
            {str(key): float(bound) for key, bound in fields["bounds"].items()},
        )
        selector.chooser.choose(np.ones((1, len(network.mean))))
        if not all(0 <= number < len(selector.methods) for number in network.classes):
            raise ValueError("it chooses methods that it does not name")
    except OSError as error:
        raise InputError(f"the selector {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path} is not a selector: {error}") from None
    if graph is not None:
        selector.check(graph, f"the selector {path}")
    return selector


def _layer(values: Any) -> tuple[Floats, Floats]:
    weights, biases = values
    return np.array(weights, dtype=float), np.array(biases, dtype=float)


def best(errors: Floats) -> Integers:
    """Return the number of the method with the least error; of equal ones the first."""
    least = errors.min(axis=-1, keepdims=True)
    return np.asarray((errors <= least + ROUNDING).argmax(axis=-1))


def agreement(errors: Floats, chosen: Integers) -> float:
    """Return the part of the rows in which the chosen method had the least error."""
    mine = np.take_along_axis(errors, chosen[:, None], axis=1)[:, 0]
    return float((mine <= errors.min(axis=1) + ROUNDING).mean())


def excess(errors: Floats, chosen: Integers) -> float:
    """Return how much the mean error of the choice exceeds the oracle's, as a fraction (Eq. 3.2)."""
    mine = np.take_along_axis(errors, chosen[:, None], axis=1)[:, 0]
    return float(mine.mean() / errors.min(axis=1).mean() - 1)


def train(vectors: Floats, errors: Floats, seed: int = 0) -> NeuralNetwork:
    """Train a network on vectors of shape (n, inputs) and errors of each method in the hour after, shape (n, methods)."""
    networks = learned("sklearn.neural_network")
    complete = np.isfinite(vectors).all(axis=1) & np.isfinite(errors).all(axis=1)
    inputs, labels = _logarithms(vectors[complete]), best(errors[complete])
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    classes = np.unique(labels)
    if len(classes) == 1:
        nothing = (np.zeros((inputs.shape[1], 1)), np.zeros(1))
        return NeuralNetwork(mean, scale, nothing, (np.zeros((1, 1)), np.zeros(1)), classes)
    network = networks.MLPClassifier(
        hidden_layer_sizes=(HIDDEN,),
        activation="logistic",
        tol=STOP,
        learning_rate_init=PACE,
        max_iter=EPOCHS,
        random_state=seed,
    ).fit((inputs - mean) / scale, labels)
    first, second = zip(network.coefs_, network.intercepts_, strict=True)
    return NeuralNetwork(mean, scale, first, second, np.asarray(network.classes_, dtype=np.int64))


def learned(module: str) -> Any:
    """Import a module of the extra `learned`, or raise EnvironmentProblem."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"{(error.name or module).split('.')[0]} is needed to learn: install it with pip install 'elastream[learned]'"
        ) from None


def _logarithms(vectors: Floats) -> Floats:
    return np.log(np.maximum(vectors, LEAST))


def _named(vector: Floats) -> dict[int, float]:
    return {number: value for number, value in enumerate(_logarithms(vector).tolist()) if not math.isnan(value)}


def _lists(value: Any) -> Any:
    return [_lists(each) for each in value] if isinstance(value, tuple) else np.asarray(value).tolist()


class SelectorSink(Observer):
    """Sink for errors that chooses each key's alternate with `selector` and writes key tables.

    As an observer it learns the run's folder:

        chooser = SelectorSink(selector, key="customer", period="hour", method="method", error="error", vector="deviations")
        errors.sink(chooser) run(flow, ..., observers=(chooser,))

    The driver alone uses it. It stores two values by key.

    Args:
        key: Text column that the operator selects by.
        period: Column that grows with every error of a key. It identifies repeated errors of a replay.
        method: Column with the alternate that caused the error.
        vector: Column with the selector's input, an array or a JSON list.
    """

    def __init__(
        self,
        selector: Selector,
        *,
        key: str,
        period: str,
        method: str,
        error: str,
        vector: str,
        running: Mapping[str, str] | None = None,
    ) -> None:
        self._selector = selector
        self._key, self._columns = key, (key, period, method, error, vector)
        self._tables: KeyTables | None = None
        self._running = dict(running or {})
        self._judged: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def running(self) -> Mapping[str, str]:
        return dict(self._running)

    def refuse(self, graph: Graph) -> None:
        self._selector.check(graph, "the selector")
        if graph.operator(self._selector.operator).selects != (self._key,):
            raise InputError(f"operator {self._selector.operator!r} does not choose its alternate by the key {self._key!r}")

    def started(self, header: Header) -> None:
        about = self._selector
        if header.flow != about.dataflow:
            raise InputError(f"the selector is of dataflow {about.dataflow!r}, not of {header.flow!r}")
        folder = RunDirectory(Path(str(header.environment["directory"])))
        selection = Selection(about.dataflow, about.operator, {self._key: "string"}, about.methods)
        self._tables = KeyTableLog(folder, {about.operator: selection})

    def write(self, rows: Any, batch: int) -> None:
        """Process the errors of a batch (a DataFrame). A repeated batch changes nothing."""
        self.judge([tuple(row[name] for name in self._columns) for row in rows.select(*self._columns).collect()])

    def judge(self, errors: Sequence[tuple[str, Any, str, float, Any]]) -> None:
        """Process (key, period, method, error, vector) rows; write a key table if a choice changes."""
        with self._lock:
            before = dict(self._running)
            for key, period, method, error, vector in sorted(errors, key=lambda each: (each[1], each[0])):
                if key in self._judged and period <= self._judged[key]:
                    continue
                self._judged[key] = period
                if method != self._running.get(key, method):
                    continue  # an error of the previous method is no reason to choose again
                deviations = json.loads(vector) if isinstance(vector, str) else vector
                self._running[key] = self._selector.next(key, method, error, deviations)
            if self._running != before and self._tables is not None:
                rows = {(key,): name for key, name in self._running.items()}
                about = self._selector
                self._tables.append(KeyTable(about.dataflow, about.operator, (self._key,), rows), "selector")

"""Learned selection: which of several methods will do best next, told from how much a quantity varied lately.

The network of the thesis (pp. 52-54): the standard deviations of the past hour go in, the best method for the next hour
comes out; it learns from an oracle that knows every method's error. A selector asks it anew only where the method that
runs has
become bad. What it answers is for a control plane: a signal that guards read, or a key table. One that learns as it runs is
beside it.

scikit-learn and river are needed to learn, not to choose: a network is a few hundred numbers, kept as JSON and not as
pickled code.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.dataflow.graph import Graph
from elastream.errors import EnvironmentProblem, InputError
from elastream.units import ROUNDING

HIDDEN = 70
"""Neurons of the one hidden layer (p. 52)."""
STOP = 0.01
"""Threshold of the stopping criterion (p. 52). There it bounds the slope of the error; here the loss of an epoch must gain
that much within ten epochs."""
PACE = 0.01
"""Step of Adam: ten times its usual one, since an hour of a customer is a short vector and STOP ends early."""
EPOCHS = 500
"""Most epochs; STOP ends before."""
FAR = 1e3
"""Standard deviations beyond which an input says nothing more: sigmoids are flat long before."""
LEAST = 1e-6
"""Deviation below which a signal counts as constant; logarithms are taken above it."""


class Chooser(Protocol):
    """Tells which method will be best."""

    def choose(self, vectors: Floats) -> Integers:
        """Number of the method for each row of `vectors`, shape (n, inputs)."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class NeuralNetwork:
    """A trained network of one hidden layer. Inputs are logarithms of deviations, less `mean`, over `scale`.

    hidden: weights (inputs, HIDDEN) and biases (HIDDEN,); output: weights (HIDDEN, outputs) and biases; a single output
    decides between two classes. classes: numbers of the methods that were ever best.
    """

    mean: Floats
    scale: Floats
    hidden: tuple[Floats, Floats]
    output: tuple[Floats, Floats]
    classes: Integers

    def choose(self, vectors: Floats) -> Integers:
        """Number of the best method for each row. A row with an unknown value gets that of an average one."""
        inputs = np.clip(np.nan_to_num((_logarithms(vectors) - self.mean) / self.scale, nan=0.0), -FAR, FAR)
        layer = 1 / (1 + np.exp(-np.clip(inputs @ self.hidden[0] + self.hidden[1], -500, 500)))
        found = layer @ self.output[0] + self.output[1]
        if len(self.classes) == 1:
            return np.full(len(vectors), self.classes[0])
        number = (found[:, 0] > 0).astype(int) if found.shape[1] == 1 else found.argmax(axis=1)
        return np.asarray(self.classes[number])


class Online:
    """A tree that learns from each hour as its outcome becomes known, and adapts where the best method changes (river)."""

    def __init__(self, methods: int, seed: int = 0) -> None:
        self._model = learned("river.tree").HoeffdingAdaptiveTreeClassifier(seed=seed)
        self._methods = methods

    def learn(self, vector: Floats, errors: Floats) -> None:
        """Learn from one hour: what was known before it, and the error of each method in it."""
        self._model.learn_one(_named(vector), int(best(errors)))

    def choose(self, vectors: Floats) -> Integers:
        """Number of the best method for each row; the first before anything was learned."""
        return np.array([self._model.predict_one(_named(vector)) or 0 for vector in vectors], dtype=np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Selector:
    """Chooses the alternate of `operator` of `dataflow`, for each key by itself.

    methods: alternates, in the order of the chooser's numbers. bounds: by key, the error above which it is asked anew;
    `bound` is that of keys that it does not know.
    """

    dataflow: str
    operator: str
    methods: tuple[str, ...]
    chooser: Chooser
    bound: float
    bounds: Mapping[str, float]

    def next(self, key: str, running: str | None, error: float, vector: Sequence[float] | Floats) -> str:
        """The method for the next hour of `key`: the one that is running, unless its `error` passed the bound or is
        unknown,
        or nothing runs yet."""
        if running is not None and not self.asks(key, running, error):
            return running
        return self.methods[int(self.chooser.choose(np.asarray(vector, dtype=float)[None, :])[0])]

    def asks(self, key: str, running: str | None, error: float) -> bool:
        """Whether the network is asked for the next hour of `key`."""
        return running not in self.methods or not error <= self.bounds.get(key, self.bound)

    def check(self, graph: Graph, where: str = "this selector") -> None:
        """Raise InputError unless it is for `graph`: its name, an operator of it, and that operator's alternates."""
        if self.dataflow != graph.name:
            raise InputError(f"{where} is of dataflow {self.dataflow!r}, not of {graph.name!r}")
        operator = next((each for each in graph.operators if each.name == self.operator), None)
        if operator is None:
            raise InputError(f"{where} chooses for operator {self.operator!r}, which {graph.name!r} does not have")
        known = [each.name for each in operator.alternates]
        if unknown := [name for name in self.methods if name not in known]:
            raise InputError(
                f"{where} names the alternate {unknown[0]!r}, which {self.operator!r} does not have "
                f"(it has: {', '.join(known)})"
            )

    def save(self, path: Path) -> None:
        """Write it as JSON. Raises TypeError where its chooser is no NeuralNetwork."""
        if not isinstance(self.chooser, NeuralNetwork):
            raise TypeError(f"{type(self.chooser).__name__} cannot be saved")
        network = {name: _lists(getattr(self.chooser, name)) for name in NETWORK}
        about = {name: getattr(self, name) for name in ("dataflow", "operator", "methods", "bound")}
        path.write_text(json.dumps({**about, "bounds": dict(self.bounds), "network": network}) + "\n", encoding="utf-8")


NETWORK = ("mean", "scale", "hidden", "output", "classes")


def load_selector(path: Path, graph: Graph | None = None) -> Selector:
    """Read a selector that `Selector.save` wrote. Raises InputError where it is none, or is of another dataflow."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        given = found["network"]
        network = NeuralNetwork(
            np.array(given["mean"], dtype=float),
            np.array(given["scale"], dtype=float),
            _layer(given["hidden"]),
            _layer(given["output"]),
            np.array(given["classes"], dtype=np.int64),
        )
        selector = Selector(
            str(found["dataflow"]),
            str(found["operator"]),
            tuple(map(str, found["methods"])),
            network,
            float(found["bound"]),
            {str(key): float(bound) for key, bound in found["bounds"].items()},
        )
        selector.chooser.choose(np.ones((1, len(network.mean))))
        if not all(0 <= number < len(selector.methods) for number in network.classes):
            raise ValueError("it chooses methods that it does not name")
    except OSError as error:
        raise InputError(f"the selector {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path} is no selector: {error}") from None
    if graph is not None:
        selector.check(graph, f"the selector {path}")
    return selector


def _layer(given: Any) -> tuple[Floats, Floats]:
    weights, biases = given
    return np.array(weights, dtype=float), np.array(biases, dtype=float)


def best(errors: Floats) -> Integers:
    """The oracle: number of the method with the least error, over the last axis; of equal ones the first."""
    least = errors.min(axis=-1, keepdims=True)
    return np.asarray((errors <= least + ROUNDING).argmax(axis=-1))


def agreement(errors: Floats, chosen: Integers) -> float:
    """Part of the rows of `errors`, shape (n, methods), in which the chosen method was a best one."""
    mine = np.take_along_axis(errors, chosen[:, None], axis=1)[:, 0]
    return float((mine <= errors.min(axis=1) + ROUNDING).mean())


def excess(errors: Floats, chosen: Integers) -> float:
    """Deviation from the best (Eq. 3.2): how much more the mean error of what was chosen is than that of the oracle."""
    mine = np.take_along_axis(errors, chosen[:, None], axis=1)[:, 0]
    return float(mine.mean() / errors.min(axis=1).mean() - 1)


def train(vectors: Floats, errors: Floats, seed: int = 0) -> NeuralNetwork:
    """A network that learned from hours: vectors (n, inputs) of what was known, errors (n, methods) of what came.

    Hours with an unknown value are left out. Raises EnvironmentProblem without the extra `learned`.
    """
    networks = learned("sklearn.neural_network")
    known = np.isfinite(vectors).all(axis=1) & np.isfinite(errors).all(axis=1)
    inputs, labels = _logarithms(vectors[known]), best(errors[known])
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
    """A module of the extra `learned`, imported now. Raises EnvironmentProblem where it is not installed."""
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

"""Puts what a selector chooses in force: errors of what ran come in, key tables for the run go out.

It stands beside the dataflow (thesis, Fig. 3.6): the data plane gives errors and deviations of each key, the control plane
reads the tables that come of them. One object is both the sink of the errors and an observer of the run, which tells it
the run's folder.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elastream.core.decision import Decision
from elastream.core.observation import Observation
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, KeyTables, Selection
from elastream.errors import InputError
from elastream.policies.forecasting.selection import Selector
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.recording.observer import Ending, Header


class Choosing:
    """Chooses the alternate of each key of a run, with `selector`.

        choosing = Choosing(selector, key="customer", period="hour", method="method", error="error", vector="deviations")
        errors.sink(choosing)
        run(flow, ..., observers=(choosing,))

    key: the column that the operator selects by, text. period: a column that grows with every error of a key; those of a
    replay are known by it. method: the alternate that the error is of. error: percent. vector: what the selector is asked
    with, an array or a JSON list. running: what the run starts with for each key, if it starts with a table. It is used by
    the driver alone, and holds two values of a key.
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
        """The alternate chosen for each key so far."""
        return dict(self._running)

    def refuse(self, graph: Graph) -> None:
        """Raise InputError where the selector is of another dataflow, or the operator does not choose by this key."""
        self._selector.check(graph, "the selector")
        if graph.operator(self._selector.operator).selects != (self._key,):
            raise InputError(f"operator {self._selector.operator!r} does not choose its alternate by the key {self._key!r}")

    def started(self, header: Header) -> None:
        """Open the key tables of the run. Raises InputError where the selector is of another dataflow."""
        about = self._selector
        if header.flow != about.dataflow:
            raise InputError(f"the selector is of dataflow {about.dataflow!r}, not of {header.flow!r}")
        folder = RunDirectory(Path(str(header.environment["directory"])))
        selection = Selection(about.dataflow, about.operator, {self._key: "string"}, about.methods)
        self._tables = KeyTableLog(folder, {about.operator: selection})

    def write(self, rows: Any, batch: int) -> None:
        """Take the errors of a batch, a DataFrame; taking them again changes nothing."""
        self.judge([tuple(row[name] for name in self._columns) for row in rows.select(*self._columns).collect()])

    def judge(self, errors: Sequence[tuple[str, Any, str, float, Any]]) -> None:
        """Take errors: (key, period, method, error, vector) each; a changed choice is a new key table."""
        with self._lock:
            before = dict(self._running)
            for key, period, method, error, vector in sorted(errors, key=lambda each: (each[1], each[0])):
                if key in self._judged and period <= self._judged[key]:
                    continue
                self._judged[key] = period
                if method != self._running.get(key, method):
                    continue  # what ran before the last choice: no reason to choose again
                given = json.loads(vector) if isinstance(vector, str) else vector
                self._running[key] = self._selector.next(key, method, error, given)
            if self._running != before and self._tables is not None:
                rows = {(key,): name for key, name in self._running.items()}
                about = self._selector
                self._tables.append(KeyTable(about.dataflow, about.operator, (self._key,), rows), "selector")

    def observed(self, observation: Observation) -> None:
        """Nothing: it goes by errors."""

    def decided(self, decision: Decision) -> None:
        """Nothing."""

    def ended(self, ending: Ending) -> None:
        """Nothing."""

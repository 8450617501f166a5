"""Demand response: forecasts each customer's electricity use an hour ahead by the method that suits it now, and wakes the
choice of customers to curtail when a peak is coming; then checks all results.

The dataflow of the thesis "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare, 2016), Figures 1.8
and 3.6. Readings are synthetic. docs/explanation/demand-response.md says what is as in the thesis.

elastream run examples/demand_response.py
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from elastream import Alternate, Dataflow, HostType, Local, run
from elastream.dataflow.endpoints import parquet, records
from elastream.dataflow.key_table import KeyTable, selection_of
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.policies import Static
from elastream.policies.forecasting.selection import Selector, SelectorSink
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.spark.worker.composition import CompositionCodec, code_in_offsets
from elastream_papers.thesis.dynamic_dataflow.experiment import TRAINED, WARM, forecasts_of, selector_of
from elastream_papers.thesis.dynamic_dataflow.methods import HISTORY, HORIZON, METHODS, Fitted, fit, forecast
from elastream_papers.thesis.dynamic_dataflow.readings import INTERVAL, WEEK, Generator, generate

CUSTOMERS = 12
FIRST = 8
"""Hour of a Monday at which the run begins: the forecasts of the night are no peak."""
HOURS = 24
SECONDS = 4.0
"""Seconds in which an hour of the readings passes."""
SEED = 7
CAPACITY = 1.05
"""What can be supplied, over the mean of the weeks before: working days pass it."""
FLEXIBLE = 0.2
"""Part of its forecast that a customer can do without for an hour."""
BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
"""Monday, 0:00, of the first reading."""

HOST = HostType("station", cores=0.9, slots=2, memory=1200)

INTEGRATED = "customer string, interval long, time timestamp, kw double, deviation double"
FORECAST = "customer string, hour long, time timestamp, method string, kw string"
ERROR = "customer string, hour long, method string, error double, deviations string"
DEMAND = "hour long, expected double, over double, forecasts string"
PREDICTED = "hour long, expected double, over double, forecasts string, reductions string"
CURTAILED = "hour long, customer string, reduction double"


# -- the operators -----------------------------------------------------------------------------------------------------


def integrate(item):
    """Information integration: a meter's telegram of a quarter hour, watts by the minute, as mean power and deviation."""
    watts = np.array(item["watts"].split(), dtype=float)
    return {
        "customer": item["meter"].removeprefix("meter-"),
        "interval": item["interval"],
        "time": time_of(item["interval"]),
        "kw": float(watts.mean() / 1000),
        "deviation": float(watts.std() / watts.mean()),
    }


def forecast_hour(method, known, key, rows, state):
    """One alternate of the forecast: at the end of each hour what `method` says of the next one.

    All alternates share one state: the customer's past, which begins with the historical storage of `known`.
    """
    past = np.frombuffer(state[0]) if state else known.past(key[0])
    found = []
    for row in rows.sort_values("interval").itertuples():
        past = np.append(past, row.kw)[-HISTORY:]
        if (row.interval + 1) % HORIZON == 0:
            begin = row.interval + 1
            kw = forecast(method, known.fitted, past, known.number(key[0]), begin % WEEK)
            about = {"customer": key[0], "hour": begin // HORIZON, "time": time_of(begin), "method": method}
            found.append({**about, "kw": json.dumps(kw.tolist())})
    return table(found, FORECAST), (past.tobytes(),)


def forecast_error(key, forecasts, came):
    """The forecast of an hour beside what came: MAPE (Eq. 3.1), and the deviations that the network is asked with."""
    if forecasts.empty or len(came) < HORIZON:
        return table([], ERROR)
    (made,), came = forecasts.itertuples(), came.sort_values("interval")
    error = 100 * np.mean(np.abs(came.kw - json.loads(made.kw)) / came.kw)
    row = {"customer": key[0], "hour": made.hour, "method": made.method, "error": float(error)}
    return table([{**row, "deviations": json.dumps(came.deviation.tolist())}], ERROR)


def expected_demand(capacity, key, rows):
    """The forecasts of all customers for an hour: demand in its quarter hour of most, kW, and over the capacity."""
    mine = {row.customer: json.loads(row.kw) for row in rows.sort_values("customer").itertuples()}
    expected = np.sum(list(mine.values()), axis=0)
    shown = {customer: float(np.mean(kw)) for customer, kw in mine.items()}
    most = float(expected.max())
    row = {"hour": key[0], "expected": most, "over": most / capacity, "forecasts": json.dumps(shown)}
    return table([row], DEMAND)


def predict_curtailment(item):
    """What each customer can do without in the hour, kW."""
    reductions = {customer: FLEXIBLE * kw for customer, kw in json.loads(item["forecasts"]).items()}
    return {**item, "reductions": json.dumps(reductions)}


def select_customers(capacity, item):
    """The fewest customers whose reductions bring the hour down to the capacity: those with most first."""
    missing = item["expected"] - capacity
    found = []
    for customer, reduction in sorted(json.loads(item["reductions"]).items(), key=lambda each: (-each[1], each[0])):
        if missing <= 0:
            break
        found.append({"hour": item["hour"], "customer": customer, "reduction": reduction})
        missing -= reduction
    return found


def time_of(interval):
    """When an interval begins."""
    return BEGAN + timedelta(minutes=INTERVAL * int(interval))


def table(rows, schema):
    """`rows` as a frame with the columns of `schema`, also without rows."""
    return pd.DataFrame(rows, columns=[column.split()[0] for column in schema.split(", ")])


# -- what is known before ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Known:
    """Historical storage: what is known before the run, shipped with the job.

    loads: kW of each customer by interval, up to the start, shape (customers, HISTORY). fitted: ARIMA and the tree.
    """

    loads: np.ndarray
    fitted: Fitted

    def past(self, customer):
        """Power by interval, in kW, oldest first."""
        return self.loads[self.number(customer)]

    @staticmethod
    def number(customer):
        """Row of a customer."""
        return int(customer[1:])


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that a run needs. power: kW by minute; loads: by interval; start: interval at which it begins.

    vectors: deviations of each customer's last hour before it; capacity: kW.
    """

    loads: np.ndarray
    power: np.ndarray
    start: int
    hours: int
    fitted: Fitted
    selector: Selector
    vectors: np.ndarray
    capacity: float

    @property
    def customers(self) -> Sequence[str]:
        """Their names."""
        return [f"c{number:02d}" for number in range(len(self.loads))]

    def load_at(self, seconds):
        """What is expected of the hour under way, over the capacity, where the run is simulated: what then came."""
        hour = self.start // HORIZON + int(seconds // SECONDS)
        return float(self.loads[:, hour * HORIZON : (hour + 1) * HORIZON].sum(axis=0).max() / self.capacity)

    @property
    def known(self) -> Known:
        """What is known at its start."""
        return Known(self.loads[:, self.start - HISTORY : self.start], self.fitted)

    @property
    def first(self) -> dict[str, str]:
        """The method that each customer begins with: what the network says of the hour before."""
        return {
            name: self.selector.next(name, None, 0.0, each) for name, each in zip(self.customers, self.vectors, strict=True)
        }

    def telegrams(self):
        """What the meters send in the run, in order of time."""
        return [
            {"meter": f"meter-{customer}", "interval": interval, "watts": self.watts(number, interval)}
            for interval in range(self.start, self.start + self.hours * HORIZON)
            for number, customer in enumerate(self.customers)
        ]

    def watts(self, number, interval):
        """A telegram of one meter: watts by the minute, whole."""
        minutes = self.power[number, interval * INTERVAL : (interval + 1) * INTERVAL]
        return " ".join(str(round(1000 * kw)) for kw in minutes)


def plan(hours: int = HOURS, customers: int = CUSTOMERS, seed: int = SEED) -> Plan:
    """Readings, methods fitted to six weeks of them, and a selector trained on three."""
    weeks = WARM + TRAINED
    readings = generate(Generator(), weeks + 1, seed, customers)
    before = readings.first(weeks)
    errors, vectors, _ = forecasts_of(before)
    selector = selector_of([f"c{number:02d}" for number in range(customers)], vectors, errors, seed)
    capacity = CAPACITY * float(before.loads.sum(axis=0).mean())
    start = weeks * WEEK + FIRST * HORIZON
    vectors = readings.deviations[:, start - HORIZON : start]
    return Plan(readings.loads, readings.power, start, hours, fit(before.loads), selector, vectors, capacity)


# -- the dataflow ------------------------------------------------------------------------------------------------------

COST, COSTS = 1e-3, {"regression_tree": 2e-3}
"""Core-seconds of a record, for the simulator."""
HOUR = INTERVAL * HORIZON * 60
"""Seconds."""


def dataflow(given: Plan, results: Path, choosing=None) -> Dataflow:
    """Fig. 3.6, with the join of Fig. 3.4. choosing: gets each forecast's error, and chooses each customer's method."""
    flow = Dataflow("demand_response")
    rate = len(given.customers) * HORIZON / SECONDS
    telegrams = records(given.telegrams(), "meter string, interval long, watts string")
    meters = flow.source(telegrams, load=constant(rate, given.hours * SECONDS), name="meters", cores=0)
    readings = meters.map(alternate("integrate", integrate, 1e-4), returns=INTEGRATED, name="integrate", cores=0.1)
    methods = [
        Alternate(name, partial(forecast_hour, name, given.known), cost=COSTS.get(name, COST), selectivity=1 / HORIZON)
        for name in METHODS
    ]
    forecasts = (
        readings.durable()
        .key_by("customer")
        .apply(methods, returns=FORECAST, state="past binary", name="forecast", select_by="customer", cores=0.25)
    )
    forecasts.sink(parquet(results / "forecasts"), name="forecasts")
    judged = (
        forecasts.durable()
        .window(seconds=HOUR, by="time", late=HOUR)
        .join(readings.durable(), "customer", alternate("compare", forecast_error, COST, 1 / (HORIZON + 1)),
              returns=ERROR, name="compare", cores=0.1)
    )  # fmt: skip
    judged.signal("forecast_error", "mean(error)")
    judged.sink(parquet(results / "errors"), name="errors")
    if choosing is not None:
        judged.sink(choosing, name="selector")
    total = alternate("demand", partial(expected_demand, given.capacity), COST, 1 / len(given.customers))
    demand = (
        forecasts.durable()
        .window(count=len(given.customers), by="customer")
        .group_by("hour")
        .apply(total, returns=DEMAND, name="demand", cores=0.1)
    )
    demand.signal("expected_load", "max(over)", trace=given.load_at)
    demand.sink(parquet(results / "demand"), name="hours")
    peak = demand.choice("demand_response")
    peak.nothing(name="nothing")
    choose = alternate("select_customers", partial(select_customers, given.capacity), COST, len(given.customers) / 2)
    (
        peak.map(alternate("curtail", predict_curtailment, COST), returns=PREDICTED, name="curtail", cores=0.1)
        .flat_map(choose, returns=CURTAILED, name="select_customers", cores=0.1)
        .sink(parquet(results / "curtailments"), name="curtailments")
    )
    return flow


def alternate(name, function, cost, selectivity=1.0):
    """The one alternate of an operator, with what the simulator needs of it."""
    return [Alternate(name, function, cost=cost, selectivity=selectivity)]


# -- the check ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """What was compared with plain Python. differences: a sentence each; none where all agrees."""

    forecasts: int
    methods: int
    """Methods that forecast anything."""
    switches: int
    """Of the method of a customer, from one hour to the next."""
    errors: int
    hours: int
    curtailed: int
    """Hours with customers chosen."""
    reductions: int
    differences: tuple[str, ...]


def check(given: Plan, results: Path, run: RunDirectory, graph) -> Checked:  # noqa: C901
    """Compare what reached the sinks with plain Python over the same telegrams and the recorded compositions."""
    known, wrong = given.known, []
    tables = KeyTableLog(run, {"forecast": selection_of(graph, "forecast")})
    came = {(item["meter"], item["interval"]): integrate(item) for item in given.telegrams()}
    made: dict[tuple[str, int], tuple[str, list[float]]] = {}
    for batch, row in rows_of(results / "forecasts"):
        key = (row["customer"], row["hour"])
        if key in made:
            wrong.append(f"the forecast of {key} came twice")
        made[key] = (row["method"], json.loads(row["kw"]))
        composition = composition_of(run, graph, "forecast", batch)
        expected = composition.alternates["forecast"]
        if version := composition.tables.get("forecast", 0):
            expected = tables.find("forecast", version).alternate((row["customer"],)) or expected
        if row["method"] != expected:
            wrong.append(f"{row['method']} forecast {key} in batch {batch}, whose composition says {expected}")
    for number, customer in enumerate(given.customers):
        past = known.past(customer)
        for interval in range(given.start, given.start + given.hours * HORIZON):
            past = np.append(past, came[f"meter-{customer}", interval]["kw"])[-HISTORY:]
            if (interval + 1) % HORIZON:
                continue
            method, kw = made.get((customer, (interval + 1) // HORIZON), ("", []))
            begin = interval + 1
            if not method:
                wrong.append(f"there is no forecast of {customer} for hour {begin // HORIZON}")
            elif kw != forecast(method, known.fitted, past, number, begin % WEEK).tolist():
                wrong.append(f"{method} forecasts something else of {customer} for hour {begin // HORIZON}")
    errors = [row for _, row in rows_of(results / "errors")]
    if len({(row["customer"], row["hour"]) for row in errors}) < len(errors):
        wrong.append("the error of an hour came twice")
    for row in errors:
        customer, hour, method, error = (row[name] for name in ("customer", "hour", "method", "error"))
        actual = [came[f"meter-{customer}", hour * HORIZON + part]["kw"] for part in range(HORIZON)]
        kw = made[customer, hour][1]
        if abs(error - 100 * np.mean(np.abs(np.subtract(actual, kw)) / actual)) > 1e-9 or method != made[customer, hour][0]:
            wrong.append(f"the error of {customer} in hour {hour} is another")
    curtailments, found = {}, {}
    for batch, row in rows_of(results / "curtailments"):
        found.setdefault(row["hour"], []).append((row["customer"], row["reduction"]))
        curtailments[row["hour"]] = batch
    hours = dict(sorted((row["hour"], (batch, row)) for batch, row in rows_of(results / "demand")))
    for hour, (batch, row) in hours.items():
        mine = {customer: np.array(made[customer, hour][1]) for customer in given.customers}
        expected = expected_demand(given.capacity, (hour,), frame_of(hour, mine))
        if dict(expected.iloc[0]) != row:
            wrong.append(f"the demand of hour {hour} is another")
        branch = composition_of(run, graph, "demand", batch).choices["demand_response"]
        chosen = select_customers(given.capacity, predict_curtailment(row)) if branch == "curtail" else []
        if sorted((each["customer"], each["reduction"]) for each in chosen) != sorted(found.pop(hour, [])):
            wrong.append(f"other customers were chosen for hour {hour}, whose batch {batch} went to {branch}")
    wrong += [f"customers were chosen for hour {hour}, which no demand was for" for hour in found]
    wrong += [f"there is no demand of hour {hour}" for hour in sorted({hour for _, hour in made} - hours.keys())]
    methods = {method for method, _ in made.values()}
    switches = sum(made[key][0] != made.get((key[0], key[1] - 1), made[key])[0] for key in made)
    reductions = len(list(rows_of(results / "curtailments")))
    return Checked(len(made), len(methods), switches, len(errors), len(hours), len(curtailments), reductions, tuple(wrong))


def rows_of(folder: Path):
    """(batch, row) of all results written to `folder`, in order of the batches."""
    for batch in sorted(folder.glob("batch=*"), key=lambda each: int(each.name.removeprefix("batch="))):
        for file in sorted(batch.glob("[!.]*.parquet")):
            for row in pq.ParquetFile(file).read().to_pylist():
                yield int(batch.name.removeprefix("batch=")), row


def frame_of(hour, forecasts):
    """Forecasts of an hour as the demand operator gets them."""
    return pd.DataFrame([{"customer": customer, "kw": json.dumps(kw.tolist())} for customer, kw in forecasts.items()])


def composition_of(run: RunDirectory, graph, operator, batch):
    """The composition that a batch of the query of `operator` ran under, as its offsets have it."""
    segment = next(each for each in lay_out(graph).segments if operator in each.operators)
    code = code_in_offsets(run.checkpoint(segment.name), batch)
    return CompositionCodec(graph).decode(code or 0)


# -- the run -----------------------------------------------------------------------------------------------------------


def carry_out(given: Plan, results: Path, show: bool = True):
    """Run it on Spark and check what it gave."""
    columns = {"key": "customer", "period": "hour", "method": "method", "error": "error", "vector": "deviations"}
    choosing = SelectorSink(given.selector, **columns, running=given.first)
    graph = dataflow(given, results, choosing).graph
    result = run(
        graph,
        policy=Static(2),
        cloud=Local(HOST, min_hosts=2, max_hosts=2),
        guards=Path(__file__).with_name("guards.yaml"),
        target_latency="15s",
        state_partitions=2,
        tables=[
            KeyTable("demand_response", "forecast", ("customer",), {(name,): each for name, each in given.first.items()})
        ],
        observers=(choosing,),
        show=show,
    )
    if result.ending.status != "finished":
        raise SystemExit("stopped before its load had ended: results are not checked")
    return check(given, results, RunDirectory(result.directory), graph)


def page(given: Plan, results: Path, checked: Checked) -> list[str]:
    """What happened, by hour, and what was checked."""
    chosen: dict[int, list[str]] = {}
    for _, row in rows_of(results / "curtailments"):
        chosen.setdefault(row["hour"], []).append(f"{row['customer']} {row['reduction']:.0f}")
    methods: dict[int, dict[str, int]] = {}
    for _, row in rows_of(results / "forecasts"):
        used = methods.setdefault(row["hour"], {})
        used[row["method"]] = used.get(row["method"], 0) + 1
    lines = [f"{'hour':>4}  {'expected':>8}  {'capacity':>8}  forecasts of customers by; customers to curtail, kW"]
    for _, row in sorted(rows_of(results / "demand"), key=lambda each: each[1]["hour"]):
        hour = row["hour"]
        used = ", ".join(f"{name} {count}" for name, count in sorted(methods[hour].items(), key=lambda each: -each[1]))
        shown = f"; {', '.join(chosen[hour])}" if hour in chosen else ""
        lines.append(f"{hour % 24:>4}  {row['expected']:>8.0f}  {given.capacity:>8.0f}  {used}{shown}")
    errors = [row["error"] for _, row in rows_of(results / "errors")]
    return [
        *lines,
        f"{checked.switches} switches of a customer's method; mean error (MAPE) {np.mean(errors):.1f} %, synthetic data.",
        f"Customers were chosen in {checked.curtailed} of {checked.hours} hours: {checked.reductions} choices.",
        f"All {checked.forecasts} forecasts by {checked.methods} methods, {checked.errors} errors, {checked.hours} demands",
        "and all choices are those of plain Python over the same telegrams and the recorded compositions.",
    ]


def main(hours: int = HOURS, customers: int = CUSTOMERS) -> None:
    """Run it and check it."""
    given, results = plan(hours, customers), Path(tempfile.mkdtemp(prefix="demand-response-"))
    checked = carry_out(given, results)
    if checked.differences:
        raise SystemExit("\n".join(checked.differences[:10]))
    print(*page(given, results, checked), sep="\n")


if __name__ == "__main__":
    main()

"""Compares what furnaces measure with what they were set to, window by window; then checks every result.

elastream run examples/setpoints.py

Readings of a furnace and the temperatures that it is set to come from two sources. Windows of two seconds bring them
together: a join gives how far the furnace was off, and `off` is the signal that a guard may act on. A second query keeps,
window by window, the extremes of each furnace.
"""

import tempfile
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from elastream import Dataflow, Local, run
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import constant
from elastream.policies import Threshold

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
FURNACES = ("north", "south")
WINDOW = 2.0
LATE = 1.0


def measured(seconds, each):
    """`each` readings a second of both furnaces, for so many seconds: they swing around what they are set to."""
    for n in range(seconds * each):
        for number, furnace in enumerate(FURNACES):
            yield {"furnace": furnace, "at": BEGIN + timedelta(seconds=n / each), "degrees": 800.0 + 5 * number + n % 7}


def wanted(seconds):
    """What the furnaces are set to: anew in every second."""
    for n in range(seconds):
        for furnace in FURNACES:
            yield {"furnace": furnace, "at": BEGIN + timedelta(seconds=n), "setpoint": 800.0 + n % 3}


def deviation(key, left, right):
    """How far the readings of a window are from what the furnace was set to in it, on average."""
    furnace, start, _ = key
    if left.empty or right.empty:
        return pd.DataFrame({"furnace": [], "start": [], "off": []})
    off = float(left.degrees.mean() - right.setpoint.mean())
    return pd.DataFrame({"furnace": [furnace], "start": [start], "off": [off]})


def dataflow(readings, setpoints, folder, lasts):
    """The dataflow over these rows, which arrive evenly within `lasts` seconds."""
    flow = Dataflow("setpoints")
    seen = flow.source(
        records(readings, "furnace string, at timestamp, degrees double"), load=constant(len(readings) / lasts, lasts),
        name="readings",
    )  # fmt: skip
    told = flow.source(
        records(setpoints, "furnace string, at timestamp, setpoint double"), load=constant(len(setpoints) / lasts, lasts),
        name="settings",
    )  # fmt: skip
    off = (
        seen.durable()
        .window(seconds=WINDOW, by="at", late=LATE)
        .join(told, "furnace", deviation, returns="furnace string, start timestamp, off double")
    )
    off.sink(parquet(Path(folder) / "off"), name="deviations")
    off.signal("off", "max(off)")
    extremes = (
        seen.durable()
        .window(seconds=WINDOW, by="at", late=LATE)
        .group_by("furnace")
        .aggregate({"least": "min(degrees)", "most": "max(degrees)"}, name="extremes")
    )
    extremes.sink(parquet(Path(folder) / "extremes"), name="swings")
    return flow


def windows(rows, until):
    """Rows by furnace and start of their window, of the windows that end by `until`."""
    found = defaultdict(list)
    for row in rows:
        number = (row["at"] - BEGIN) // timedelta(seconds=WINDOW)
        if BEGIN + timedelta(seconds=(number + 1) * WINDOW) <= until:
            found[row["furnace"], BEGIN + timedelta(seconds=number * WINDOW)].append(row)
    return found


def expected(readings, setpoints):
    """(deviations, extremes) by furnace and start of the window, by plain loops over all rows."""
    newest, told = (max(row["at"] for row in rows) - timedelta(seconds=LATE) for rows in (readings, setpoints))
    seen, sets = windows(readings, min(newest, told)), windows(setpoints, min(newest, told))

    def mean(rows, column):
        return sum(row[column] for row in rows) / len(rows)

    off = {place: mean(seen[place], "degrees") - mean(sets[place], "setpoint") for place in seen if place in sets}
    swings = {
        place: (min(row["degrees"] for row in rows), max(row["degrees"] for row in rows))
        for place, rows in windows(readings, newest).items()
    }
    return off, swings


def found(folder):
    """What the dataflow wrote, in the form of `expected`."""
    off = pq.read_table(Path(folder) / "off").to_pylist()
    swings = pq.read_table(Path(folder) / "extremes").to_pylist()
    return (
        {(row["furnace"], pd.Timestamp(row["start"], tz="UTC")): row["off"] for row in off},
        {(row["furnace"], pd.Timestamp(row["window_start"], tz="UTC")): (row["least"], row["most"]) for row in swings},
    )


def main(seconds=30, each=50):
    """Run it as long as its data lasts, and check it."""
    readings, setpoints, folder = (
        list(measured(seconds, each)),
        list(wanted(seconds)),
        tempfile.mkdtemp(prefix="setpoints-"),
    )
    flow = dataflow(readings, setpoints, folder, seconds)
    result = run(flow, policy=Threshold(), cloud=Local(host_type="small", max_hosts=2), target_latency="3s")
    if result.ending.status != "finished":
        raise SystemExit("stopped before its load had ended: results are not checked")
    if (results := found(folder)) != expected(readings, setpoints):
        raise SystemExit(f"the results in {folder} differ from those of plain loops")
    print(f"{len(results[0])} deviations, {len(results[1])} extremes: all equal those of plain loops over the records.")


if __name__ == "__main__":
    main()

"""Monitors machines: reads displays by OCR, computes OEE by machine and cycle, writes PDF reports, sends warnings; then
checks all results.

The dataflow of "Cost-efficient enactment of stream processing topologies" (Hochreiner et al., PeerJ CS 2017), Figure 1,
with its nine operators O1 to O9, executed. docs/how-to/manufacturing.md lists what is as in the paper and what is scaled.

elastream run examples/manufacturing.py
"""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import oee
import pandas as pd
import pyarrow.parquet as pq
from machine import CYCLE, IDEAL, TOO_HOT, Reading, draw, needs_tesseract, read, readings

from elastream import Dataflow, HostType, Local, run
from elastream.core.hosts import Billing
from elastream.dataflow.endpoints import parquet, records
from elastream.errors import EnvironmentProblem
from elastream.loads import steps
from elastream.policies import Btu
from elastream_papers.visp.manufacturing import SHARES_PER_CORE, TABLE_1, TABLE_2

TICK = 4.0
"""Seconds between two readings of a machine (the paper: 0.48), so that two cores can read all displays."""
MACHINES = steps(2, 5, 8, 5, 2, 2, every="24s")
"""Number of active machines: the paper's stepwise pattern, once up and down."""
REPORT_OF = 16
"""OEE values in a report (the paper: 300)."""

HOST = HostType("dockerhost", cores=0.5, slots=2, memory=1200, price=1, billing=Billing(30), start=12, stop=8)
"""An eighth of the paper's host of four cores; its billing time unit is 30 s, so that a run of minutes has several."""
SLACK = 5
"""Table 2's durations are for single items; in micro-batches an item waits for the next batch and passes with it."""

NOTICE = "kind string, machine string, number long, text string, detail string"
PART = "machine string, cycle long, figure string, value double, used string"
RESULT = "line string, machine string, cycle long, used string, " + ", ".join(f"{figure} double" for figure in oee.FIGURES)


# -- the operators -----------------------------------------------------------------------------------------------------


def parse(item):
    """O1: the figures on a display. Machine and cycle come with the image, like a file's name and time."""
    return {**read(item["image"]), "machine": item["machine"], "cycle": item["cycle"]}


def performance(item):
    """O3: Eq. (2)."""
    return part(item, "performance", oee.performance(item["produced"], IDEAL, CYCLE), "produced")


def availability(item):
    """O4: Eq. (3)."""
    used = ("total_time", "scheduled_downtime", "unscheduled_downtime")
    return part(item, "availability", oee.availability(*(item[field] for field in used)), *used)


def quality(item):
    """O5: Eq. (4)."""
    used = ("total_produced", "total_defective")
    return part(item, "quality", oee.quality(*(item[field] for field in used)), *used)


def part(item, figure, value, *used):
    """One of the three figures that O7 combines, with the inputs of its computation."""
    known = json.dumps({field: item[field] for field in used})
    return {"machine": item["machine"], "cycle": item["cycle"], "figure": figure, "value": value, "used": known}


def calculate_oee(key, rows, state):
    """O7: Eq. (5), when the three figures of a machine's cycle have arrived; until then they are kept in the state."""
    waiting = json.loads(state[0]) if state else {}
    for row in rows.itertuples():
        value = None if pd.isna(row.value) else float(row.value)
        waiting.setdefault(str(row.cycle), {})[row.figure] = (value, json.loads(row.used))
    found = []
    for cycle in sorted((cycle for cycle, parts in waiting.items() if len(parts) == 3), key=int):
        parts = waiting.pop(cycle)
        figures = {figure: value for figure, (value, _) in parts.items()}
        used = {field: value for _, known in parts.values() for field, value in known.items()}
        about = {"line": "line 1", "machine": key[0], "cycle": int(cycle), "used": json.dumps(used)}
        found.append({**about, **figures, "oee": oee.oee(**figures)})
    return table(found, RESULT), (json.dumps(waiting),)


def generate_report(folder, key, rows, state):
    """O9: a PDF per REPORT_OF values; the rest is kept in the state. A replayed batch writes the same files again."""
    waiting, number = (json.loads(state[0]), state[1]) if state else ([], 0)
    new = rows.sort_values(["cycle", "machine"]).to_dict("records")
    waiting += [{field: None if pd.isna(value) else value for field, value in row.items()} for row in new]
    found = []
    while len(waiting) >= REPORT_OF:
        part, waiting, number = waiting[:REPORT_OF], waiting[REPORT_OF:], number + 1
        path = Path(folder) / f"report-{number:03d}.pdf"
        oee.write_report(path, f"OEE of {key[0]}, report {number}", part)
        average = oee.written(oee.mean([row["oee"] for row in part]))
        found.append(notice("report", key[0], number, f"OEE {average} in {path}", part))
    return table(found, NOTICE), (json.dumps(waiting), number)


def filter_availability(key, rows, state):
    """O2: a warning for each new defect of a machine."""
    before = state[0] if state else "available"
    found = []
    for row in rows.sort_values("number").itertuples():
        if row.status == "defect" != before:
            found.append(notice("defect", key[0], row.number, "is defective"))
        before = row.status
    return table(found, NOTICE), (before,)


def monitor_temperature(key, rows, state):
    """O6: a warning whenever a machine has become too hot."""
    before = state[0] if state else False
    found = []
    for row in rows.sort_values("number").itertuples():
        if row.temperature > TOO_HOT and not before:
            found.append(notice("temperature", key[0], row.number, f"is at {row.temperature} degrees"))
        before = row.temperature > TOO_HOT
    return table(found, NOTICE), (bool(before),)


def inform(item):
    """O8: the text sent to a supervisor."""
    return {**item, "text": f"{item['kind']}: {item['machine']} {item['text']}"}


def notice(kind, machine, number, text, detail=()):
    """A message for O8, with the data behind it."""
    return {"kind": kind, "machine": machine, "number": int(number), "text": text, "detail": json.dumps(detail)}


def table(rows, schema):
    """`rows` as a frame with the columns of `schema`, also without rows."""
    return pd.DataFrame(rows, columns=[column.split()[0] for column in schema.split(", ")])


# -- the sensors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """The sensor data of all machines, in order. machines: their number over time. emitted: a reading per machine and
    tick.
    """

    machines: object
    emitted: Sequence[Reading]

    @classmethod
    def of(cls, machines) -> "Line":
        """Build the data of a load whose rate is the number of machines."""
        shown: dict[int, Iterator[Reading]] = {}
        ticks = [round(machines.rate(tick * TICK)) for tick in range(round(machines.seconds / TICK))]
        numbers = [number for count in ticks for number in range(1, count + 1)]
        return cls(machines, [next(shown.setdefault(number, readings(number))) for number in numbers])

    def displays(self):
        """Sensor S2: images."""
        return [{"machine": each.machine, "cycle": each.cycle, "image": draw(each)} for each in self.emitted]

    def sensed(self, sensor, name, value):
        """Records of `sensor`, several per reading, with `value(reading, time)` as the column `name`."""
        times, _ = TABLE_1[sensor]
        return [
            {"machine": each.machine, "number": (each.cycle - 1) * times + time, name: value(each, time)}
            for each in self.emitted
            for time in range(times)
        ]

    def availabilities(self):
        """Sensor S1."""
        return self.sensed("availability_sensor", "status", lambda each, _: each.status)

    def temperatures(self):
        """Sensor S3: values near those of the readings."""
        return self.sensed("temperature_sensor", "temperature", lambda each, n: round(each.temperature + n % 3 / 10, 1))

    def load(self, sensor):
        """The load of `sensor`."""
        times, _ = TABLE_1[sensor]
        return self.machines.scaled(times / TICK)


def dataflow(line: Line, results: Path, host: HostType = HOST, slack: float = SLACK) -> Dataflow:
    """Figure 1. Edges before the slow operators, O1 and O9, and those to the user are durable."""
    flow, needs = Dataflow("manufacturing"), partial(needs_of, host, slack)

    def sensor(name, rows, schema):
        load = line.load(name)
        assert load.count(load.seconds) == len(rows), "each record is emitted once"
        return flow.source(records(rows, schema), load=load, name=name, cores=0)

    displays = sensor("production_data", line.displays(), "machine string, cycle long, image binary")
    shown = ", ".join(f"{field} {KINDS[kind]}" for field, kind in Reading.__annotations__.items())
    parsed = displays.durable().map(parse, returns=shown, **needs("parse"))
    figures = [parsed.map(each, returns=PART, **needs(each.__name__)) for each in (performance, availability, quality)]
    together = figures[0].merge(*figures[1:]).key_by("machine")
    values = together.apply(calculate_oee, returns=RESULT, state="waiting string", **needs("oee"))
    written = partial(generate_report, str(results / "reports"))
    reports = values.durable().key_by("line")
    reports = reports.apply(written, returns=NOTICE, state="waiting string, reports long", **needs("report"))
    states = sensor("availability_sensor", line.availabilities(), "machine string, number long, status string")
    defects = states.key_by("machine").apply(
        filter_availability, returns=NOTICE, state="status string", **needs("filter_availability")
    )
    heat = sensor("temperature_sensor", line.temperatures(), "machine string, number long, temperature double")
    hot = heat.key_by("machine").apply(
        monitor_temperature, returns=NOTICE, state="hot boolean", **needs("monitor_temperature")
    )
    notices = defects.durable().merge(hot.durable(), reports.durable())
    notices.map(inform, returns=NOTICE, **needs("inform")).sink(parquet(results / "notices"), name="user")
    return flow


KINDS = {str: "string", int: "long", float: "double"}


def needs_of(host: HostType, slack: float, operator: str) -> Mapping[str, object]:
    """Name, service level and cores of an operator, from Table 2; its shares of a core are shares of a slot here."""
    row = TABLE_2[operator]
    return {
        "name": operator,
        "max_duration": slack * row.duration / 1000,
        "cores": row.shares / SHARES_PER_CORE * host.cores / host.slots,
    }


# -- the check ---------------------------------------------------------------------------------------------------------


def check(line: Line, results: Path) -> list[str]:
    """Compare the results with the machines' data; returns a summary, raises SystemExit for a difference."""
    notices = [row for file in sorted(results.glob("notices/*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]
    reports = sorted((row for row in notices if row["kind"] == "report"), key=lambda row: row["number"])
    rows = [row for report in reports for row in json.loads(report["detail"])]
    whole = len(line.emitted) // REPORT_OF * REPORT_OF
    drawn = {(each.machine, each.cycle): each for each in line.emitted}
    arrived = Counter((row["machine"], row["cycle"]) for row in rows)
    agree("readings in reports", (len(rows), max(arrived.values(), default=0)), (whole, 1))
    agree("readings of no machine", set(arrived) - set(drawn), set())
    right = total = 0
    for row in rows:
        used = json.loads(row["used"])
        agree(f"OEE of {row['machine']}, cycle {row['cycle']}", row["oee"], figure_of(used))
        truth = asdict(drawn[row["machine"], row["cycle"]])
        total += len(used)
        right += sum(truth[field] == value for field, value in used.items())
    for kind, made in (("defect", defects_of(line)), ("temperature", heat_of(line))):
        received = Counter((row["machine"], row["number"]) for row in notices if row["kind"] == kind)
        agree(f"warnings of {kind}", received, Counter(made))
    if right < LEAST_READ * total:
        raise SystemExit(f"OCR read only {right:,} of {total:,} figures as they were drawn")
    warnings = len(notices) - len(reports)
    return [
        f"{len(line.emitted)} displays, {whole} of them in {len(reports)} reports: each reading arrived exactly once.",
        f"OCR read {right:,} of {total:,} figures as they were drawn ({right / total:.1%}); each OEE follows from them.",
        f"{warnings} warnings of defects and heat: each one that a plain loop over the sensors' data gives.",
        f"The last report: {results / 'reports' / f'report-{len(reports):03d}.pdf'}",
    ]


LEAST_READ = 0.95
"""Least share of figures that OCR must read correctly."""


def agree(what, found, expected):
    """Raise SystemExit if `found` differs from `expected`."""
    if found != expected:
        raise SystemExit(f"{what}: {found} arrived, {expected} expected")


def figure_of(used):
    """The OEE computed from the figures read of a display."""
    return oee.oee(
        oee.availability(used["total_time"], used["scheduled_downtime"], used["unscheduled_downtime"]),
        oee.performance(used["produced"], IDEAL, CYCLE),
        oee.quality(used["total_produced"], used["total_defective"]),
    )


def defects_of(line: Line) -> list[tuple[str, int]]:
    """(machine, number) of each message that a machine has become defective."""
    return first_of(line.availabilities(), lambda row: row["status"] == "defect")


def heat_of(line: Line) -> list[tuple[str, int]]:
    """(machine, number) of each message that a machine has become too hot."""
    return first_of(line.temperatures(), lambda row: row["temperature"] > TOO_HOT)


def first_of(rows, bad):
    """(machine, number) of the rows that are bad while the machine's previous row was not."""
    before: dict[str, bool] = {}
    found = []
    for row in rows:
        if bad(row) and not before.get(row["machine"]):
            found.append((row["machine"], row["number"]))
        before[row["machine"]] = bad(row)
    return found


def carry_out(policy, machines=MACHINES, results=None, host=HOST, period="6s", hosts=(2, 4), slack=SLACK, **options):
    """Run the line under `policy`: its sensors' data, its results' folder, and what it came to.

    results: the folder, by default a new one. hosts: fewest and most. options: others of `run`. Not checked yet.
    """
    if missing := needs_tesseract():
        raise EnvironmentProblem(missing)
    results, line = results or Path(tempfile.mkdtemp(prefix="manufacturing-")), Line.of(machines)
    result = run(
        dataflow(line, results, host, slack),
        policy=policy,
        cloud=Local(host, min_hosts=hosts[0], max_hosts=hosts[1]),
        target_latency="7.5s",
        state_partitions=2,
        period=period,
        **options,
    )
    if result.ending.status != "finished":
        raise SystemExit("stopped before its load had ended: results are not checked")
    return line, results, result


def main(machines=MACHINES) -> None:
    """Run the line and check it."""
    line, results, _ = carry_out(Btu(scaling_threshold=5, period=6), machines)
    print(*check(line, results), sep="\n")


if __name__ == "__main__":
    main()

"""Linear Road: tolls by congestion, accidents, accounts and travel times for the vehicles on a city's expressways, under a
load that quadruples; then checks all results.

The dataflow of the thesis "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare, 2016), Figure 4.5,
on vehicles that keep the rules of the Linear Road benchmark. docs/explanation/linear-road.md says what is as in either.

elastream run examples/linear_road.py
"""

import json
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
from congestion import SLOWEST, WINDOW, History, expected_speed, seconds_for
from disturbed import Disturbed, Once, half_of_its_cores
from road_check import check, relative_throughput, story
from traffic import BALANCE, BEGINS, EAST, EXIT, MILE, MINUTE, PERIOD, REPORT, TRAVEL, WEATHER, Road, parsed, send

from elastream import Alternate, Dataflow, HostType, run
from elastream.core.action import MoveTask, SetParallelism
from elastream.core.hosts import Billing
from elastream.core.plant import Policy
from elastream.core.wording import clock
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import constant, dues
from elastream.policies.value_cost.policy import Centralised
from elastream.recording.directory import RunDirectory
from elastream_papers.thesis.reactive.linear_road import CONGESTION, TRAVEL_TIMES, LinearRoadAssumptions

STATUS = 1
"""Kind of the records that say where there are accidents; the others are of the types of lines."""
TOLL, ACCIDENT, ANSWER, CHARGE = 0, 1, 2, 3
"""Kinds of what P4 emits: the toll of a segment, an accident ahead, the answer to a query, a toll charged at an exit."""
BOOKS = 8
"""In which accounts are kept: by the number of the vehicle."""
AHEAD = 3
"""Miles for which a vehicle is told what to expect."""
STOPPED, NEAR = 4, 4
"""Equal reports after which a vehicle is stopped, segments behind an accident in which vehicles hear of it (benchmark)."""

PARSED = ", ".join(f"{name} int" for name in (
    "kind", "time", "vid", "speed", "xway", "lane", "dir", "seg", "pos", "qid", "s_init", "s_end", "dow", "tod",
))  # fmt: skip
ESTIMATED = (
    "kind int, time int, vid int, book int, xway int, lane int, dir int, seg int, qid int, dow int, tod int, cars int, "
    "speeds string, method string, accidents string"
)
ACCOUNTED = "kind int, time int, vid int, seg int, speed double, toll int, accident int, charged int, balance long, qid int"
NOTICE = "kind int, time int, vid int, seg int, speed double, toll int, accident int"
ACCOUNT = "time int, vid int, qid int, charged int, balance long"
TRAVELLED = "kind int, time int, vid int, xway int, dir int, seg int, qid int, seconds double, method string, by string"


# -- the operators -----------------------------------------------------------------------------------------------------


def weather(line):
    """P0: a weather line, for both carriageways of its expressway."""
    if not line.startswith(f"{WEATHER},"):
        return []
    item = renamed(parsed(line))
    return [{**item, "dir": way} for way in (0, 1)]


def parse(line):
    """P1: a report or query."""
    return [] if line.startswith(f"{WEATHER},") else [renamed(parsed(line))]


def renamed(item):
    """The fields of a line as columns."""
    return {column: item["type" if column == "kind" else column] for column in columns(PARSED)}


def estimate(method, key, rows, state):
    """P2: the congestion that each report or query meets. key: a carriageway, an expressway and a direction.

    A report waits for the weather of its minute. Its alternates share one state: the reports of the last minutes.
    """
    road = unpacked(state) or {"minute": -1, "now": [], "past": NOTHING, "cars": {}, "percent": {}, "waiting": []}
    for item in in_order(rows):
        if item["kind"] == WEATHER:
            road["percent"][item["time"] // MINUTE] = item["speed"]
        else:
            road["waiting"].append(item)
    found = []
    while road["waiting"] and (minute := road["waiting"][0]["time"] // MINUTE) in road["percent"]:
        if minute > road["minute"]:
            begin_minute(road, minute)
        found += met(method, road, road["waiting"].pop(0))
    return table(found, ESTIMATED), packed(road)


NOTHING = np.zeros((4, 0), int)
"""Of reports: seconds, feet, miles an hour, and to how many percent the weather let traffic go."""


def begin_minute(road, minute):
    """What came in the last minute becomes the past: what vehicles are told in a minute is what was known as it began."""
    before, road["minute"] = road["minute"], minute
    seen = {}
    for _, pos, _, _, vid in road["now"]:
        seen.setdefault(pos // MILE, set()).add(vid)
    road["cars"] = {seg: len(vids) for seg, vids in seen.items()} if before == minute - 1 else {}
    came = np.array([each[:4] for each in road["now"]], int).reshape(-1, 4).T
    past = np.concatenate([road["past"], came], axis=1)
    road["past"], road["now"] = past[:, past[0] >= (minute - WINDOW) * MINUTE], []
    road["percent"] = {each: percent for each, percent in road["percent"].items() if each >= minute}


def met(method, road, item):
    """What `method` says for one report or query: no record for every second report of a vehicle under `sparse`."""
    percent = road["percent"][road["minute"]]
    speed = partial(expected_speed, method, road["past"], item["time"], percent=percent)
    step = 1 if item["dir"] == EAST else -1
    if item["kind"] == REPORT:
        road["now"].append((item["time"], item["pos"], item["speed"], percent, item["vid"]))
        if method == "sparse" and item["time"] // PERIOD % 2:
            return []
        speeds = [speed(pos=item["pos"] + miles * step * MILE) for miles in range(AHEAD)]
    elif item["kind"] == TRAVEL:
        speeds = [speed(pos=(seg + 0.5) * MILE) for seg in range(item["s_init"], item["s_end"] + step, step)]
    else:
        speeds = []
    if item["kind"] != TRAVEL:
        item = {**item, "dow": 1, "tod": BEGINS + item["time"] // MINUTE}
    known = {"cars": road["cars"].get(item["seg"], 0), "speeds": json.dumps(speeds), "method": method}
    return [{**item, **known, "book": item["vid"] % BOOKS, "accidents": ""}]


def detect(key, rows, state):
    """P3: as a minute of a carriageway ends, the segments with accidents, for each book of accounts."""
    road = unpacked(state) or {"minute": None, "last": {}, "stopped": {}}
    found = []
    for item in in_order(rows):
        if item["kind"] != REPORT:
            continue
        minute = item["time"] // MINUTE
        if road["minute"] is None:
            road["minute"] = minute - 1
        while road["minute"] < minute:
            found += statuses(key, road)
            road["minute"] += 1
        follow(road, item)
    return table(found, ESTIMATED), packed(road)


def follow(road, item):
    """A vehicle is stopped after four reports of one place, until one of another."""
    vid, place = item["vid"], (item["lane"], item["pos"])
    before, times = road["last"].get(vid, (None, 0))
    if before == place:
        times += 1
    else:
        if vid in road["stopped"].get(before, ()):
            road["stopped"][before].remove(vid)
            if not road["stopped"][before]:
                del road["stopped"][before]
        times = 1
    road["last"][vid] = (place, times)
    if times == STOPPED:
        road["stopped"].setdefault(place, set()).add(vid)
    if item["lane"] == EXIT:
        del road["last"][vid]


def statuses(key, road):
    """Where two vehicles or more are stopped in one place as the minute ends, once for each book. `vid`: of no vehicle, but
    of the carriageway.
    """
    segs = sorted({pos // MILE for (_, pos), vids in road["stopped"].items() if len(vids) > 1})
    time = road["minute"] * MINUTE
    about = dict.fromkeys(columns(ESTIMATED), -1) | {"kind": STATUS, "time": time, "vid": -1 - 2 * key[0] - key[1]}
    about |= {"xway": key[0], "dir": key[1], "dow": 1, "tod": BEGINS + time // MINUTE}
    about |= {"speeds": "[]", "method": "", "accidents": json.dumps(segs)}
    return [{**about, "book": book} for book in range(BOOKS)]


def account(key, rows, state):
    """P4: the toll of each segment that a vehicle enters, and its account. key: a book.

    A report waits until it is known which accidents there were as the minute before it ended.
    """
    book = unpacked(state) or {"vehicles": {}, "accidents": {}, "waiting": {}}
    for item in in_order(rows):
        way = (item["xway"], item["dir"])
        if item["kind"] == STATUS:
            book["accidents"][*way, item["time"] // MINUTE] = json.loads(item["accidents"])
        else:
            book["waiting"].setdefault(way, []).append(item)
    found = []
    for way, waiting in book["waiting"].items():
        while waiting and (*way, waiting[0]["time"] // MINUTE - 1) in book["accidents"]:
            item = waiting.pop(0)
            minute = item["time"] // MINUTE - 1
            found += entered(book["vehicles"], item, book["accidents"][*way, minute])
            for old in [each for each in book["accidents"] if each[:2] == way and each[2] < minute]:
                del book["accidents"][old]
    return table(found, ACCOUNTED), packed(book)


def entered(vehicles, item, accidents):
    """What a report or query means for a vehicle: it pays for a segment as it comes to another, not as it leaves there."""
    vid, seg = item["vid"], item["seg"]
    before, owed, balance = vehicles.get(vid, (-1, 0, 0))
    about = {"time": item["time"], "vid": vid, "seg": seg, "speed": 0.0, "toll": 0, "accident": -1, "charged": 0}
    if item["kind"] == BALANCE:
        return [{**about, "kind": ANSWER, "balance": balance, "qid": item["qid"]}]
    if item["kind"] != REPORT or (seg == before and item["lane"] != EXIT):
        return []
    charged = owed if seg != before else 0
    balance += charged
    about |= {"charged": charged, "balance": balance, "qid": -1}
    if item["lane"] == EXIT:
        vehicles[vid] = (-1, 0, balance)
        return [{**about, "kind": CHARGE}] if charged else []
    speed = json.loads(item["speeds"])[0]
    near = [each for each in accidents if 0 <= (each - seg if item["dir"] == EAST else seg - each) <= NEAR]
    if near:
        vehicles[vid] = (seg, 0, balance)
        return [{**about, "kind": ACCIDENT, "speed": speed, "accident": min(near, key=lambda each: abs(each - seg))}]
    toll = toll_of(speed, item["cars"])
    vehicles[vid] = (seg, toll, balance)
    return [{**about, "kind": TOLL, "speed": speed, "toll": toll}]


def toll_of(speed, cars):
    """The benchmark's toll of a segment."""
    return 2 * (cars - 50) ** 2 if speed < 40 and cars > 50 else 0


def assess(item):
    """P5: what a vehicle is told as it enters a segment."""
    return [{column: item[column] for column in columns(NOTICE)}] if item["kind"] in (TOLL, ACCIDENT) else []


def balance(item):
    """P6: its account, as it is charged, and where it asked."""
    return [{column: item[column] for column in columns(ACCOUNT)}] if item["charged"] or item["kind"] == ANSWER else []


def travel(method, history, item):
    """P7: the time for the next segments, for the display of each vehicle; that of a trip; and behind an accident."""
    if item["kind"] == STATUS:
        if item["book"]:
            return []
        wanted = [(seg, [SLOWEST]) for seg in json.loads(item["accidents"])]
    elif item["kind"] == BALANCE:
        return []
    else:
        wanted = [(item["seg"], json.loads(item["speeds"]))]
    about = {column: item[column] for column in ("kind", "time", "vid", "xway", "dir", "qid")}
    about |= {"method": item["method"], "by": method}
    return [
        {**about, "seg": seg, "seconds": seconds_for(method, history, speeds, item["tod"], item["dow"])}
        for seg, speeds in wanted
    ]


def in_order(rows):
    """The records of a key as dicts, in the order in which they were sent."""
    return rows.sort_values(["time", "vid", "kind"], kind="stable").to_dict("records")


def columns(schema):
    """Names of the columns of a schema."""
    return [column.split()[0] for column in schema.split(", ")]


def table(rows, schema):
    """`rows` as a frame with the columns of `schema`, also without rows."""
    return pd.DataFrame(rows, columns=columns(schema))


def packed(value):
    """A state that is one field."""
    return (pickle.dumps(value),)


def unpacked(state):
    """What is in it; None of a key that has none."""
    return pickle.loads(state[0]) if state else None


# -- the load ----------------------------------------------------------------------------------------------------------

FASTER = 6
"""Seconds of the road that pass in one: a quarter of an hour in two and a half minutes."""
LOW = 100.0
"""Lines a second before and after the step."""
STEP = 4
LASTS = (50, 80, 30)
"""Seconds before, in and after the step."""


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs. load: of lines. step: its seconds with more; in their middle a host loses half of its
    cores. faster: seconds of the road that pass in one. road: where vehicles drive.
    """

    load: object
    step: tuple[float, float] = (0.0, 0.0)
    faster: int = FASTER
    road: Road = field(default_factory=Road)
    seed: int = 7

    @classmethod
    def of(cls, low: float = LOW, lasts: Sequence[int] = LASTS) -> "Plan":
        """A load that quadruples for some time."""
        before, step, after = lasts
        load = constant(low, before).then(constant(STEP * low, step)).then(constant(low, after))
        return cls(load, (before, before + step))

    @cached_property
    def lines(self) -> list[str]:
        """What is sent, in order: as many lines in a second of the road as are due in it."""
        seconds = round(self.load.seconds * self.faster)
        counted = [self.load.count(second / self.faster) for second in range(seconds + 1)]
        return send(np.diff(counted).tolist(), self.road, self.seed)


# -- the dataflow ------------------------------------------------------------------------------------------------------

UNIT = 1e-3
"""Core-seconds that stand for a unit of Figure 4.5 where this program is simulated, and until alternates are measured."""
GIVEN = LinearRoadAssumptions(unit=UNIT)


def dataflow(given: Plan, results: Path) -> Dataflow:
    """Figure 4.5."""
    flow = Dataflow("linear_road")
    rows = [{"line": line} for line in given.lines]
    lines = flow.source(records(rows, "line string"), load=given.load, name="lines", cores=0)
    stations = lines.flat_map(one("weather", weather, 0.01), returns=PARSED, name="weather", cores=0.1)
    reports = lines.flat_map(one("parse", parse), returns=PARSED, name="parse", cores=0.1)
    congestion = (
        stations.durable()
        .merge(reports.durable())
        .key_by("xway", "dir")
        .apply(several(CONGESTION, estimate), returns=ESTIMATED, state="road binary", name="congestion", cores=0.25)
    )
    accidents = (
        reports.durable()
        .key_by("xway", "dir")
        .apply(one("accidents", detect, 0.02), returns=ESTIMATED, state="road binary", name="accidents", cores=0.1)
    )
    tolls = (
        congestion.durable()
        .merge(accidents.durable())
        .key_by("book")
        .apply(one("tolls", account, 0.5), returns=ACCOUNTED, state="book binary", name="tolls", cores=0.1)
    )
    tolls.flat_map(one("assessments", assess), returns=NOTICE, name="assessments", cores=0.1).sink(
        parquet(results / "notices"), name="notices"
    )
    tolls.flat_map(one("balances", balance, 0.2), returns=ACCOUNT, name="balances", cores=0.1).sink(
        parquet(results / "accounts"), name="accounts"
    )
    (
        congestion.durable()
        .merge(accidents.durable())
        .flat_map(several(TRAVEL_TIMES, travel, History.of()), returns=TRAVELLED, name="travel_times", cores=0.1)
        .sink(parquet(results / "answers"), name="answers")
    )
    return flow


def one(name, function, selectivity=1.0):
    """The one alternate of an operator, with what the simulator needs of it."""
    return [Alternate(name, function, cost=getattr(GIVEN, name) * UNIT, selectivity=selectivity)]


def several(known, function, *more):
    """Alternates by value, cost and selectivity, each a way of `function`."""
    return [
        Alternate(name, partial(function, name, *more), value=value, cost=units * UNIT, selectivity=selectivity)
        for name, (value, units, selectivity) in known.items()
    ]


# -- the run -----------------------------------------------------------------------------------------------------------

HOST = HostType("gantry", cores=0.4, slots=1, memory=1000, price=1, billing=Billing(30), start=10, stop=3)
HOSTS = (2, 4)
"""The fewest and the most. Four of these use 1.6 cores of a machine of two: the driver keeps its share."""
WORTH = (2 * HOST.price * 3600 / HOST.billing.unit, 1 * HOST.price * 3600 / HOST.billing.unit)
"""Money an hour at which the highest and the lowest value break even: what two hosts cost, and one. So value is given up
before a third host is leased, where that saves enough of one."""
LIMIT = 5.0
"""Seconds within which the benchmark wants notices and balances."""
BATCH = 4.0
"""Seconds from one batch of a query to the next: at 1 s, having batches alone kept both hosts that are always there busy.
A row passes three of them. An estimate, not measured."""
INSTANT = 10.0
"""Seconds over which the relative throughput is taken."""


def carry_out(given: Plan, results: Path, show: bool = True, policy: Policy | None = None, batch: float = BATCH):
    """Run it on Spark, by default under `ce`, and check what it gave."""
    graph = dataflow(given, results).graph
    cloud = Disturbed(HOST, min_hosts=HOSTS[0], max_hosts=HOSTS[1])
    neighbour = Once(cloud, sum(given.step) / 2, half_of_its_cores)
    result = run(
        graph,
        policy=policy or Centralised(break_even_best=WORTH[0], break_even_worst=WORTH[1]),
        cloud=cloud,
        target_latency=LIMIT,
        batch=batch,
        period="5s",
        state_partitions=4,
        observers=(neighbour,),
        show=show,
    )
    if result.ending.status != "finished":
        raise SystemExit("stopped before its load had ended: results are not checked")
    due = dues(given.load, range(len(given.lines)))
    checked = check(given.lines, due, History.of(), results, RunDirectory(result.directory), graph)
    return result, checked, story(result.recording, checked, given.step, neighbour.host, neighbour.since)


def page(result, checked, told) -> Iterator[str]:
    """What was decided, how soon answers came, and what was checked."""
    for decision in result.recording.decisions:
        for outcome in decision.outcomes:
            if not isinstance(outcome.action, SetParallelism | MoveTask):
                yield f"{clock(decision.time)}  {outcome.action.describe()}: {outcome.action.why}"
    for name, (waits, _) in checked.responses.items():
        if len(waits):
            yield f"{name}: {np.mean(waits <= LIMIT):.1%} within {LIMIT:g} s of the line (median {np.median(waits):.1f} s)"
    last = max(due.max() for _, due in checked.responses.values() if due.size)
    found = relative_throughput(checked.responses, np.arange(0, last + INSTANT, INSTANT))
    yield f"relative throughput of the step {told.throughput:.2f}; by {INSTANT:g} s {found.min():.2f} at least"
    yield f"after the step: alternates switched after {told.switched:.0f} s, a host leased after {told.leased:.0f} s"
    yield f"half of a host lost: noticed after {told.noticed:.0f} s, answered after {told.answered:.0f} s"
    for operator, spoke in checked.spoke.items():
        yield f"{operator}: {', '.join(f'{name} {count:,}' for name, count in spoke.most_common())}"
    yield (
        f"All {checked.notices:,} notices ({checked.tolls:,} of tolls, {checked.accidents:,} of accidents), "
        f"{checked.accounts:,} balances and {checked.answers:,} travel times"
    )
    yield "are those of plain loops over the same lines, under the alternates that the batches were recorded under."


def main(low: float = LOW, lasts: Sequence[int] = LASTS) -> None:
    """Run it and check it."""
    given, results = Plan.of(low, lasts), Path(tempfile.mkdtemp(prefix="linear-road-"))
    result, checked, told = carry_out(given, results)
    if checked.wrong:
        raise SystemExit("\n".join(checked.wrong[:10]))
    print(*page(result, checked, told), sep="\n")


if __name__ == "__main__":
    main()

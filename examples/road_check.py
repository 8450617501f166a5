"""What examples/linear_road.py must come to: the benchmark's rules in plain loops over all lines; and how soon it came.

It shares the models (`congestion.py`) with the operators, and nothing else. Which alternate spoke is not its own to say:
the batches were recorded under it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow.parquet as pq
from congestion import SLOWEST, WINDOW, History, expected_speed, seconds_for
from traffic import BALANCE, BEGINS, EXIT, MILE, MINUTE, PERIOD, REPORT, TRAVEL, WEATHER, parsed

from elastream.core.action import DrainHost, LeaseHost, SwitchAlternate
from elastream.core.metrics import Metric
from elastream.dataflow.stages import lay_out
from elastream.recording.directory import RunDirectory
from elastream.recording.recorder import Recording
from elastream.spark.worker.composition import CompositionCodec, code_in_offsets, latest_batch, offsets_of

Said = Mapping[tuple[int, int, int], str]
"""An alternate by (type, vehicle, second) of the line that it spoke of."""


@dataclass(frozen=True)
class Expected:
    """How often each row must be there: notices (P5), accounts (P6) and travel times (P7)."""

    notices: Counter[tuple]
    accounts: Counter[tuple]
    answers: Counter[tuple]


class Day:
    """The lines, put by carriageway (an expressway and a direction) and minute."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.items = [parsed(line) for line in lines]
        self.percent: dict[tuple[int, int], int] = {}
        self.reports: dict[tuple[int, int], dict[int, list[dict[str, int]]]] = defaultdict(lambda: defaultdict(list))
        for item in self.items:
            if item["type"] == WEATHER:
                self.percent[item["xway"], item["time"] // MINUTE] = item["speed"]
            elif item["type"] == REPORT:
                self.reports[item["xway"], item["dir"]][item["time"] // MINUTE].append(item)
        self._stops = {way: stops(self.reports[way]) for way in self.reports}
        self._past: dict[tuple[tuple[int, int], int], np.ndarray] = {}

    def past(self, way: tuple[int, int], minute: int) -> np.ndarray:
        """What models know of a carriageway as a minute begins."""
        if (way, minute) not in self._past:
            rows = [
                (item["time"], item["pos"], item["speed"], self.percent[way[0], each])
                for each in range(minute - WINDOW, minute)
                for item in self.reports[way].get(each, ())
            ]
            self._past[way, minute] = np.array(rows, int).reshape(-1, 4).T
        return self._past[way, minute]

    def cars(self, way: tuple[int, int], seg: int, minute: int) -> int:
        """Vehicles that reported from a segment in the minute before."""
        return len({item["vid"] for item in self.reports[way].get(minute - 1, ()) if item["seg"] == seg})

    def accidents(self, way: tuple[int, int], minute: int) -> set[int]:
        """Segments where two vehicles stood in one place as a minute began."""
        begins = minute * MINUTE
        standing = Counter(place for place, since, until in self._stops[way] if since < begins <= until)
        return {pos // MILE for (_, pos), vehicles in standing.items() if vehicles >= 2}


def stops(reports: Mapping[int, Sequence[Mapping[str, int]]]) -> list[tuple[tuple[int, int], int, float]]:
    """(place, since, until) of each vehicle that stopped: from its fourth report of a place to its first of another."""
    trips = defaultdict(list)
    for minute in sorted(reports):
        for item in reports[minute]:
            trips[item["vid"]].append((item["time"], (item["lane"], item["pos"])))
    found = []
    for trip in trips.values():
        first = 0
        for number in range(1, len(trip) + 1):
            if number < len(trip) and trip[number][1] == trip[first][1]:
                continue
            if number - first >= 4:
                found.append((trip[first][1], trip[first + 3][0], trip[number][0] if number < len(trip) else float("inf")))
            first = number
    return found


def expect(lines: Sequence[str], history: History, estimated: Said, travelled: Said) -> Expected:  # noqa: C901
    """All rows. estimated: alternates of P2, of the lines that it emitted a record of; travelled: of P7."""
    day = Day(lines)
    notices, accounts, answers = Counter[tuple](), Counter[tuple](), Counter[tuple]()
    segment: dict[int, int] = {}
    owed: dict[int, int] = {}
    paid: dict[int, int] = defaultdict(int)
    cars: dict[tuple, int] = {}
    for item in day.items:
        kind, vid, time, seg = item["type"], item["vid"], item["time"], item["seg"]
        said = estimated.get((kind, vid, time))
        if said is None:
            continue
        way, minute, exits = (item["xway"], item["dir"]), time // MINUTE, item["lane"] == EXIT
        if kind == BALANCE:
            accounts[time, vid, item["qid"], 0, paid[vid]] += 1
            continue
        past, percent = day.past(way, minute), day.percent[way[0], minute]
        if kind == TRAVEL:
            towards = 1 if item["s_end"] >= item["s_init"] else -1
            trip = range(item["s_init"], item["s_end"] + towards, towards)
            speeds = [expected_speed(said, past, time, (each + 0.5) * MILE, percent) for each in trip]
            when = (item["tod"], item["dow"])
        else:
            miles = [each * MILE * (1 - 2 * way[1]) for each in range(3)]
            speeds = [expected_speed(said, past, time, item["pos"] + each, percent) for each in miles]
            when = (BEGINS + minute, 1)
        by = travelled.get((kind, vid, time), "none")
        answers[kind, time, vid, *way, seg, item["qid"], seconds_for(by, history, speeds, *when), said, by] += 1
        if kind != REPORT or (segment.get(vid) == seg and not exits):
            continue
        if segment.get(vid) != seg and owed.get(vid):
            paid[vid] += owed[vid]
            accounts[time, vid, -1, owed[vid], paid[vid]] += 1
        segment[vid], owed[vid] = (-1, 0) if exits else (seg, 0)
        if exits:
            continue
        ahead = [abs(each - seg) for each in day.accidents(way, minute) if 0 <= (each - seg) * (1 - 2 * way[1]) <= 4]
        if ahead:
            notices[1, time, vid, seg, speeds[0], 0, seg + min(ahead) * (1 - 2 * way[1])] += 1
            continue
        place = (way, seg, minute)
        number = cars[place] if place in cars else cars.setdefault(place, day.cars(way, seg, minute))
        if speeds[0] < 40 and number > 50:
            owed[vid] = 2 * (number - 50) ** 2
        notices[0, time, vid, seg, speeds[0], owed[vid], -1] += 1
    for way, minutes in day.reports.items():
        for minute in range(min(minutes), max(minutes) + 1):  # a minute's accidents are told as the next begins
            ended = (minute - 1) * MINUTE
            for seg in day.accidents(way, minute):
                station = -1 - 2 * way[0] - way[1]
                by = travelled.get((1, station, ended), "none")
                seconds = seconds_for(by, history, [SLOWEST], BEGINS + minute - 1, 1)
                answers[1, ended, station, *way, seg, -1, seconds, "", by] += 1
    return Expected(notices, accounts, answers)


def differences(what: str, came: Counter[tuple], expected: Counter[tuple]) -> list[str]:
    """A sentence for each row that is not there as often as it must be."""
    wrong = (came - expected) | (expected - came)
    return [f"{what}: {row} came {came[row]} times, expected {expected[row]} times" for row in sorted(wrong, key=str)]


# -- what came ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Came:
    """The rows of a sink or edge, with the batch that wrote each and when it was there, epoch seconds."""

    rows: Sequence[Mapping]
    batches: Sequence[int]
    times: Sequence[float]

    @classmethod
    def of(cls, folder: Path) -> "Came":
        """All that is in `folder`, in the order of the batches."""
        found = [
            (row, batch, time) for batch, file, time in files(folder) for row in pq.ParquetFile(file).read().to_pylist()
        ]
        rows, batches, times = zip(*found, strict=True) if found else ((), (), ())
        return cls(rows, batches, times)

    def tuples(self) -> Counter[tuple]:
        """How often each row is there."""
        return Counter(tuple(row.values()) for row in self.rows)


def files(folder: Path) -> Iterator[tuple[int, Path, float]]:
    """(batch, file, time): by the folders of a change log or edge, else by the log of Spark's own sink."""
    logged = sorted((int(each.name.split(".")[0]), each) for each in (folder / "_spark_metadata").glob("[0-9]*"))
    seen: set[Path] = set()
    for batch, entry in logged:
        for line in entry.read_text().splitlines()[1:]:
            file = Path(unquote(urlparse(json.loads(line)["path"]).path))
            if file not in seen:  # every tenth entry holds those before, too
                seen.add(file)
                yield batch, file, entry.stat().st_mtime
    for place in sorted(folder.glob("batch=*"), key=lambda each: int(each.name.removeprefix("batch="))):
        for file in sorted(place.glob("[!._]*.parquet")):
            yield int(place.name.removeprefix("batch=")), file, file.stat().st_mtime


def recorded(run: RunDirectory, graph, operator: str, batches: Sequence[int]) -> dict[int, str]:
    """The alternate of `operator` that each batch of its query was recorded under."""
    segment = next(each for each in lay_out(graph).segments if operator in each.operators)
    codec, found = CompositionCodec(graph), {}
    for batch in set(batches):
        code = code_in_offsets(run.checkpoint(segment.name), batch) or 0
        found[batch] = codec.decode(code).alternates[operator]
    return found


@dataclass(frozen=True)
class Checked:
    """What was compared. wrong: a sentence each, none where all agrees. spoke: by operator, how many records its alternates
    emitted, or answered. responses: by output, seconds from a line being due to each row that follows from it, and when in
    the load the line was due, shape (2, n). began: when that was, epoch seconds.
    """

    notices: int
    accounts: int
    answers: int
    tolls: int
    accidents: int
    spoke: Mapping[str, Counter[str]]
    responses: Mapping[str, np.ndarray]
    began: float
    wrong: tuple[str, ...]


def check(lines: Sequence[str], due: np.ndarray, history: History, results: Path, run: RunDirectory, graph) -> Checked:
    """Compare what reached the sinks with what must, under the alternates that the batches were recorded under.

    due: seconds after the start at which each line was due.
    """
    came = {name: Came.of(results / name) for name in ("notices", "accounts", "answers")}
    edge = Came.of(run.edge("congestion", "tolls"))
    began = offsets_of(run.checkpoint("lines"), latest_batch(run.checkpoint("lines")))[0]["started"]
    ran = recorded(run, graph, "congestion", edge.batches)
    answered = recorded(run, graph, "travel_times", came["answers"].batches)
    estimated = {(row["kind"], row["vid"], row["time"]): row["method"] for row in edge.rows}
    travelled = {(row["kind"], row["vid"], row["time"]): row["by"] for row in came["answers"].rows}
    wrong = [
        f"{row['method']} estimated for vehicle {row['vid']} in batch {batch}, which ran {ran[batch]}"
        for row, batch in zip(edge.rows, edge.batches, strict=True)
        if row["method"] != ran[batch]
    ]
    wrong += [
        f"{row['by']} answered vehicle {row['vid']} in batch {batch}, which ran {answered[batch]}"
        for row, batch in zip(came["answers"].rows, came["answers"].batches, strict=True)
        if row["by"] != answered[batch]
    ]
    wrong += left_out(lines, edge, ran)
    expected = expect(lines, history, estimated, travelled)
    for name in came:
        wrong += differences(name, came[name].tuples(), getattr(expected, name))
    moment = {identity(line): float(when) + began for line, when in zip(map(parsed, lines), due, strict=True)}
    responses = {name: waited(name, each, moment) for name, each in came.items()}
    return Checked(
        *(len(came[name].rows) for name in ("notices", "accounts", "answers")),
        tolls=sum(row["toll"] > 0 for row in came["notices"].rows),
        accidents=sum(row["accident"] >= 0 for row in came["notices"].rows),
        spoke={"congestion": Counter(estimated.values()), "travel_times": Counter(travelled.values())},
        responses={name: each - [[0], [began]] for name, each in responses.items()},
        began=began,
        wrong=tuple(wrong),
    )


def identity(item: Mapping[str, int]) -> tuple[int, int, int]:
    """What no two reports or queries share."""
    return item["type"], item["vid"], item["time"]


def left_out(lines: Sequence[str], edge: Came, ran: Mapping[int, str]) -> list[str]:
    """Lines that P2 said nothing of although it should have, or said something of although it should not.

    `sparse` leaves out every second report of a vehicle. The records of a carriageway keep their order, so that a line
    that was left out was in a batch between those of the lines before and behind it.
    """
    emitted = {(row["kind"], row["vid"], row["time"]): batch for row, batch in zip(edge.rows, edge.batches, strict=True)}
    wrong = [f"{key} was estimated twice" for key, times in Counter(
        (row["kind"], row["vid"], row["time"]) for row in edge.rows
    ).items() if times > 1]  # fmt: skip
    by_way: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for item in map(parsed, lines):
        if item["type"] != WEATHER:
            by_way[item["xway"], item["dir"]].append(identity(item))
    last = max(ran, default=-1)
    for keys in by_way.values():
        batches = [emitted.get(key, -1) for key in keys]
        behind = last
        until = []
        for batch in reversed(batches):
            until.append(behind)
            behind = batch if batch >= 0 else behind
        before = 0
        for key, batch, most in zip(keys, batches, reversed(until), strict=True):
            second = key[0] == REPORT and key[2] // PERIOD % 2 == 1
            if batch >= 0:
                before = batch
                if second and ran[batch] == "sparse":
                    wrong.append(f"{key} was estimated in batch {batch}, which left every second report out")
            elif not (second and any(ran.get(each, "sparse") == "sparse" for each in range(before, most + 1))):
                wrong.append(f"nothing was estimated for {key}")
    return wrong


def waited(name: str, came: Came, moment: Mapping[tuple[int, int, int], float]) -> np.ndarray:
    """Of each row that follows from a line: seconds from when that was due, and when, epoch seconds; shape (2, n)."""
    found = []
    for row, time in zip(came.rows, came.times, strict=True):
        kind = row["kind"] if name == "answers" else REPORT if row.get("qid", -1) < 0 else BALANCE
        if row["vid"] >= 0:
            due = moment[kind, row["vid"], row["time"]]
            found.append((time - due, due))
    return np.array(found).reshape(-1, 2).T


def relative_throughput(responses: Mapping[str, np.ndarray], edges: Sequence[float]) -> np.ndarray:
    """Between two `edges` each, seconds of the load: what left the outputs over what was due there by the lines that came.

    The mean of the outputs (thesis, Def. 5), each at most 1: what waited before counts for no more than what came then.
    """
    found = []
    for waits, due in responses.values():
        came, left = np.histogram(due, edges)[0], np.histogram(due + waits, edges)[0]
        found.append(np.where(came > 0, np.minimum(left, came) / np.maximum(came, 1), 1.0))
    return np.mean(found, axis=0)


# -- what was decided --------------------------------------------------------------------------------------------------

NOTICED = 0.6
"""Part of its type's speed below which a host that lost half of its cores is seen to have done so."""


@dataclass(frozen=True)
class Story:
    """How a step of the load and the loss of half of a host were answered: seconds after either, NaN for what never came.

    switched, leased: the first alternate switched after the step, and the first host leased. noticed: the first observation
    with the host's speed as it had become. answered: the first switch, lease or drain after that. throughput: of the step.
    query_runs: one for each query where none was started again.
    """

    switched: float
    leased: float
    noticed: float
    answered: float
    throughput: float
    query_runs: int


def story(recording: Recording, checked: Checked, step: tuple[float, float], host: str, lost: float) -> Story:
    """What happened in a run. step: seconds of the load. host, lost: which host lost half, and when, seconds of the run."""
    zero = (
        checked.began - recording.header.started + float(recording.times[0])
    )  # the recording begins once the hosts are up

    def first(kinds, after):
        done = (
            decision.time - after
            for decision in recording.decisions
            if any(isinstance(each.action, kinds) and each.succeeded for each in decision.outcomes)
        )
        return next((seconds for seconds in done if seconds > 0), float("nan"))

    kind = next((lease.type for lease in recording.hosts if lease.host == host), None)
    low = recording.host(host, Metric.SPEED) < NOTICED * kind.speed if kind else np.zeros(len(recording.times), bool)
    seen = (float(time) for time, each in zip(recording.times, low, strict=True) if each and time > lost)
    noticed = next(seen, float("nan"))
    return Story(
        first(SwitchAlternate, zero + step[0]),
        first(LeaseHost, zero + step[0]),
        noticed - lost,
        noticed - lost + first((SwitchAlternate, LeaseHost, DrainHost), noticed),
        float(relative_throughput(checked.responses, step)[0]),
        int(recording.ending.facts["query runs"]),
    )

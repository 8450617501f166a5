"""Traffic on expressways by the rules of the Linear Road benchmark, as the lines that vehicles and weather stations send.

Arasu et al., "Linear Road: a stream data management benchmark", VLDB 2004. A vehicle reports its position every 30 s from
the entrance ramp (lane 0) to the exit ramp (lane 4), drives in lanes 1 to 3 between, and may ask for its balance or a
travel time with a report. Weather is the thesis's addition, as lines of a type of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

FIELDS = (
    "type", "time", "vid", "speed", "xway", "lane", "dir", "seg", "pos", "qid", "s_init", "s_end", "dow", "tod", "day",
)  # fmt: skip
"""Of a line, in order; whole numbers, -1 where a type has none."""
REPORT, BALANCE, TRAVEL, WEATHER = 0, 2, 4, 9
"""Types: position report, account balance and travel time (the benchmark's numbers), weather. A weather line says of `xway`
in the minute that begins at `time`: traffic goes at `speed` percent of what it does when it is dry."""
PERIOD, MINUTE, MILE, SEGMENTS = 30, 60, 5280, 100
"""Seconds between reports, seconds, feet of a segment, and segments of an expressway."""
EAST, WEST = 0, 1
ENTRANCE, EXIT = 0, 4
"""Lanes that are ramps."""
FASTEST = 100
"""Miles an hour."""
BEGINS = 8 * 60
"""Minute of the day, a Monday, at which time 0 is."""
FEET = MILE * PERIOD / 3600
"""That a mile an hour makes in the time between two reports."""


def parsed(line: str) -> dict[str, int]:
    """The fields of a line. Raises ValueError for one that is none."""
    return dict(zip(FIELDS, map(int, line.split(",")), strict=True))


@dataclass(frozen=True)
class Road:
    """Where vehicles drive, and what befalls them. None of it is the benchmark's but the share of queries.

    first, last: segments between which all trips are: a city's stretch of expressways of 100, so that it gets crowded.
    queries: part of reports that come with a query (the benchmark: 1 %). accident_every, breakdown_every: seconds between
    two vehicles that crash, and between single ones that break down; accident_lasts, breakdown_lasts: seconds they stand.
    free: miles an hour of an empty road; crowd: vehicles in a segment at which traffic all but stands; behind: miles an
    hour up to a segment behind an accident.
    """

    expressways: int = 2
    first: int = 44
    last: int = 55
    queries: float = 0.01
    accident_every: int = 150
    accident_lasts: int = 270
    breakdown_every: int = 210
    breakdown_lasts: int = 150
    free: float = 60.0
    crowd: float = 120.0
    behind: float = 12.0


@dataclass(slots=True, eq=False)
class _Vehicle:
    """until: when it goes on, if it stands. towards: position and lane of the crash that it is about to join."""

    vid: int
    xway: int
    dir: int
    pos: int
    speed: int
    goal: int
    lane: int = ENTRANCE
    until: int = 0
    towards: tuple[int, int] | None = None

    @property
    def seg(self) -> int:
        return self.pos // MILE

    @property
    def ahead(self) -> int:
        """Segments to its goal."""
        return (self.goal - self.seg) * (1 if self.dir == EAST else -1)


def send(due: Sequence[int], road: Road | None = None, seed: int = 1) -> list[str]:
    """The lines that are sent in each second, `due[s]` of them in second `s`, in order of time.

    Vehicles enter and leave so that there are as many: those of a second report again 30 s later. Raises ValueError for so
    few in a second that the weather alone is more, or for so many fewer than 30 s before that vehicles would have to leave
    that have only just come.
    """
    return [",".join(map(str, line)) for line in _Traffic(road or Road(), seed).lines(due)]


Line = tuple[int, ...]


@dataclass
class _Traffic:
    road: Road
    seed: int
    slots: list[list[_Vehicle]] = field(default_factory=lambda: [[] for _ in range(PERIOD)])
    vehicles: int = 0
    asked: int = 0
    now: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.cars = np.zeros((self.road.expressways, 2, SEGMENTS), dtype=np.int64)
        self.accidents: list[tuple[int, int, int, int]] = []
        self.weather: dict[tuple[int, int], int] = {}

    def lines(self, due: Sequence[int]) -> Iterator[Line]:
        """All lines, in order of time; within a second the weather first, then by vehicle."""
        weather = [self._weather(second) for second in range(len(due))]
        left = [number - len(lines) for number, lines in zip(due, weather, strict=True)]
        if min(left, default=0) < 0:
            second = left.index(min(left))
            most = len(weather[second])
            raise ValueError(f"{due[second]} lines are due in second {second}, and of the weather alone {most}")
        queries = [
            min(number // 2, asked)
            for number, asked in zip(left, self.random.binomial(left, self.road.queries), strict=True)
        ]
        waiting = {"accident": 0, "breakdown": 0}
        for second in range(len(due)):
            self.now = second
            yield from weather[second]
            self.accidents = [each for each in self.accidents if each[3] > second]
            sent, entered = self._reports(second, left[second] - queries[second])
            if (later := second + PERIOD) < len(due):
                queries[later] = max(0, min(queries[later], left[later] - entered))  # who has just come reports again
                self._leave(second, entered, left[later] - queries[later])
            yield from self._with_queries(second, sent, queries[second])
            waiting["accident"] += second % self.road.accident_every == self.road.accident_every // 2
            waiting["breakdown"] += second % self.road.breakdown_every == self.road.breakdown_every // 2
            moving = [vehicle for vehicle in sent if self._moves(vehicle)]
            if moving and waiting["accident"] and self._crash(second, moving):
                waiting["accident"] -= 1
            elif moving and waiting["breakdown"]:
                moving[-1].until = second + self.road.breakdown_lasts
                waiting["breakdown"] -= 1

    def _weather(self, second: int) -> list[Line]:
        """At the start of a minute, what it will be in the next; at the very first also what it is."""
        if second % MINUTE:
            return []
        minutes = [second // MINUTE + 1] if second else [0, 1]
        found = []
        for minute in minutes:
            for xway in range(self.road.expressways):
                before = self.weather.get((xway, minute - 1), 100)
                now = int(np.clip(before + self.random.integers(-5, 6), 70, 100))
                self.weather[xway, minute] = now
                found.append((WEATHER, minute * MINUTE, -1, now, xway, *[-1] * 10))
        return found

    def _reports(self, second: int, wanted: int) -> tuple[list[_Vehicle], int]:
        """Vehicles that report now, at their new places, and how many have just come in."""
        slot = self.slots[second % PERIOD]
        for vehicle in slot:
            self._drive(vehicle, second)
        entered = [self._enter() for _ in range(wanted - len(slot))]
        self.slots[second % PERIOD] = sent = sorted([*slot, *entered], key=lambda vehicle: vehicle.vid)
        return sent, len(entered)

    def _leave(self, second: int, entered: int, later: int) -> None:
        """Vehicles on the exit ramp have reported for the last time; more leave where fewer are to report 30 s later."""
        slot = self.slots[second % PERIOD]
        surplus = sum(vehicle.lane != EXIT for vehicle in slot) - later
        stay = [vehicle for vehicle in slot if vehicle.lane not in (ENTRANCE, EXIT)]
        if surplus > len(stay):
            raise ValueError(f"too few lines are due in second {second + PERIOD}: {entered} vehicles have just come in")
        for vehicle in sorted(stay, key=lambda vehicle: (not self._moves(vehicle), vehicle.ahead))[: max(0, surplus)]:
            vehicle.lane = EXIT
        for vehicle in slot:
            if vehicle.lane == EXIT:
                self.cars[vehicle.xway, vehicle.dir, vehicle.seg] -= 1
        self.slots[second % PERIOD] = [vehicle for vehicle in slot if vehicle.lane != EXIT]

    def _with_queries(self, second: int, sent: Sequence[_Vehicle], asked: int) -> Iterator[Line]:
        asking = set(self.random.choice(len(sent), min(asked, len(sent)), replace=False).tolist()) if asked else set()
        for number, vehicle in enumerate(sent):
            place = (vehicle.vid, vehicle.speed, vehicle.xway, vehicle.lane, vehicle.dir, vehicle.seg, vehicle.pos)
            yield (REPORT, second, *place, *[-1] * 6)
            if number in asking:
                self.asked += 1
                when = BEGINS + second // MINUTE
                about = (vehicle.seg, vehicle.goal, 1 + when // 1440 % 7, 1 + when % 1440)
                balance = self.random.random() < 0.5
                yield (BALANCE if balance else TRAVEL, second, *place, self.asked, *([-1] * 4 if balance else about), -1)

    def _enter(self) -> _Vehicle:
        road = self.road
        xway, way = int(self.random.integers(road.expressways)), int(self.random.integers(2))
        trip = int(self.random.integers(3, 9))
        start = int(self.random.integers(road.first, road.last - 2))
        goal = min(road.last, start + trip)
        if way == WEST:
            start, goal = road.first + road.last - start, road.first + road.last - goal
        speed = int(self.random.integers(16, 35))
        driven = int(speed * self.random.uniform(15.5, 17.5))
        pos = start * MILE + driven if way == EAST else (start + 1) * MILE - driven
        self.vehicles += 1
        self.cars[xway, way, start] += 1
        return _Vehicle(100 + self.vehicles, xway, way, pos, speed, goal)

    def _drive(self, vehicle: _Vehicle, second: int) -> None:
        """Go on for 30 s."""
        if vehicle.until > second:
            vehicle.speed = 0
            if vehicle.towards is not None:
                self._put(vehicle, vehicle.towards[0])
                vehicle.lane, vehicle.towards = vehicle.towards[1], None
            return
        if vehicle.lane == ENTRANCE:
            vehicle.lane = int(self.random.integers(1, 4))
        wet = self.weather[vehicle.xway, second // MINUTE] / 100
        cars = self.cars[vehicle.xway, vehicle.dir, vehicle.seg]
        speed = self.road.free * wet * max(0.1, 1 - cars / self.road.crowd)
        sign = 1 if vehicle.dir == EAST else -1
        if any(
            (xway, way) == (vehicle.xway, vehicle.dir) and 0 <= (seg - vehicle.seg) * sign <= 1
            for xway, way, seg, _ in self.accidents
        ):
            speed = min(speed, self.road.behind)
        vehicle.speed = int(np.clip(self.random.normal(speed, 4), 3, FASTEST))
        pos = vehicle.pos + sign * round(vehicle.speed * FEET)
        end = vehicle.goal * MILE + (MILE - 1 if sign > 0 else 0)
        if (end - pos) * sign <= 0:
            pos, vehicle.lane = end, EXIT
        self._put(vehicle, pos)

    def _put(self, vehicle: _Vehicle, pos: int) -> None:
        self.cars[vehicle.xway, vehicle.dir, vehicle.seg] -= 1
        vehicle.pos = pos
        self.cars[vehicle.xway, vehicle.dir, vehicle.seg] += 1

    def _moves(self, vehicle: _Vehicle) -> bool:
        """Whether it drives in a travel lane, and nothing has befallen it."""
        return vehicle.lane not in (ENTRANCE, EXIT) and vehicle.until <= self.now

    def _crash(self, second: int, moving: Sequence[_Vehicle]) -> bool:
        """Let a vehicle that has just reported stop there, and one close behind it drive into it; whether there is one."""
        reach = 1500
        for first in moving:
            sign = 1 if first.dir == EAST else -1
            for slot in self.slots:
                for other in slot:
                    same = (other.xway, other.dir) == (first.xway, first.dir) and other is not first
                    if same and self._moves(other) and 0 <= (first.pos - other.pos) * sign <= reach:
                        first.until = other.until = second + self.road.accident_lasts
                        other.towards = (first.pos, first.lane)
                        self.accidents.append((first.xway, first.dir, first.seg, first.until))
                        return True
        return False

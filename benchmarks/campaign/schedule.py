"""Schedules of faults as values: drawn from a seed, written as JSON, replayed, and shortened if they fail."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

OWN, SHARED = "own", "shared"
"""Worlds: one application on a cloud of its own that outlives it; two that share the hosts of two regions."""
BEGIN = 40.0  # seconds before the first fault: the run has begun to work
BETWEEN = 10.0  # mean seconds between two faults: about the time in which one is noticed, so that many overlap
SHORTEST, LONGEST = 2.0, 30.0  # seconds that a fault with a duration lasts
LAST = 500.0
"""Records/s at the end, at most: what two applications share must work off all that waits before it can be at rest."""
HANGS = 120.0  # longest hang of a batch (seconds): a misled policy would release a host after a minute
RACES = 120.0  # longest time in which executors are given a task just before their fence (seconds)
STEPS = (1.0, 10.0, 60.0, 600.0, 3600.0)  # seconds by which a clock is set, forward or back
ERRORS = ("EnvironmentProblem", "OSError", "TimeoutError", "RuntimeError", "KeyError", "ValueError", "Py4JError")
"""What a call raises: that of the contract, and others."""
WHEN = ("before", "inside", "after")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of `kind` at `who`, at `at` seconds.

    amount: by kind, bytes, seconds of a clock step, or calls. seconds: its duration. how: a variant, such as the point of
    a write at which a process dies, or a call and its error.
    """

    at: float
    kind: str
    who: str
    amount: float = 0.0
    seconds: float = 0.0
    how: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The faults of one run, oldest first. world: OWN or SHARED. load: (second, records/s) from then on."""

    seed: int
    world: str
    load: tuple[tuple[float, float], ...]
    faults: tuple[Fault, ...]

    @property
    def end(self) -> float:
        return max(BEGIN, self.load[-1][0], *(each.at + each.seconds for each in self.faults))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. who: possible victims by world. weight: how often. lasts: whether it has a duration."""

    who: Mapping[str, Sequence[str]]
    weight: float = 1.0
    lasts: bool = False
    longest: float = LONGEST
    how: Sequence[str] = ("",)
    amount: Callable[[random.Random], float] = lambda chance: 0.0


DRIVERS: Mapping[str, Sequence[str]] = {OWN: ("a",), SHARED: ("a", "b")}
ALL: Mapping[str, Sequence[str]] = {OWN: ("a",), SHARED: ("a", "b", "arbiter", "east", "west")}
PROVIDERS: Mapping[str, Sequence[str]] = {OWN: ("a",), SHARED: ("a", "b", "east", "west")}
MACHINE: Mapping[str, Sequence[str]] = {OWN: ("all",), SHARED: ("all",)}


def _few(chance: random.Random) -> float:
    return float(chance.randint(1, 5))


KINDS: Mapping[str, Kind] = {
    "killed": Kind(ALL, 1.5),
    "killed in a write": Kind(ALL, 2.0, how=WHEN),
    "killed in a call": Kind(PROVIDERS, 2.0, how=("before", "after")),
    "a full disk": Kind(ALL, 1.5, lasts=True, amount=lambda chance: float(chance.choice((0, 1, 20, 200, 2000)))),
    "the clock is set": Kind(MACHINE, 1.5, amount=lambda chance: chance.choice(STEPS) * chance.choice((-1, 1))),
    "messages lost": Kind({OWN: (), SHARED: ("a", "b", "east", "west")}, 1.5, lasts=True),
    "answers lost": Kind({OWN: (), SHARED: ("a", "b", "east", "west")}, 1.0, lasts=True),
    "messages doubled": Kind({OWN: (), SHARED: ("a", "b", "east", "west")}, 1.0, lasts=True),
    "the provider raises": Kind(PROVIDERS, 2.0, how=tuple(f"{e} {w}" for e in ERRORS for w in ("before", "after")),
                                amount=_few),
    "no room": Kind(PROVIDERS, 0.7, lasts=True),
    "hosts start slowly": Kind(PROVIDERS, 0.7, lasts=True),
    "a host dies": Kind(DRIVERS, 2.0),
    "hosts die": Kind(DRIVERS, 0.7, amount=_few),
    "an executor dies": Kind(DRIVERS, 1.5),
    "an executor stands still": Kind(DRIVERS, 1.0, lasts=True),
    "a stray host": Kind({OWN: ("a",), SHARED: ("east", "west")}, 0.7),
    "the gateway fails": Kind(DRIVERS, 2.0, lasts=True, how=(*ERRORS, *(f"{error} queries" for error in ERRORS))),
    "reports to the coordinator lost": Kind(DRIVERS, 1.0, lasts=True),
    "reports of executors late": Kind(DRIVERS, 1.0, lasts=True),
    "a task just before a fence": Kind(DRIVERS, 1.0, lasts=True, longest=RACES),
    "a batch hangs": Kind(DRIVERS, 1.0, lasts=True, longest=HANGS),
    "progress is missing": Kind(DRIVERS, 1.0, lasts=True),
    "task loads are missing": Kind(DRIVERS, 0.7, lasts=True),
    "use is stale": Kind(DRIVERS, 0.7, lasts=True),
    "use is absurd": Kind(DRIVERS, 1.5, lasts=True, how=("nan", "inf", "-inf", "negative", "none", "huge")),
    "the policy fails": Kind(
        DRIVERS, 2.0, lasts=True, how=("RuntimeError", "Py4JError", "no plan", "odd actions", "greedy", "rash")
    ),
    "an observer fails": Kind(DRIVERS, 0.3, how=ERRORS),
    "a second controller": Kind(DRIVERS, 0.7),
}  # fmt: skip
"""Every kind of fault of the simulated form."""


def drawn(seed: int, faults: int, world: str = "") -> Schedule:
    chance = random.Random(seed)
    where = world or (OWN, SHARED)[seed % 2]
    kinds = [name for name, kind in KINDS.items() if kind.who[where]]
    at, found = BEGIN, list[Fault]()
    for name in chance.choices(kinds, [KINDS[name].weight for name in kinds], k=faults):
        kind = KINDS[name]
        seconds = round(chance.uniform(SHORTEST, kind.longest), 1) if kind.lasts else 0.0
        found.append(
            Fault(round(at, 1), name, chance.choice(kind.who[where]), kind.amount(chance), seconds, chance.choice(kind.how))
        )
        at += chance.expovariate(1 / BETWEEN)
    load = [(0.0, chance.uniform(150.0, 350.0))]
    while load[-1][0] < at:
        load.append((load[-1][0] + chance.uniform(30.0, 120.0), chance.uniform(150.0, 900.0)))
    load[-1] = (load[-1][0], min(load[-1][1], LAST))
    return Schedule(seed, where, tuple((round(t, 1), round(rate, 1)) for t, rate in load), tuple(found))


def to_json(schedule: Schedule) -> str:
    return json.dumps(asdict(schedule))


def from_json(text: str) -> Schedule:
    fields = json.loads(text)
    fields["load"] = tuple((at, rate) for at, rate in fields["load"])
    fields["faults"] = tuple(Fault(**each) for each in fields["faults"])
    return Schedule(**fields)


def shortened(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Return the shortest failing part of `schedule` that was found; raises NoSuchExample if no part fails."""
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis import strategies as st

    count = len(schedule.faults)

    def kept(chosen: Sequence[bool]) -> Schedule:
        faults = tuple(fault for fault, stays in zip(schedule.faults, chosen, strict=True) if stays)
        return Schedule(schedule.seed, schedule.world, schedule.load, faults)

    tried: dict[tuple[bool, ...], bool] = {}

    def failing(chosen: tuple[bool, ...]) -> bool:
        if chosen not in tried:
            tried[chosen] = fails(kept(chosen))
        return tried[chosen]

    # At first nearly all faults stay. Shrinking moves numbers towards 0, and 0 drops a fault.
    masks = st.lists(st.integers(0, 4 * count), min_size=count, max_size=count).map(lambda each: tuple(map(bool, each)))
    quiet = settings(
        database=None, max_examples=200, deadline=None, derandomize=True,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    if not count:
        return schedule
    return kept(find(masks, failing, settings=quiet))

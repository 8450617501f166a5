"""Nexmark's events: persons, auctions and bids, each a pure function of the seed and its number.

Of each 50 events, the first is a person, the next three are auctions and the others bids. Any range of events can be made
anywhere, in parts of any size, with equal bytes. Proportions, hot keys, prices and texts are those of the public generator.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastream.errors import InputError
from elastream.loads.pattern import Pattern, constant, dues

Integers: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Kind: TypeAlias = Literal["person", "auction", "bid"]
KINDS: tuple[Kind, ...] = get_args(Kind)

PERIOD = 50  # events in which proportions repeat
OFFSETS: Mapping[Kind, range] = {"person": range(1), "auction": range(1, 4), "bid": range(4, PERIOD)}
AUCTIONS_PER_PERIOD = len(OFFSETS["auction"])

FIRST_ID = 1000  # of persons and of auctions
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_BLOCK = 100  # persons or auctions that share a hot one
AUCTIONS_IN_FLIGHT, PERSONS_ACTIVE, AHEAD = 100, 1000, 10
EVENTS_IN_FLIGHT = AUCTIONS_IN_FLIGHT * PERIOD // AUCTIONS_PER_PERIOD
CHANNELS, HOT_CHANNELS = 10_000, ("Google", "Facebook", "Baidu", "Apple")
MEAN_BYTES: Mapping[Kind, int] = {"person": 200, "auction": 500, "bid": 100}
OWN_BYTES: Mapping[Kind, int] = {"person": 60, "auction": 110, "bid": 32}
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
DEFAULT_RATE = 10_000.0  # events/s
BASE_TIME_S = 1_436_918_400  # 2015-07-15, so that runs of one seed are equal
BATCH_ROWS = 16_384

TIME = pa.timestamp("us", tz="UTC")
SCHEMAS: Mapping[Kind, pa.Schema] = {
    "person": pa.schema(
        [
            ("id", pa.int64()),
            *((name, pa.string()) for name in ("name", "email_address", "credit_card", "city", "state")),
            ("date_time", TIME),
            ("extra", pa.string()),
        ]
    ),
    "auction": pa.schema(
        [
            ("id", pa.int64()),
            ("item_name", pa.string()),
            ("description", pa.string()),
            ("initial_bid", pa.int64()),
            ("reserve", pa.int64()),
            ("date_time", TIME),
            ("expires", TIME),
            ("seller", pa.int64()),
            ("category", pa.int64()),
            ("extra", pa.string()),
        ]
    ),
    "bid": pa.schema(
        [
            ("auction", pa.int64()),
            ("bidder", pa.int64()),
            ("price", pa.int64()),
            ("channel", pa.string()),
            ("url", pa.string()),
            ("date_time", TIME),
            ("extra", pa.string()),
        ]
    ),
}


@dataclass(frozen=True)
class Events:
    """A sequence of events.

    Attributes:
        load: Events due over time; event times follow it.
        disorder: Seconds by which an event's time may lie before its due time, evenly drawn.
        late_share: Share of events that are later still.
        late_by: Seconds by which those are later.
        base_time: Time of the load's beginning, in seconds since 1970.
    """

    seed: int = 1
    load: Pattern = field(default_factory=lambda: constant(DEFAULT_RATE))
    disorder: float = 0.0
    late_share: float = 0.0
    late_by: float = 0.0
    base_time: float = BASE_TIME_S

    def __post_init__(self) -> None:
        if not (0 <= self.disorder < math.inf and 0 <= self.late_by < math.inf):
            raise InputError(f"events cannot be {self.disorder:g} s or {self.late_by:g} s late: give finite seconds from 0")
        if not 0 <= self.late_share <= 1:
            raise InputError(f"a share of {self.late_share:g} late events: it must lie between 0 and 1")

    @property
    def longest_delay(self) -> float:
        """Return how long an event's time may lie before its due time (seconds)."""
        return self.disorder + (self.late_by if self.late_share else 0.0)

    @property
    def longest_auction(self) -> float:
        """Return the longest time from an auction's opening to its expiry (seconds)."""
        return 2 * self._horizon_ms / 1e3

    @cached_property
    def _horizon_ms(self) -> int:
        """Time of the events in flight at the load's mean rate, at least 1 ms."""
        return max(1, math.ceil(EVENTS_IN_FLIGHT * 1e3 * self.load.period / max(self.load.period_total, 1e-9)))

    def schema(self, kind: Kind) -> pa.Schema:
        return SCHEMAS[kind]

    def reached(self, kind: Kind, events: int) -> int:
        """Return how many events of all kinds come before number `events` of `kind`, counted from 0."""
        total = self.load.count(self.load.seconds)
        if events >= (whole := count(kind, total)):
            return total + (events > whole)
        periods, nth = divmod(events, len(OFFSETS[kind]))
        return min(total, periods * PERIOD + OFFSETS[kind].start + nth)

    def batches(self, kind: Kind, first: int, last: int, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the events of one kind among the events `first` to `last` (exclusive), at most `rows` in a batch."""
        begin, end = count(kind, first), count(kind, last)
        for start in range(begin, end, rows):
            yield self._batch(kind, np.arange(start, min(end, start + rows), dtype=np.int64))

    def table(self, kind: Kind, first: int, last: int) -> pa.Table:
        return pa.Table.from_batches(self.batches(kind, first, last), SCHEMAS[kind])

    def _batch(self, kind: Kind, nth: Integers) -> pa.RecordBatch:
        offsets = OFFSETS[kind]
        periods, within = np.divmod(nth, len(offsets))
        numbers = periods * PERIOD + within + offsets.start
        draw = Draw(self.seed, numbers)
        columns = _MAKERS[kind](draw, numbers, periods)
        at = self._times(numbers, draw)
        columns["date_time"] = _time(at)
        if kind == "auction":
            columns["expires"] = _time(at + (1 + draw.below(2 * self._horizon_ms, "expires")) * 1000)
        missing = MEAN_BYTES[kind] - OWN_BYTES[kind]
        spread = round(missing * 0.2)
        columns["extra"] = _text(draw, "extra", missing - spread, missing + spread, blanks="")
        schema = SCHEMAS[kind]
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _times(self, numbers: Integers, draw: "Draw") -> Integers:
        """Return event times in microseconds since 1970, in whole milliseconds."""
        delays = np.zeros(len(numbers), dtype=np.int64)
        if self.disorder:
            delays += draw.below(math.floor(self.disorder * 1e3) + 1, "disorder")
        if self.late_share and self.late_by:
            late = draw.below(1_000_000, "late") < round(self.late_share * 1e6)
            delays += np.where(late, round(self.late_by * 1e3), 0)
        due = np.floor(dues(self.load, numbers) * 1e3).astype(np.int64)
        return (round(self.base_time * 1e3) + due - delays) * 1000


def kind_of(stream: str) -> Kind:
    return {"persons": "person", "auctions": "auction", "bids": "bid"}[stream]  # type: ignore[return-value]


def count(kind: Kind, events: int) -> int:
    periods, rest = divmod(events, PERIOD)
    offsets = OFFSETS[kind]
    return periods * len(offsets) + min(max(0, rest - offsets.start), len(offsets))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_WORD = 2**64 - 1


class Draw:
    """Random numbers of events: a hash (SplitMix64) of seed, event number and the name of what is drawn."""

    def __init__(self, seed: int, numbers: Integers) -> None:
        self.seed = seed
        self._numbers = numbers.astype(np.uint64) * _GOLDEN

    def words(self, what: str) -> Words:
        """Return 64 random bits for each event."""
        x = self._numbers + np.uint64(_lane(self.seed, what))
        x ^= x >> np.uint64(30)
        x *= _MIX[0]
        x ^= x >> np.uint64(27)
        x *= _MIX[1]
        x ^= x >> np.uint64(31)
        return x

    def below(self, bound: int | Integers, what: str) -> Integers:
        """Return a whole number from 0 to below `bound` (at most 2^31) for each event."""
        return _scaled(self.words(what), bound)

    def pick(self, choices: pa.Array, what: str) -> pa.Array:
        return choices.take(pa.array(self.below(len(choices), what)))


def _scaled(words: Words, bound: int | Integers) -> Integers:
    """Return a whole number from 0 to below `bound` for each word, by its upper 32 bits."""
    return ((words >> np.uint64(32)).astype(np.int64) * bound) >> 32


@lru_cache(maxsize=256)
def _lane(seed: int, what: str) -> int:
    x = seed & _WORD
    for byte in what.encode():
        x = ((x ^ byte) * 0x100000001B3 + 0x9E3779B97F4A7C15) & _WORD
        x ^= x >> 29
    return x


def _person(draw: Draw, numbers: Integers, periods: Integers) -> dict[str, pa.Array]:
    user, domain = _text(draw, "email name", 3, 7), _text(draw, "email domain", 3, 5)
    card = [draw.pick(_digits(), f"card {part}") for part in range(4)]
    return {
        "id": pa.array(FIRST_ID + periods),
        "name": pc.binary_join_element_wise(
            draw.pick(pa.array(FIRST_NAMES), "first name"), draw.pick(pa.array(LAST_NAMES), "last name"), " "
        ),
        "email_address": pc.binary_join_element_wise(user, "@", domain, ".com", ""),
        "credit_card": pc.binary_join_element_wise(*card, " "),
        "city": draw.pick(pa.array(CITIES), "city"),
        "state": draw.pick(pa.array(STATES), "state"),
    }


def _auction(draw: Draw, numbers: Integers, periods: Integers) -> dict[str, pa.Array]:
    first_bid = _price(draw, "initial bid")
    hot = draw.below(4, "is hot seller") > 0
    seller = np.where(hot, periods // HOT_BLOCK * HOT_BLOCK, _other_person(draw, periods, "seller"))
    return {
        "id": pa.array(FIRST_ID + periods * AUCTIONS_PER_PERIOD + numbers % PERIOD - OFFSETS["auction"].start),
        "item_name": _text(draw, "item", 3, 20),
        "description": _text(draw, "description", 3, 100),
        "initial_bid": pa.array(first_bid),
        "reserve": pa.array(first_bid + _price(draw, "reserve")),
        "seller": pa.array(FIRST_ID + seller),
        "category": pa.array(FIRST_CATEGORY + draw.below(CATEGORIES, "category")),
    }


def _bid(draw: Draw, numbers: Integers, periods: Integers) -> dict[str, pa.Array]:
    newest = periods * AUCTIONS_PER_PERIOD + AUCTIONS_PER_PERIOD - 1
    oldest = np.maximum(newest - AUCTIONS_IN_FLIGHT, 0)
    other = oldest + draw.below(newest - oldest + 1 + AHEAD, "auction")
    choices = draw.words("choices")
    auction = np.where(choices & np.uint64(1), newest // HOT_BLOCK * HOT_BLOCK, other)
    hot = choices & np.uint64(6) != 0
    bidder = np.where(hot, periods // HOT_BLOCK * HOT_BLOCK + 1, _other_person(draw, periods, "bidder"))
    hot_channel = ((choices >> np.uint64(3)) & np.uint64(3)).astype(np.int64)
    channel = np.where(choices & np.uint64(32), hot_channel, len(HOT_CHANNELS) + _scaled(choices, CHANNELS))
    names, urls = _channels(draw.seed)
    at = pa.array(channel)
    return {
        "auction": pa.array(FIRST_ID + auction),
        "bidder": pa.array(FIRST_ID + bidder),
        "price": pa.array(_price(draw, "price")),
        "channel": names.take(at),
        "url": urls.take(at),
    }


_MAKERS: Mapping[Kind, Callable[[Draw, Integers, Integers], dict[str, pa.Array]]] = {
    "person": _person,
    "auction": _auction,
    "bid": _bid,
}


def _other_person(draw: Draw, periods: Integers, what: str) -> Integers:
    active = np.minimum(periods + 1, PERSONS_ACTIVE)
    return periods + 1 - active + draw.below(active + AHEAD, what)


_LEVELS = 1024
_COARSE = np.array([100.0 * math.pow(10, 6 * step / _LEVELS) for step in range(_LEVELS)])
_FINE = np.array([math.pow(10, 6 * step / _LEVELS**2) for step in range(_LEVELS)])


def _price(draw: Draw, what: str) -> Integers:
    words = draw.words(what)
    coarse, fine = words & np.uint64(_LEVELS - 1), (words >> np.uint64(10)) & np.uint64(_LEVELS - 1)
    prices: Integers = np.rint(_COARSE[coarse] * _FINE[fine]).astype(np.int64)
    return prices


_POOL_BYTES = 1 << 20
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


@lru_cache(maxsize=8)
def _pool(seed: int, blanks: str) -> NDArray[np.uint8]:
    """Return random letters from which texts are cut; 1 in 13 is the blank, if there is one."""
    draw = Draw(seed, np.arange(_POOL_BYTES, dtype=np.int64))
    letters = _LETTERS[draw.below(len(_LETTERS), f"pool of letters{blanks}")]
    if blanks:
        letters[draw.below(13, f"pool of blanks{blanks}") == 0] = ord(blanks)
    return letters


def _text(draw: Draw, what: str, shortest: int, below: int, blanks: str = " ") -> pa.Array:
    """Return texts with lengths from `shortest` to below `below`; blanks at the ends are cut off."""
    pool = _pool(draw.seed, blanks)
    words = draw.words(what)
    starts = (words & np.uint64(_POOL_BYTES - 1)).astype(np.int64) % (_POOL_BYTES - below)
    lengths = shortest + _scaled(words, below - shortest)
    windows = np.ndarray(len(pool) - below, f"V{below}", pool, strides=(1,))  # an item of `below` bytes is copied as one
    rows = windows[starts].view(np.uint8).reshape(len(lengths), below)
    data = rows[_beginnings(below)[lengths]]
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    texts = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(data))
    return pc.utf8_trim(texts, blanks) if blanks else texts


@lru_cache(maxsize=16)
def _beginnings(below: int) -> NDArray[np.bool_]:
    return np.tri(below + 1, below, -1, dtype=np.bool_)


@lru_cache(maxsize=2)
def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Return the name and the url of each channel, the hot ones first. Those have no channel id, nor has 1 in 10 others."""
    draw = Draw(seed, np.arange(len(HOT_CHANNELS) + CHANNELS, dtype=np.int64))
    directories = zip(*(_text(draw, f"directory {n}", 3, 5, blanks="_").to_pylist() for n in range(3)), strict=True)
    has_id = draw.below(10, "has channel id") > 0
    names, urls = list(HOT_CHANNELS), []
    for place, path in enumerate(directories):
        url = f"https://www.nexmark.com/{'/'.join(path)}/item.htm?query=1"
        number = place - len(HOT_CHANNELS)
        if number >= 0:
            names.append(f"channel-{number}")
            url += f"&channel_id={_reversed(number)}" if has_id[place] else ""
        urls.append(url)
    return pa.array(names), pa.array(urls)


def _reversed(number: int) -> int:
    bits = int(f"{number:032b}"[::-1], 2)
    return abs(bits - 2**32 if bits >= 2**31 else bits)


@lru_cache(maxsize=1)
def _digits() -> pa.Array:
    return pa.array([f"{number:04}" for number in range(10_000)])


def _time(microseconds: Integers) -> pa.Array:
    return pa.array(microseconds).cast(TIME)

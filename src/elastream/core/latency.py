"""What a latency is measured from, per source: a promise can only be judged by a figure whose meaning is said beside it.

A declared load knows when each record was due. A foreign source may stamp its records (Kafka), or its files; of any other
it is only known that a record came after the source was last asked, which gives an upper bound.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Basis(StrEnum):
    """Moment from which the latency of a source's records counts, the most exact first."""

    DUE = "due times"
    """The load that the source declares makes each record due."""
    TIMESTAMPS = "record timestamps"
    """Each record carries the time at which it came to be; one from before the run counts from the start of the run."""
    FILES = "file modification times"
    """When the file of a record was last written; one from before the run counts from the start of the run."""
    BOUND = "upper bound"
    """The latest poll of the source that cannot have seen the record: it came after that, so that it took no longer."""


def is_bound(bases: Mapping[str, Basis]) -> bool:
    """Whether latencies on `bases`, by source, are upper bounds, at least for one source."""
    return Basis.BOUND in bases.values()


def basis_text(bases: Mapping[str, Basis]) -> str:
    """`bases`, by source, as people read them behind a latency: `"from due times"`, `"upper bound"`, else by source."""
    kinds = set(bases.values())
    if len(kinds) < 2:
        return "".join(each.value if each is Basis.BOUND else f"from {each.value}" for each in kinds)
    return ", ".join(f"{source}: {basis.value}" for source, basis in bases.items())


def weakest(several: Iterable[Mapping[str, Basis]]) -> dict[str, Basis]:
    """The least exact basis of each source in `several`: what a figure over all of them may claim."""
    rank = {basis: number for number, basis in enumerate(Basis)}
    found: dict[str, Basis] = {}
    for bases in several:
        found |= {name: max(basis, found.get(name, basis), key=rank.__getitem__) for name, basis in bases.items()}
    return found


def share_within(level: float | None, oldest: float, newest: float) -> float:
    """Part of the latencies of a batch within `level` seconds, spread evenly from its newest record's to its oldest one's.

    None: no level, all are within.
    """
    if level is None or oldest <= level or newest > level:
        return float(level is None or oldest <= level)
    return (level - newest) / (oldest - newest)

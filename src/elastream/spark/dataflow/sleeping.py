"""Which exits of a walk a composition reaches: what a choice does not select sleeps, and nothing is written there.

Without this, a sleeping branch would cost a job a batch: an exit that no record reached is only known empty when the rows
of the batch have been searched for it.
"""

from collections.abc import Callable
from functools import lru_cache

from elastream.spark.worker.fused import Step, Walk, WalkEntry


def open_exits(walk: Walk, code: int) -> frozenset[int]:
    """Numbers of the exits of `walk` that records can reach under the composition with `code`."""
    nodes: list[WalkEntry | Step] = [*walk.entries, *walk.steps]
    reached = set(range(len(walk.entries)))
    for number, node in enumerate(nodes):  # steps are in topological order
        if number in reached:
            reached |= {r.to for r in node.routes if r.choice is None or r.choice.of(code) == r.position}
    return frozenset(number - len(nodes) for number in reached if number >= len(nodes))


def awake(walk: Walk, exit: int) -> Callable[[int], bool]:
    """Tells whether records can reach an exit, by the code of a composition."""

    @lru_cache(maxsize=256)
    def found(code: int) -> bool:
        return exit in open_exits(walk, code)

    return found

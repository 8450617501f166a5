"""What a Python worker does once, on its first task, so that all later ones are cheaper."""

import functools
import gc

__all__ = ["settle_in"]


@functools.cache
def settle_in() -> None:
    """Take what is imported by now out of the garbage collector's sight; no effect after the first call in a process.

    PySpark's workers collect all garbage after every task. With pandas and Arrow loaded that walks some 10^5 objects which
    live as long as the process: 30 ms of CPU, twice a partition and batch, which is more than a small batch's own work.
    """
    gc.collect()
    gc.freeze()

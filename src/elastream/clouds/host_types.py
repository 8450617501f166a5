"""Host types that clouds know by name, and the heap of an executor on a host."""

from collections.abc import Mapping
from types import MappingProxyType

from elastream.core.hosts import Billing, HostType

SMALL = HostType("small", cores=0.5, slots=1, memory=1000.0, price=1.0, billing=Billing(30.0), start=8.0, stop=3.0)
"""Half a core and 1,000 MB for one task, billed per 30 s, so that a demonstration of minutes sees leases end."""

HOST_TYPES: Mapping[str, HostType] = MappingProxyType({SMALL.name: SMALL})

# The rest of the memory is for Python workers, RocksDB and Spark's worker process.
HEAP_SHARE = 0.7
# MiB; Spark starts no executor with less than 1.5 times the 300 MiB that it reserves.
MIN_HEAP_MIB = 450


def executor_memory(host: HostType) -> int:
    """Return the heap (MiB) of the executor on a host of this type, as for `spark.executor.memory`."""
    return int(host.memory * 1e6 * HEAP_SHARE / 2**20)

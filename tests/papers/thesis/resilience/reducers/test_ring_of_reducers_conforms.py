"""The ring of reducers keeps the contract that every plant keeps."""

from conformance.suite import PlantCase, conformance_suite
from elastream.core.promises import PlantKind
from elastream_papers.thesis.resilience.reducers import Protection
from support.reducer_plants import ring


def plant():
    return ring(hosts=2, rate="500/s", seconds=600.0)


def lose(reducers, host):
    reducers.fail(reducers.reducers.nodes[host], reducers.time)


TestReducers = conformance_suite(PlantCase("reducers", plant, PlantKind.REDUCERS, settle=30.0, examples=30, lose=lose))
TestStorm = conformance_suite(
    PlantCase(
        "storm", lambda: ring(hosts=2, rate="500/s", seconds=600.0, protection=Protection.UPSTREAM), PlantKind.REDUCERS,
        settle=90.0, examples=20,
    )
)  # fmt: skip

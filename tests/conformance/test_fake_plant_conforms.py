"""The fake plant that tests of the loop use keeps the contract, so what they show holds for real plants too."""

from conformance.suite import PlantCase, conformance_suite
from elastream.core.metrics import Metric, Rows
from elastream.core.promises import PlantKind
from support.fake_plant import FakePlant

FAKED = PlantKind.DATAFLOW
"""What the fake plant's dataflow would be on Spark; it measures a few of the metrics that one would have."""
MEASURED = frozenset(
    [(Rows.OPERATOR, metric) for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.BUSY_CORES)]
    + [(Rows.APPLICATION, metric) for metric in (Metric.THROUGHPUT, Metric.COST)]
    + [(Rows.HOST, Metric.TASKS)]
)

TestFakePlant = conformance_suite(PlantCase("fake", FakePlant, FAKED, settle=10.0, measures=MEASURED, lose=FakePlant.lose))
TestSharedFakePlant = conformance_suite(
    PlantCase("shared", lambda: FakePlant(hosts=2, max_hosts=1000), FAKED, 10.0, shared=True, measures=MEASURED)
)

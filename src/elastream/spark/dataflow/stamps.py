"""Observes the time stamps of a source's records in the plan, so that each batch reports their quantiles with its progress.

Native, in the JVM, before any operator: it works whatever follows, and no column has to travel for it.
"""

from urllib.parse import quote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

OBSERVED = "elastream "
"""How the names of our observations in a plan begin."""
POINTS = 32
"""Records of a batch whose latency is computed, evenly spread; the rest lie between them."""
QUANTILES = (0.0, *((point + 0.5) / POINTS for point in range(POINTS)), 1.0)
"""Quantiles of the time stamps of a batch that are observed: the oldest, those of POINTS records, the newest."""
ACCURACY = 200
"""Of `percentile_approx`: quantiles are off by 1/200 of the ranks at most."""


def observation_name(source: str) -> str:
    """Name of the observation of the source or edge called `source`, as JSON may hold it unquoted."""
    return OBSERVED + quote(source, safe="")


def with_stamps(frame: DataFrame, column: str, source: str) -> DataFrame:
    """`frame`, which reports the quantiles of its timestamps `column`; null ones and those before 1970 are none."""
    seconds = F.col(column).cast("double")
    known = F.when(seconds > 0, seconds)  # Kafka's messages without a timestamp have -1
    return frame.observe(
        observation_name(source),
        F.count(F.lit(1)).alias("records"),
        F.count(known).alias("stamped"),
        F.percentile_approx(known, list(QUANTILES), ACCURACY).alias("at"),
    )

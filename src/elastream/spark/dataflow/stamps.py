"""Observes the time stamps of a source's records, so that each batch reports their quantiles."""

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OBSERVATION_PREFIX = "elastream "
# Records of a batch whose latency is computed, evenly spread.
POINTS = 32
# Observed quantiles of a batch's time stamps: the oldest, POINTS between, the newest.
QUANTILES = (0.0, *((point + 0.5) / POINTS for point in range(POINTS)), 1.0)
# Of `percentile_approx`: quantiles are off by at most 1/200 of the ranks.
ACCURACY = 200


def observation_name(source: str) -> str:
    return OBSERVATION_PREFIX + quote(source, safe="")


def with_stamps(frame: "DataFrame", column: str, source: str) -> "DataFrame":
    """Observe the quantiles of the timestamp `column`, without times before 1970."""
    from pyspark.sql import functions as F  # readers of progress need no PySpark

    seconds = F.col(column).cast("double")
    stamps = F.when(seconds > 0, seconds)  # Kafka's messages without a timestamp have -1
    return frame.observe(
        observation_name(source),
        F.count(F.lit(1)).alias("records"),
        F.count(stamps).alias("stamped"),
        F.percentile_approx(stamps, list(QUANTILES), ACCURACY).alias("at"),
    )

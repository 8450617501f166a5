"""A count over numbered records with state of any size, as native Spark: counts are verifiable after any fault."""

from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream_papers.thesis.resilience.reducers.keys import EXPONENTS, KERNEL

STRIDE = 7_368_787  # prime: keys of successive records are far apart and hit all state partitions
HOT, DRAWS = 0.75, 8  # part of skewed records redrawn, and most draws, to reach hot partitions


@dataclass(frozen=True, slots=True)
class Job:
    """A count.

    keys: of the state. rows: of a batch. pace: seconds between batches, 0 for none. partitions: of the state. words:
    distributed as words in texts. hot, skewed_from: from this batch on most keys fall in the first `hot` partitions.
    """

    keys: int
    rows: int
    pace: float = 1.0
    partitions: int = 8
    words: bool = False
    hot: int = 0
    skewed_from: int = 0

    @property
    def filling(self) -> int:
        """Return batches until each key has come, or has had as many chances."""
        return -(-self.keys // self.rows)

    def source(self, spark: SparkSession) -> DataFrame:
        """Return the stream of records, numbered in `value`."""
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows).option("numPartitions", 4)
        return source.load()

    def keyed(self, numbers: DataFrame) -> DataFrame:
        """Return each record's `key`, by its number alone."""
        return numbers.select(self._key().alias("key"))

    def counted(self, numbers: DataFrame) -> DataFrame:
        """Return the count of each key."""
        return self.keyed(numbers).groupBy("key").count()

    def start(self, spark: SparkSession, checkpoint: Path) -> StreamingQuery:
        """Start the query, or continue from its checkpoint."""
        writer = self.counted(self.source(spark)).writeStream.outputMode("update").format("noop")
        paced = writer.trigger(processingTime=f"{self.pace:g} seconds")
        return paced.option("checkpointLocation", str(checkpoint)).start()

    def _key(self) -> Column:
        if not self.words:
            even = F.col("value") * STRIDE % self.keys
            before = F.col("value") < self.skewed_from * self.rows
            return F.when(before, even).otherwise(self._drawn(even)) if self.hot else even
        # Uniform in (0, 1) by the number, to the rank: the inverse of the integral of `two_regimes`.
        uniform = (F.pmod(F.xxhash64("value"), F.lit(1 << 30)) + 0.5) / float(1 << 30)
        near, far = (1 - exponent for exponent in EXPONENTS)
        first, last, joint = 0.5, self.keys + 0.5, KERNEL ** (near - far)  # of a rank from half before it to half behind it
        common, rare = (KERNEL**near - first**near) / near, joint * (last**far - KERNEL**far) / far
        reached = uniform * (common + rare)
        early = F.pow(first**near + near * reached, F.lit(1 / near))
        late = F.pow(KERNEL**far + far * (reached - common) / joint, F.lit(1 / far))
        return (F.floor(F.when(reached <= common, early).otherwise(late) + 0.5) - 1).cast("long")

    def _drawn(self, even: Column) -> Column:
        """Redraw HOT of the records: the first drawn key of a hot partition, if any."""
        draws = [F.pmod(F.xxhash64("value", F.lit(number)), F.lit(self.keys)) for number in range(DRAWS)]
        found = reduce(lambda later, key: F.when(self._partition(key) < self.hot, key).otherwise(later), draws, even)
        return F.when(F.pmod(F.xxhash64("value", F.lit(-1)), F.lit(1000)) < 1000 * HOT, found).otherwise(even)

    def _partition(self, key: Column) -> Column:
        """Return a key's state partition, as Spark's shuffle does."""
        return F.pmod(F.hash(key), F.lit(self.partitions))

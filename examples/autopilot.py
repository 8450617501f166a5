"""A plain PySpark streaming job, and the three lines that have it looked after: the import, and the two around `watch`.

python examples/autopilot.py        # on three executors of this machine; a real job has its own master
"""

import logging

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from elastream import Autopilot

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")

spark = (
    SparkSession.builder.master("local-cluster[3,1,700]")
    .config("spark.executor.memory", "600m")
    .config("spark.sql.shuffle.partitions", 12)
    .config("spark.ui.showConsoleProgress", False)
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)

# A few users do most of what is done, as everywhere: their state partitions are heavier than others.
events = spark.readStream.format("rate").option("rowsPerSecond", 20_000).load()
users = events.withColumn("user", F.floor(F.pow(F.rand(seed=1), 4) * 10_000))
per_user = users.groupBy("user").agg(F.count("*").alias("events"), F.max("timestamp").alias("last"))
query = per_user.writeStream.outputMode("update").format("noop").trigger(processingTime="1 second").start()

with Autopilot(spark, target_latency="2s").watch(query):
    query.awaitTermination(120)

query.stop()
spark.stop()

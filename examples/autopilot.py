"""A plain PySpark streaming job with Autopilot: three added lines, the import and the two around `watch`.

python examples/autopilot.py        # on three executors of this machine; a real job has its own master
"""

import hashlib
import os
import sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from elastream import Autopilot

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers use this Python, not the system's

spark = (
    SparkSession.builder.master("local-cluster[3,1,700]")
    .config("spark.executor.memory", "600m")
    .config("spark.sql.shuffle.partitions", 12)
    .config("spark.ui.showConsoleProgress", False)
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)


def check(user, events, state):
    """Counts a user's events and checks the signature of each, which takes most of the time."""
    seen = state.get[0] if state.exists else 0
    for part in events:
        for value in part["value"]:
            hashlib.pbkdf2_hmac("sha256", str(value).encode(), b"salt", 1500)
        seen += len(part)
    state.update((seen,))
    yield pd.DataFrame({"user": [user[0]], "events": [seen]})


# Skewed keys: a few users cause most events, so that their state partitions have a higher load.
events = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
users = events.withColumn("user", F.floor(F.pow(F.rand(seed=1), 4) * 100)).groupBy("user")
per_user = users.applyInPandasWithState(check, "user long, events long", "seen long", "update", "NoTimeout")
query = per_user.writeStream.outputMode("update").format("noop").trigger(processingTime="2 seconds").start()

with Autopilot(spark, target_latency="5s").watch(query):
    query.awaitTermination(120)

query.stop()
spark.stop()

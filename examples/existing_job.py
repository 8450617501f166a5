"""An existing PySpark job as a dataflow: its functions stay, and one of them gets a cheaper alternate.

elastream run examples/existing_job.py
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from elastream import Alternate, Dataflow, Local, run
from elastream.dataflow.endpoints import collect, records
from elastream.loads import ramp

URLS = ["https://shop.example/books/1?ref=mail", "https://shop.example/music/2", "https://shop.example/", "no url"]
CLICKS = [{"user": n % 5, "url": URLS[n % len(URLS)]} for n in range(100)]


# -- the job, as it was ------------------------------------------------------------------------------------------------


def parsed(clicks: DataFrame) -> DataFrame:
    """Host, section and referrer of each URL."""
    part = {"host": "HOST", "path": "PATH", "ref": "QUERY"}
    clicks = clicks.select("user", *(F.expr(f"try_parse_url(url, '{what}')").alias(name) for name, what in part.items()))
    return clicks.select("user", "host", F.split("path", "/")[1].alias("section"), "ref").where("host IS NOT NULL")


def parsed_roughly(clicks: DataFrame) -> DataFrame:
    """The same columns by position, without checking the URL."""
    part = F.split("url", "/")
    section = F.regexp_replace(F.try_element_at(part, F.lit(4)), r"\?.*", "")
    known = clicks.select("user", F.try_element_at(part, F.lit(3)).alias("host"), section.alias("section"))
    return known.withColumn("ref", F.lit(None).cast("string")).where("host IS NOT NULL")


def users(spark: SparkSession) -> DataFrame:
    """Names of the users."""
    return spark.createDataFrame([(n, f"user {n}") for n in range(5)], "user long, name string")


# -- the same as a dataflow --------------------------------------------------------------------------------------------

flow = Dataflow("existing_job")
clicks = flow.source(records(CLICKS, "user long, url string"), load=ramp("100/s", "2k/s", over="20s").then_back())
ways = [Alternate("exact", parsed, cost="20us"), Alternate("rough", parsed_roughly, value=0.8, cost="8us")]
named = clicks.transform(ways, name="parse").join(users, on="user").where("section <> ''")
named.key_by("name", "section").count().where("count > 10").sink(collect("clicks"))

run(flow, cloud=Local(max_hosts=2), target_latency="3s", state_partitions=2)

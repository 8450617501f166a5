"""The Spark plant: compiles a dataflow to Structured Streaming, runs it on leased worker processes, observes and acts.

Importing it raises EnvironmentProblem on a release of Spark that nothing here works with.
"""

from pyspark import __version__ as SPARK

from elastream.model.errors import EnvironmentProblem
from elastream.spark.jvm.releases import refusal

if REFUSAL := refusal(SPARK):
    raise EnvironmentProblem(REFUSAL)

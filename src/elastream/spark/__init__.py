"""The Spark plant: compiles a dataflow to Structured Streaming, runs it on leased worker processes, observes and acts.

Importing it raises EnvironmentProblem on an unsupported release of Spark.
"""

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.releases import installed, refusal

if (SPARK := installed()) and (REFUSAL := refusal(SPARK)):
    raise EnvironmentProblem(REFUSAL)

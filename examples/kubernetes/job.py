"""The word count as a job in a cluster of Kubernetes: the chart starts it, and its executors are pods that come and go.

It goes on with its newest run where there is one: the driver's pod may be moved to another node at any time.
"""

import os
from pathlib import Path

from elastream import Dataflow, run
from elastream.clouds import Kubernetes
from elastream.dataflow.endpoints import parquet, text_files
from elastream.loads import constant, ramp
from elastream.policies import Threshold

# What the chart's driver finds in its environment.
JOB = {name: value for name, value in os.environ.items() if name.startswith("JOB_")}
RUNS = Path(JOB.get("JOB_RUNS", "/runs"))
# The volume of the run's folder, in the pods of executors as in the driver's.
VOLUME = "spark.kubernetes.executor.volumes.persistentVolumeClaim.runs"
SETTINGS = {
    f"{VOLUME}.mount.path": str(RUNS),
    f"{VOLUME}.options.claimName": JOB.get("JOB_CLAIM", "runs"),
    # Pods of executors belong to the driver's pod, so that Kubernetes removes them with it.
    "spark.kubernetes.driver.pod.name": JOB.get("JOB_POD", ""),
}

if __name__ == "__main__":
    flow = Dataflow("word_count")
    load = ramp("1k/s", "40k/s", over="10min").then(constant("40k/s"))
    lines = flow.source(text_files(f"{RUNS}/books/*.txt"), load=load)
    words = lines.flat_map(str.split, returns="word string", max_duration="250ms", cores=0.25)
    words.key_by("word").count().sink(parquet())
    cloud = Kubernetes(
        JOB.get("JOB_IMAGE", "registry.example/word-count:1"),
        namespace=JOB.get("JOB_NAMESPACE", "streaming"),
        cores=1,
        memory="2 GB",
        price=0.05,
        max_hosts=8,
        service_account=JOB.get("JOB_SERVICE_ACCOUNT", ""),
        shared=True,
        settings=SETTINGS,
    )
    earlier = max(RUNS.glob("word_count-*/run.json"), default=None)
    run(
        flow,
        policy=Threshold(),
        cloud=cloud,
        target_latency="5s",
        runs=RUNS,
        resume=None if earlier is None else earlier.parent,
    )

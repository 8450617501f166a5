"""What a warm-up needs on an executor."""

import subprocess
import sys

from pyspark.cloudpickle import dumps

from elastream.spark.hosts.warmup import ROWS_PER_TASK, _touch

EXECUTOR = """
import pickle, sys
sys.modules["elastream"] = None
print([batch.num_rows for batch in pickle.load(sys.stdin.buffer)([0])])
"""


def test_a_warm_up_needs_no_elastream_on_the_executor():
    ran = subprocess.run([sys.executable, "-c", EXECUTOR], input=dumps(_touch()), capture_output=True, check=True)
    assert ran.stdout.decode().strip() == f"[{ROWS_PER_TASK}]"

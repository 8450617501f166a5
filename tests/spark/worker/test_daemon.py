import json
import os
import subprocess
import sys

FORKED = """
import json, os, sys
from elastream.spark.worker.daemon import preload
sys.path.insert(0, "/somewhere/pyspark.zip")
preload()
loaded, answers = set(sys.modules), []
import pyarrow as pa, pyarrow.compute as pc
for number in range(8):
    reads, writes = os.pipe()
    if os.fork() == 0:
        table = pa.table({"a": pa.array(range(200_000))}).group_by("a").aggregate([("a", "sum")])
        os.write(writes, json.dumps([table.num_rows, sys.path.index("/somewhere/pyspark.zip") > 1]).encode())
        os._exit(0)
    os.close(writes)
    answers.append(json.loads(os.read(reads, 4096)))
print(json.dumps(answers))
"""


def test_workers_forked_from_a_daemon_compute_with_arrow_threads():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, env=dict(os.environ))
    assert json.loads(done.stdout) == [[200_000, True]] * 8, done.stderr

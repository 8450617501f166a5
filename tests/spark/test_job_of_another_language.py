"""A job in Java that is submitted to Spark, with Autopilot beside it in a process of its own."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

from elastream.clouds.local.java import find_java, spark_home
from elastream.spark.jvm.jars import COMPILER

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = """
public class Job {
    public static void main(String[] arguments) throws Exception {
        org.apache.spark.sql.SparkSession spark = org.apache.spark.sql.SparkSession.builder().getOrCreate();
        org.apache.spark.sql.streaming.StreamingQuery query = spark.readStream().format("rate").load()
            .groupBy("value", new String[0]).count()
            .writeStream().queryName("counted").outputMode("update").format("noop").start();
        while (query.recentProgress().length < 3) Thread.sleep(200L);
        Thread.sleep(3000L);
        query.stop();
        spark.stop();
        System.out.println("job ended");
    }
}
"""


def job(folder: Path) -> Path:
    (folder / "Job.java").write_text(JOB)
    jars = spark_home() / "jars"
    command = [str(find_java()), "-cp", f"{jars}/*", COMPILER, "-d", str(folder)]
    path = ":".join(map(str, sorted(jars.glob("*.jar"))))
    subprocess.run([*command, "-classpath", path, str(folder / "Job.java")], check=True, capture_output=True)
    with zipfile.ZipFile(folder / "job.jar", "w") as packed:
        packed.write(folder / "Job.class", "Job.class")
    return folder / "job.jar"


def test_autopilot_watches_a_job_in_java_and_ends_with_it(tmp_path: Path) -> None:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    submit = ["spark-submit", "--master", "local[2]", "--class", "Job"]
    submit += [word for each in settings.items() for word in ("--conf", "=".join(each))]
    command = [
        "-c",
        "from elastream.cli import main; main()",
        "autopilot",
        "--period",
        "1s",
        "--folder",
        str(tmp_path / "run"),
    ]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, *command, *submit, str(job(tmp_path))],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "job ended" in done.stdout
    assert "autopilot watches counted" in done.stderr
    assert "autopilot stopped: the application ended" in done.stderr
    assert (tmp_path / "run" / "recording.jsonl").exists()
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(each.info["cmdline"] or ())]

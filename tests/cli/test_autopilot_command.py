"""`elastream autopilot`: a job that knows nothing of Autopilot, with Autopilot beside it."""

import sys
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from elastream.api import autopilot
from elastream.cli.autopilot import LISTENER, submit_options
from elastream.cli.beside import packed, unpacked
from elastream.errors import InputError
from elastream.settings import Address
from support.commands import invoke

JOB = """
import sys
from pyspark.sql import SparkSession
from beside import CONTEXT
SparkSession(CONTEXT)
SparkSession(CONTEXT)  # a second session of the application
print("job", *sys.argv[1:])
"""


@pytest.fixture
def made(monkeypatch):
    """Record the Autopilots that a job gets; no session has a JVM."""
    made = []

    class Pilot:
        def __init__(self, session, **settings):
            made.append((session.sparkContext.applicationId, settings))

        def watch(self): ...

        def stop(self, reason):
            made.append(reason)

    def opened(session, context):
        session.__dict__["sparkContext"] = context

    monkeypatch.setattr(SparkSession, "__init__", opened)
    monkeypatch.setattr(SparkSession, "sparkContext", None)
    monkeypatch.setattr(autopilot, "Autopilot", Pilot)
    monkeypatch.setattr(sys, "argv", ["elastream"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    return made


def test_job_gets_one_autopilot_and_its_own_arguments(made, tmp_path, monkeypatch):
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setitem(sys.modules, "beside", SimpleNamespace(CONTEXT=SimpleNamespace(applicationId="app-1")))
    words = ["autopilot", "--target-latency", "2s", "--max-hosts", "8", str(tmp_path / "job.py"), "--max-hosts", "x"]
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (0, "job --max-hosts x\n"), result.output
    assert made == [("app-1", {"target_latency": 2.0, "max_hosts": 8})]


def test_next_session_of_a_job_ends_the_autopilot_of_the_one_before(made, tmp_path, monkeypatch):
    (tmp_path / "job.py").write_text(JOB + "CONTEXT.applicationId = 'app-2'\nSparkSession(CONTEXT)\n")
    monkeypatch.setitem(sys.modules, "beside", SimpleNamespace(CONTEXT=SimpleNamespace(applicationId="app-1")))
    assert invoke("autopilot", str(tmp_path / "job.py")).exit_code == 0
    assert made == [("app-1", {}), "its session ended", ("app-2", {})]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.py"], "elastream: there is no job nowhere.py: name a Python program, after the options of autopilot"),
        (["nowhere/spark-submit"], "elastream: there is no command nowhere/spark-submit: name Spark's spark-submit"),
        (["--min-hosts", "3", "--max-hosts", "2", __file__], "elastream: min_hosts 3 and max_hosts 2: 1 <= min_hosts"),
        (["--freshness", "1min", __file__], "elastream: --freshness: measurements are kept for later runs; name"),
        (
            ["--freshness", "1min", "spark-submit"],
            "elastream: --freshness works with Python programs and spark-pipelines, and not yet with spark-submit",
        ),
        (["spark-pipelines", "--master", "yarn"], "elastream: spark-pipelines: add `run`, as in spark-pipelines --master"),
        (
            ["--freshness", "1min", "--folder", "x", "--page", __file__],
            "elastream: --freshness: --page needs a continuous Autopilot",
        ),
    ],
)
def test_bad_option_is_one_sentence_before_the_job_starts(words, sentence):
    result = invoke("autopilot", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)


def test_listener_joins_the_options_of_a_submitted_job():
    job = [
        "--driver-class-path",
        "own.jar",
        "-v",
        "--conf",
        "spark.extraListeners=a.Listener",
        "--class=Main",
        "app.jar",
        "--x",
    ]
    ours = [
        "--driver-class-path",
        "our.jar:own.jar",
        "--conf",
        "k=v",
        "--conf",
        f"spark.extraListeners={LISTENER},a.Listener",
    ]
    assert submit_options(job, "our.jar", {"k": "v"}) == ["-v", "--class", "Main", *ours, "app.jar", "--x"]


def test_driver_on_the_cluster_is_refused():
    for words in (["--deploy-mode", "cluster"], ["--conf", "spark.submit.deployMode=cluster"]):
        with pytest.raises(InputError, match="use client mode"):
            submit_options([*words, "app.jar"], "our.jar", {})


def test_settings_reach_the_process_beside_a_submitted_job(monkeypatch, tmp_path):
    words, command = [], tmp_path / "spark-submit"
    command.touch(mode=0o755)
    monkeypatch.setattr("elastream.spark.jvm.jars.jar_of", lambda sources: "our.jar")
    monkeypatch.setattr("os.execv", lambda path, arguments: words.extend(arguments) or sys.exit(0))
    options = ["--metrics", "127.0.0.1:9400", "--target-latency", "2s", "--policy", "static:2", "--scaling", "max_hosts=4"]
    result = invoke("autopilot", *options, command, "job.jar")
    (word,) = (each for each in words if str(each).startswith("spark.elastream.autopilot="))
    settings = unpacked(word.partition("=")[2])
    assert (settings["metrics"], settings["target_latency"]) == (Address("127.0.0.1", 9400), 2.0), result.output
    assert settings["policy"] == "static:2"
    assert settings["scaling"].max_hosts == 4
    assert unpacked(packed(settings)) == settings

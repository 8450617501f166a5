"""Autopilot beside the application of a JVM: `python -m elastream.cli.beside SETTINGS`, which `AutopilotListener` starts.

The job may be written in Scala, Java, SQL or Python. It runs in the JVM that the gateway's variables name; this process
only adds a Python view of its session.
"""

import base64
import pickle
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastream.cli.options import named_by

# Seconds between two looks for a session.
LOOK_EVERY_S = 0.5


def packed(settings: Mapping[str, Any]) -> str:
    """Return settings of Autopilot as one word; policy and cloud are named, since their classes may be a file's."""
    return base64.b64encode(pickle.dumps(dict(settings))).decode()


def unpacked(word: str) -> dict[str, Any]:
    settings: dict[str, Any] = pickle.loads(base64.b64decode(word))
    return settings


# | state | event | next | action |
# | --- | --- | --- | --- |
# | waiting | the application has opened a session | watching | start Autopilot for all of its queries |
# | waiting | standard input ends | ended | nothing |
# | watching | standard input ends (application end) | ended | stop Autopilot |
def main() -> None:
    settings = unpacked(sys.argv[1])
    for kind in ("policy", "cloud"):
        if kind in settings:
            settings[kind] = named_by(settings[kind], kind, Path())
    over = threading.Event()
    threading.Thread(target=_await_end, args=(over,), daemon=True).start()
    session = _session(over)
    if session is None:
        return
    from elastream.api.autopilot import Autopilot

    pilot = Autopilot(session, **settings).watch()
    over.wait()
    pilot.stop("the application ended")


def _await_end(over: threading.Event) -> None:
    sys.stdin.buffer.read()
    over.set()


def _session(over: threading.Event) -> Any:
    """Return the application's session as PySpark's; None if the application ends without one."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # type: ignore[no-untyped-call]  # connects to the JVM that the environment names
    sessions = SparkSession._get_j_spark_session_class(gateway.jvm)
    while not over.is_set():
        session = sessions.getDefaultSession()
        if session.isDefined():
            context = gateway.jvm.JavaSparkContext(session.get().sparkContext())
            conf = SparkConf(_jvm=gateway.jvm, _jconf=context.getConf())
            return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf), session.get())
        time.sleep(LOOK_EVERY_S)
    return None


if __name__ == "__main__":
    main()

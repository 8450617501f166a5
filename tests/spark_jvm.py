"""One process of pytest, one JVM at a time: what a test module needs of its own JVM, it must start one for."""

from pyspark import SparkContext


def forget_jvm() -> None:
    """End the JVM that earlier sessions of this process left, so that the next session starts a new one."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None

"""What a session that someone else opened can do for whoever looks after its queries: asked once, told in sentences.

Nothing is tried that leaves a trace. What is missing is named with what follows from it, and everything that does not need
it goes on.
"""

from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.clouds.provider import lacks_as_provider
from elastream.model.errors import EnvironmentProblem, in_one_line
from elastream.model.units import duration
from elastream.spark.jvm.allocation import UNLIMITED
from elastream.spark.jvm.driver_side import DriverSide, TaskLoads
from elastream.spark.jvm.gateway import jvm_of

__all__ = ["Capabilities", "probe"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What there is, and a sentence in `lacking` for each thing that there is not.

    driver: how to ask the driver, None where nothing can be seen and therefore nothing done. task_loads: how to see what
    single tasks take, None where no partition is moved therefore. asks: whether executors can be asked for and given back.
    leases: whether the provider can be used. slots: tasks that an executor runs at once, 0 where that is not settled.
    allowed: executors that Spark may have as things stand.
    """

    driver: DriverSide | None
    task_loads: TaskLoads | None = None
    asks: bool = False
    leases: bool = False
    slots: int = 0
    allowed: int = UNLIMITED
    lacking: tuple[str, ...] = ()


def probe(spark: SparkSession, provider: object | None = None) -> Capabilities:
    """What `spark` can do, and whether `provider` leases hosts."""
    lacking: list[str] = []
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        return Capabilities(None, lacking=("this session is no classic one (Spark Connect): nothing can be seen or done",))
    try:
        driver = DriverSide(spark)
        session.streams().stateStoreCoordinator()
    except (EnvironmentProblem, Py4JError, TypeError, OSError) as error:
        return Capabilities(None, lacking=(f"nothing can be seen or done: {in_one_line(error)}",))
    task_loads = None
    try:
        task_loads = TaskLoads(spark)
    except EnvironmentProblem as error:
        lacking.append(f"no state partition is moved: {error}")
    if _setting(spark, "spark.locality.wait") in (0.0, None):
        lacking.append("spark.locality.wait is 0: tasks do not wait for the executor that holds their state, so that"
                       " partitions do not stay where they are put")  # fmt: skip
    asks = _asks(spark, lacking)
    lacks = "" if provider is None else lacks_as_provider(provider)
    leases = provider is not None and not lacks
    if lacks:
        lacking.append(f"hosts cannot be leased: {lacks}")
    slots = int(_conf(spark, "spark.executor.cores") or 0)
    return Capabilities(driver, task_loads, asks, leases, slots, _allowed(spark), tuple(lacking))


def _asks(spark: SparkSession, lacking: list[str]) -> bool:
    context: Any = spark.sparkContext._jsc
    jvm = jvm_of(spark)
    backend = context.sc().schedulerBackend()
    client = jvm.java.lang.Class.forName("org.apache.spark.ExecutorAllocationClient")
    if not client.isInstance(backend):
        lacking.append(
            f"{spark.sparkContext.master} has the driver for its only executor: there is nothing to balance between"
        )
        return False
    for setting in ("spark.dynamicAllocation.enabled", "spark.streaming.dynamicAllocation.enabled"):
        if (_conf(spark, setting) or "").lower() == "true":
            lacking.append(f"{setting} is on: Spark asks for executors and gives them back by itself, and is left to it")
            return False
    return True


def _allowed(spark: SparkSession) -> int:
    """On a cluster of Spark's own an application gets all there is room for; elsewhere what it asks for at its start."""
    if str(spark.sparkContext.master).startswith(("spark://", "local-cluster")):
        return UNLIMITED
    return int(_conf(spark, "spark.executor.instances") or 2)  # Spark's own default


def _conf(spark: SparkSession, name: str) -> str | None:
    found: str | None = spark.sparkContext.getConf().get(name)
    return found


def _setting(spark: SparkSession, name: str) -> float | None:
    text = _conf(spark, name) or "3s"  # Spark's own default
    return duration(float(text) / 1e3 if text.isdigit() else text)

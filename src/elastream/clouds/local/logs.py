"""What the executors of a local cluster write of themselves, and how much of it is kept."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

__all__ = ["LOGS", "quiet_executors"]

LOGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.executor.logs.rolling.strategy": "size",
        "spark.executor.logs.rolling.maxSize": "10000000",
        "spark.executor.logs.rolling.maxRetainedFiles": "3",
    }
)
"""How much of what an executor writes is kept, bytes."""

QUIET = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
"""Left alone, an executor tells of each task in twenty lines: 7 KB a micro-batch, for months."""


def quiet_executors(folder: Path) -> str:
    """The option of an executor's JVM with which it writes warnings only; its file is written into `folder`.

    Raises OSError where that is not possible.
    """
    file = folder / "executor-log4j2.properties"
    file.write_text(QUIET)
    return f"-Dlog4j2.configurationFile={file.as_uri()}"

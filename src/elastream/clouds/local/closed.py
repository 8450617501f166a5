"""What keeps other users of the machine out of a local cluster: secrets of its own, known to its own processes only.

Master, hosts and driver prove to each other that they know the cluster's secret; Spark's web pages want a token made with
another one. Neither is on a command line, which anybody can read: daemons read them from a file of mode 600, and the
driver's JVM gets its own by way of its gateway (`spark.jvm.session`). Spark hands the secret to executors in their
environment.
"""

import base64
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from elastream.clouds.local.processes import SECRET
from elastream.recording.directory import create_private

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


POOL_TOKEN = "ELASTREAM_POOL_TOKEN"
"""Environment variable that holds a pool's token where none is given: a program may be shown to others, a token may not."""

CLOSED: Mapping[str, str] = MappingProxyType(
    {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.network.crypto.authEngineVersion": "2",
    }
)
"""Settings of Spark by which nobody is listened to who does not know the secret, and nobody can read what is sent."""


def for_others(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the driver's environment that other processes of its run may see."""
    return {name: value for name, value in environment.items() if name not in (POOL_TOKEN, SECRET)}


class Secrets:
    """Of one cluster. shared: what all who talk in it have to know; None: it joins others, who ask for nothing."""

    def __init__(self, shared: str | None) -> None:
        self.shared = shared
        self._key = secrets.token_bytes(32)

    @classmethod
    def new(cls) -> "Secrets":
        """Of a cluster with a master of its own."""
        return cls(secrets.token_hex(32))

    @property
    def session_settings(self) -> Mapping[str, str]:
        """Settings of a session that knows `shared`."""
        return {} if self.shared is None else CLOSED

    def write(self, file: Path) -> None:
        """Write the settings of daemons to `file`, which only its owner can read."""
        settings = {
            **LOGS,
            "spark.ui.filters": "org.apache.spark.ui.JWSFilter",
            "spark.org.apache.spark.ui.JWSFilter.param.secretKey": _encoded(self._key),
        }
        if self.shared is not None:
            settings |= {**self.session_settings, "spark.authenticate.secret": self.shared}
        with create_private(file).open("w") as out:
            out.writelines(f"{name} {value}\n" for name, value in settings.items())

    @property
    def headers(self) -> Mapping[str, str]:
        """Of a request that the web pages answer: a JSON web signature."""
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": "elastream"}))
        return {"Authorization": f"Bearer {signed}.{_encoded(hmac.digest(self._key, signed.encode(), 'sha256'))}"}


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

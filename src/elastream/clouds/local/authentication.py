"""Secrets that keep other users of the machine out of a local cluster. None is on a command line."""

import base64
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from elastream.clouds.local.processes import SECRET
from elastream.recording.directory import create_private

# limits of an executor's log (bytes)
LOGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.executor.logs.rolling.strategy": "size",
        "spark.executor.logs.rolling.maxSize": "10000000",
        "spark.executor.logs.rolling.maxRetainedFiles": "3",
    }
)

# at the default level, an executor logs twenty lines per task: 7 KB per micro-batch, for months
QUIET = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


def quiet_executors(folder: Path) -> str:
    """Return the JVM option that limits executors to warnings; writes its file into `folder`."""
    file = folder / "executor-log4j2.properties"
    file.write_text(QUIET)
    return f"-Dlog4j2.configurationFile={file.as_uri()}"


# Environment variable with a pool's token: a program may be shown to others, a token may not.
POOL_TOKEN = "ELASTREAM_POOL_TOKEN"

# With these settings, Spark ignores peers that do not know the secret, and encrypts all messages.
CLOSED: Mapping[str, str] = MappingProxyType(
    {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.network.crypto.authEngineVersion": "2",
    }
)


def for_others(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the driver's environment that other processes of its run may see."""
    return {name: value for name, value in environment.items() if name not in (POOL_TOKEN, SECRET)}


class Secrets:
    """Secrets of one cluster; `shared` is None if its master asks for none."""

    def __init__(self, shared: str | None) -> None:
        self.shared = shared
        self._key = secrets.token_bytes(32)

    @classmethod
    def new(cls) -> "Secrets":
        return cls(secrets.token_hex(32))

    @property
    def session_settings(self) -> Mapping[str, str]:
        return {} if self.shared is None else CLOSED

    def write(self, file: Path) -> None:
        """Write the daemons' settings to `file`, readable only by its owner."""
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
        """Headers that Spark's web pages require: a JSON web signature."""
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": "elastream"}))
        return {"Authorization": f"Bearer {signed}.{_encoded(hmac.digest(self._key, signed.encode(), 'sha256'))}"}


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

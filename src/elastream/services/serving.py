"""Shared parts of the services: listen addresses, access tokens and refusals over HTTP."""

import hmac
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from elastream.documents.located import Loc, Located
from elastream.model.errors import EnvironmentProblem

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse

__all__ = ["Listen", "listening", "opens", "read_token", "refused"]

SHORTEST_TOKEN = 16
"""Fewest characters of a token; shorter ones can be guessed."""


def _host_and_port(written: object) -> tuple[str, int]:
    """`127.0.0.1:8470` or `[::1]:8470` as (host, port)."""
    host, _, port = str(written).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{written!r} is not an address and a port such as '127.0.0.1:8470'")
    return host.strip("[]"), int(port)


Listen = Annotated[tuple[str, int], BeforeValidator(_host_and_port)]
"""Where a service listens: (host, port)."""


def read_token(file: Located, loc: Loc, path: Path) -> str:
    """Read a token from a separate file, so that documents can be shared without it.

    Raises DataflowError, at `loc` of `file`, if it cannot be read or is too short.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise file.error(loc, f"{path} cannot be read: {reason}") from None
    if len(token) < SHORTEST_TOKEN or not token.isascii():
        raise file.error(loc, f"the token in {path} must have at least {SHORTEST_TOKEN} characters, all of them ASCII")
    return token


def listening(host: str, port: int) -> socket.socket:
    """Open a listening socket; raises EnvironmentProblem if that fails."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else str(error)
        raise EnvironmentProblem(f"cannot listen on {host}:{port}: {reason[:1].lower()}{reason[1:]}") from None


def opens(authorization: str | None, token: str) -> bool:
    """Whether the Authorization header has `token`; compares in constant time."""
    return hmac.compare_digest((authorization or "").encode(), f"Bearer {token}".encode())


def refused(status: int, sentence: str) -> "JSONResponse":
    """An error response with the reason."""
    from fastapi.responses import JSONResponse

    return JSONResponse({"error": sentence}, status)

"""What the services here have in common: where they listen, which token opens them, and what a refusal looks like."""

import hmac
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from elastream.documents.located import Loc, Located
from elastream.model.errors import EnvironmentProblem

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse

__all__ = ["Listen", "host_and_port", "listening", "opens", "read_token", "refused"]

SHORTEST_TOKEN = 16
"""Characters below which a token can be guessed."""


def host_and_port(written: str) -> tuple[str, int]:
    """`127.0.0.1:8470` or `[::1]:8470` taken apart; raises ValueError where it is neither."""
    host, _, port = written.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{written!r} is not an address and a port such as '127.0.0.1:8470'")
    return host.strip("[]"), int(port)


def _checked(written: str) -> str:
    host_and_port(written)
    return written


Listen = Annotated[str, AfterValidator(_checked)]
"""Where a service listens, as a document has it."""


def read_token(file: Located, loc: Loc, path: Path) -> str:
    """A token from a file of its own: documents are shown around, tokens are not.

    Raises DataflowError, at `loc` of `file`, where it cannot be read or can be guessed.
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
    """A socket that listens there; raises EnvironmentProblem where that cannot be."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else str(error)
        raise EnvironmentProblem(f"cannot listen on {host}:{port}: {reason[:1].lower()}{reason[1:]}") from None


def opens(authorization: str | None, token: str) -> bool:
    """Whether a request's header of that name bears the token; takes the same time for every wrong one."""
    return hmac.compare_digest((authorization or "").encode(), f"Bearer {token}".encode())


def refused(status: int, sentence: str) -> "JSONResponse":
    """An answer that says why not."""
    from fastapi.responses import JSONResponse

    return JSONResponse({"error": sentence}, status)

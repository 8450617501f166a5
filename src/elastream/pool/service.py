"""HTTP service of the arbiter of shared hosts.

Headers carry a shared token and a key that identifies each application; beyond this machine only over TLS.
"""

import asyncio
import hmac
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from elastream.errors import CloudError, ElastreamError, EnvironmentProblem, InputError
from elastream.pool.arbiter import ArbiterNode, Entitlement, UnknownMember
from elastream.recording.lines import JournalProblem
from elastream.sharing.messages import Claim, RegionReport

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import Lifespan

LOG = logging.getLogger("elastream.managers")
MAX_BODY_BYTES = 16 * 2**20  # a hundred thousand hosts are some two million bytes


def arbiter_service(
    node: ArbiterNode,
    token: str | None = None,
    *,
    period: float = 0.0,
    failed: Callable[[Exception], None] = lambda error: None,
) -> FastAPI:
    """Return the arbiter as a web application; GET of / shows the state.

    Args:
        token: Required of all requests; None for none.
        period: Seconds between rounds; 0 for rounds only with messages.
        failed: Called once when the journal cannot be written.
    """
    service = FastAPI(
        title=f"arbiter {node.offer.name}",
        lifespan=_rounds(node, period, failed),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    @service.middleware("http")
    async def check_request(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        authorization = request.headers.get("authorization", "").encode()
        if token is not None and not hmac.compare_digest(authorization, f"Bearer {token}".encode()):
            return error_response(401, "the token is wrong")
        length = request.headers.get("content-length", "")
        if request.method in ("POST", "PUT") and not (length.isdigit() and int(length) <= MAX_BODY_BYTES):
            return error_response(413, f"a message says how long it is, and has at most {MAX_BODY_BYTES} bytes")
        return await proceed(request)

    _add_error_handlers(service, failed)
    _add_routes(service, node)
    return service


def _add_error_handlers(service: FastAPI, failed: Callable[[Exception], None]) -> None:
    @service.exception_handler(UnknownMember)
    async def unknown(_: Request, error: UnknownMember) -> Response:
        return error_response(410, str(error))

    @service.exception_handler(CloudError)
    @service.exception_handler(InputError)
    async def denied(_: Request, error: ElastreamError) -> Response:
        return error_response(409, str(error))

    @service.exception_handler(JournalProblem)
    async def unwritten(_: Request, error: JournalProblem) -> Response:
        failed(error)
        return error_response(503, str(error))

    @service.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        return error_response(422, f"malformed request: {_first_problem(error)}")


def _add_routes(service: FastAPI, node: ArbiterNode) -> None:
    @service.get("/")
    def show() -> dict[str, Any]:
        return {"offer": asdict(node.offer), **_status(node)}

    @service.post("/applications/{name}")
    def join(name: str, body: Entitlement, key: Annotated[str, Header()] = "") -> dict[str, Any]:
        return {"key": node.join(name, body, key), "offer": asdict(node.offer)}

    @service.put("/applications/{name}")
    def claim(name: str, body: Claim, key: Annotated[str, Header()] = "") -> dict[str, Any]:
        if body.application != name:
            raise InputError(f"a claim of {body.application!r} came for {name!r}")
        return asdict(node.claim(body, key))

    @service.delete("/applications/{name}")
    def leave(name: str, key: Annotated[str, Header()] = "") -> dict[str, Any]:
        node.leave(name, key)
        return {}

    @service.put("/regions/{name}")
    def report(name: str, body: RegionReport) -> dict[str, Any]:
        if body.region != name:
            raise InputError(f"a report of {body.region!r} came for {name!r}")
        return asdict(node.report(body))


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise EnvironmentProblem."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else str(error)
        raise EnvironmentProblem(f"cannot listen on {host}:{port}: {reason[:1].lower()}{reason[1:]}") from None


def serve(
    node: ArbiterNode,
    listener: socket.socket,
    token: str | None = None,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    period: float = 0.5,
) -> None:
    """Serve at a listening socket until SIGTERM, or Ctrl-C, which raises KeyboardInterrupt at the end.

    With a certificate and its key, it serves TLS.

    Raises:
        JournalProblem: The journal cannot be written; only state on disk is sent.
    """
    import uvicorn

    problems: list[Exception] = []

    def failed(error: Exception) -> None:
        problems.append(error)
        server.should_exit = True

    # The server shuts down, then sends itself the signal again, which must be ignored.
    signal.signal(signal.SIGTERM, lambda *_: None)
    service = arbiter_service(node, token, period=period, failed=failed)
    server = uvicorn.Server(web_settings(service, certificate, key))
    server.run(sockets=[listener])
    if problems:
        raise problems[0]


def web_settings(service: Any, certificate: Path | None, key: Path | None) -> "uvicorn.Config":
    import uvicorn

    try:
        settings = uvicorn.Config(
            service,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=3,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        settings.load()
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{certificate} and {key} cannot be used for TLS: {error}") from None
    return settings


def error_response(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status)


def _rounds(node: ArbiterNode, period: float, failed: Callable[[Exception], None]) -> "Lifespan[FastAPI]":
    async def rounds() -> None:
        while True:
            await asyncio.sleep(period)
            try:
                await asyncio.to_thread(node.round)
            except Exception as error:
                LOG.exception("the arbiter cannot decide any more")
                return failed(error)

    @asynccontextmanager
    async def deciding(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(rounds()) if period else None
        yield
        if task is not None:
            task.cancel()

    return deciding


def _first_problem(error: RequestValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(str(step) for step in first["loc"] if step != "body")
    if first["type"] == "json_invalid":
        return "its body is not JSON"
    if first["type"] == "missing":
        return f"field {field!r} is missing" if field else "it has no body"
    message = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    return f"field {field!r}: {message}" if field else message


def _status(node: ArbiterNode) -> dict[str, Any]:
    state = node.state
    host_fields = ("kind", "region", "tenure", "owner", "why")
    member_fields = ("priority", "minimum", "critical", "refused")
    return {
        "hosts": {name: {field: getattr(record, field) for field in host_fields} for name, record in state.hosts.items()},
        "applications": {
            name: {"holds": len(member.hosts), "asks": len(member.asks)}
            | {field: getattr(member, field) for field in member_fields}
            for name, member in state.applications.items()
        },
        "regions": {name: {"hosts": len(party.hosts), "heard": party.reported_at} for name, party in state.regions.items()},
        "bill": node.bill(),
    }

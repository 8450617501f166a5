"""A pool of machines over HTTP, so that applications in processes of their own can share it: transport and nothing else.

Who may have what is `elastream.services.pool`'s to say; the other end is `elastream.clouds.pool`.
"""

import signal
import socket
import threading
from collections.abc import Mapping
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, Header, Request, Response

from elastream.model.errors import CloudError
from elastream.planning.managers import messages
from elastream.planning.sharing.messages import Claim
from elastream.services.pool import PoolNode, Stranger
from elastream.services.serving import opens, refused

__all__ = ["pool_service", "serve_pool"]

ROUND = 0.5
"""Seconds from one round to the next while nobody says anything."""


def pool_service(node: PoolNode, token: str | None = None) -> FastAPI:
    """The pool as an application for a web server; who joins or looks must bear `token`, where one is given."""
    service = FastAPI(title=f"pool {node.offer.name}", docs_url=None, redoc_url=None, openapi_url=None)

    @service.middleware("http")
    async def check_token(request: Request, proceed: Any) -> Any:
        if token is not None and not opens(request.headers.get("authorization"), token):
            return refused(401, "the token is wrong")
        return await proceed(request)

    @service.exception_handler(Stranger)
    async def stranger(_: Request, error: Stranger) -> Response:
        return refused(410, str(error))

    @service.exception_handler(CloudError)
    async def denied(_: Request, error: CloudError) -> Response:
        return refused(409, str(error))

    @service.exception_handler(ValueError)
    @service.exception_handler(KeyError)
    @service.exception_handler(TypeError)
    async def misunderstood(_: Request, error: Exception) -> Response:
        return refused(422, f"this says nothing to a pool: {type(error).__name__}: {error}")

    @service.get("/")
    def look() -> dict[str, Any]:
        return {"offer": node.offer.to_json(), **_status(node)}

    @service.post("/applications/{name}")
    def join(name: str, body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        key = node.join(name, float(body["priority"]), int(body["minimum"]))
        return {"key": key, "offer": node.offer.to_json()}

    @service.put("/applications/{name}")
    def claim(name: str, body: Annotated[dict[str, Any], Body()], key: Annotated[str, Header()]) -> dict[str, Any]:
        said = Claim.from_json(body)
        if said.holding.application != name:
            raise ValueError(f"a claim of {said.holding.application!r} for {name!r}")
        view, owed = node.claim(said, key)
        return {"view": messages.to_json(view), "owed": owed}

    @service.delete("/applications/{name}")
    def leave(name: str, key: Annotated[str, Header()]) -> dict[str, Any]:
        node.leave(name, key)
        return {}

    return service


def serve_pool(node: PoolNode, at: socket.socket, token: str | None = None) -> None:
    """Serve the pool at a listening socket until SIGTERM, or Ctrl-C, which raises KeyboardInterrupt at the end."""
    ended = threading.Event()

    def rounds() -> None:
        while not ended.wait(ROUND):
            node.round()

    passing = threading.Thread(target=rounds, name="pool", daemon=True)
    passing.start()
    # The server ends in order, and then sends itself the signal again, to which the rest is to be deaf.
    signal.signal(signal.SIGTERM, lambda *_: None)
    settings = uvicorn.Config(pool_service(node, token), log_level="error", timeout_graceful_shutdown=3, lifespan="off")
    try:
        uvicorn.Server(settings).run(sockets=[at])
    finally:
        ended.set()
        passing.join()


def _status(node: PoolNode) -> Mapping[str, Any]:
    """Who holds what, and who owes what."""
    state = node.state
    return {
        "machines": {
            name: {"kind": machine.kind, "stance": machine.stance.value, "owner": machine.owner}
            for name, machine in state.machines.items()
        },
        "applications": {
            name: {
                "priority": member.priority,
                "minimum": member.minimum,
                "holds": len(state.owned(name)),
                "asks": len(member.asks),
                "critical": member.critical,
            }
            for name, member in state.members.items()
        },
        "bill": node.bill(),
    }

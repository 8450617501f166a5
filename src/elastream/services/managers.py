"""Managers in processes of their own, over HTTP: the infrastructure manager serves, region and application managers call.

Both conversations have one form: the caller posts its whole stance, the answer is what is in force for it. So nobody needs
a server but the infrastructure manager, and a message that is lost, late or doubled is made good by the next one. What is
decided and what is kept on disk is `elastream.services.nodes`'. Bodies are checked at this edge; who calls is known by a
token that all share. It travels in a header: on a network that others can listen to, put TLS in front.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, overload

import httpx
from pydantic import TypeAdapter

from elastream.model.errors import ElastreamError, EnvironmentProblem, InputError
from elastream.planning.managers.messages import Holding, RegionOrder, RegionReport, View
from elastream.recording.lines import JournalProblem
from elastream.services.nodes import InfrastructureNode, RegionNode
from elastream.services.serving import listening, opens, refused

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["InfrastructureLink", "follow", "infrastructure_app", "serve"]

LOG = logging.getLogger("elastream.managers")
FORMS: Mapping[type[RegionReport | Holding], tuple[str, TypeAdapter[Any]]] = {
    RegionReport: ("/region", TypeAdapter(RegionOrder)),
    Holding: ("/application", TypeAdapter(View)),
}
"""Where each kind of message is posted, and what answers it."""
ANSWER_WITHIN = 5.0
"""Seconds after which a message counts as lost."""
LARGEST = 16 * 2**20
"""Bytes of a message beyond which it is not looked at: a hundred thousand hosts are some two million."""


class InfrastructureLink:
    """What a region or an application has of its infrastructure manager: `tell` it something, and get what is in force.

    url: where it serves. transport: another than the network, for tests. May be closed and is a context manager.
    """

    def __init__(
        self, url: str, token: str, *, timeout: float = ANSWER_WITHIN, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"}
        # A proxy of the surroundings must not get the token, nor hold a message back.
        self._client = httpx.Client(headers=headers, timeout=timeout, transport=transport, trust_env=False)

    @overload
    def tell(self, message: RegionReport) -> RegionOrder: ...
    @overload
    def tell(self, message: Holding) -> View: ...
    def tell(self, message: RegionReport | Holding) -> RegionOrder | View:
        """Post a message; the answer.

        Raises EnvironmentProblem where none comes in time, and InputError where the infrastructure manager will have
        nothing to do with it, with its reason.
        """
        path, form = FORMS[type(message)]
        try:
            response = self._client.post(self.url + path, json=asdict(message))
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise EnvironmentProblem(f"the infrastructure manager at {self.url} does not answer: {said}") from None
        if response.status_code >= 500:
            raise EnvironmentProblem(f"the infrastructure manager at {self.url} fails: HTTP {response.status_code}")
        try:
            if response.status_code != 200:
                raise InputError(f"the infrastructure manager at {self.url} refuses: {response.json()['error']}")
            answer: RegionOrder | View = form.validate_json(response.content)
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"what answers at {self.url} is no infrastructure manager (HTTP {response.status_code})"
            ) from None
        return answer

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def __enter__(self) -> "InfrastructureLink":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def infrastructure_app(
    node: InfrastructureNode,
    token: str,
    period: float,
    *,
    clock: Callable[[], float] = time.time,
    failed: Callable[[ElastreamError], None] = lambda error: None,
) -> "FastAPI":
    """The server of an infrastructure manager, which decides every `period` seconds as long as it runs.

    POST /region and POST /application take messages, GET /hosts tells where each host stands. All ask for the token.
    failed: told, once, that it cannot decide any more, because its journal cannot be written.
    """
    from fastapi import FastAPI, Request, Response
    from fastapi.exceptions import RequestValidationError

    async def rounds() -> None:
        while True:
            await asyncio.sleep(period)
            try:
                await asyncio.to_thread(node.round, clock())
            except ElastreamError as error:
                return failed(error)

    @asynccontextmanager
    async def deciding(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(rounds())
        yield
        task.cancel()

    app = FastAPI(
        title="Elastream infrastructure manager", lifespan=deciding, docs_url=None, redoc_url=None, openapi_url=None
    )

    @app.middleware("http")
    async def door(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Who may not come in is told so before anything of a message is read."""
        if not opens(request.headers.get("authorization"), token):
            return refused(401, "the token is not the one that managers here share")
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not (length.isdigit() and int(length) <= LARGEST):
            return refused(413, f"a message says how long it is, and has at most {LARGEST} bytes")
        return await call_next(request)

    @app.post("/region")
    def region(report: RegionReport) -> Any:
        return asdict(node.hear(report))

    @app.post("/application")
    def application(holding: Holding) -> Any:
        return asdict(node.hear(holding))

    @app.get("/hosts")
    def hosts() -> Any:
        return {
            name: {"region": r.region, "type": r.type, "stance": r.stance.value, "owner": r.owner}
            for name, r in node.state.hosts.items()
        }

    @app.exception_handler(InputError)
    async def unwelcome(_: Request, error: InputError) -> Response:
        return refused(409, str(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        return refused(422, f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}")

    return app


def serve(node: InfrastructureNode, token: str, address: str, port: int, period: float) -> None:
    """Serve until a signal says to stop.

    Raises EnvironmentProblem where the address is not to be had, and where the journal cannot be written any more: what is
    not on disk is not said.
    """
    import uvicorn

    listener = listening(address, port)
    problems: list[ElastreamError] = []

    def failed(error: ElastreamError) -> None:
        problems.append(error)
        server.should_exit = True

    app = infrastructure_app(node, token, period, failed=failed)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    server.run(sockets=[listener])
    if problems:
        raise problems[0]


def follow(
    node: RegionNode,
    link: InfrastructureLink,
    period: float,
    *,
    stopped: Callable[[float], bool],
    clock: Callable[[], float] = time.time,
) -> None:
    """Run a region manager: report, take the order, do it, wait, until `stopped(seconds to wait)` says so.

    As long as the infrastructure manager cannot be heard, the region goes on with its last grants, and says so once. One
    that refuses the very first report ends it (InputError): something is set up wrongly. Later it is a warning each time. A
    journal that cannot be written ends it (JournalProblem).
    """
    silent, met = "", False
    while True:
        try:
            order = link.tell(node.report(clock()))
            node.hear(order, clock())
            for sentence in _refusals(order):
                LOG.info("%s", sentence)
            if order.term and (strays := node.strays()):
                LOG.warning("leased, and on no order: %s", ", ".join(strays))
            if silent:
                LOG.warning("the infrastructure manager at %s is heard again", link.url)
            silent, met = "", True
        except JournalProblem:
            raise
        except EnvironmentProblem as problem:
            if not silent:
                LOG.warning("%s; region %s goes on with its last grants", problem, node.state.region.name)
            silent = str(problem)
        except InputError as problem:
            if not met:
                raise
            LOG.warning("%s; region %s goes on with its last grants", problem, node.state.region.name)
        for sentence in node.act():
            LOG.warning("%s; it is tried again", sentence)
        if stopped(period):
            return


def _refusals(order: RegionOrder) -> list[str]:
    """What its region asked for in vain, and who refused it."""
    said = [f"no more hosts in {order.region}: infrastructure manager: {order.refused}"] if order.refused else []
    return said + [f"{host} stays: {manager}: {why}" for host, manager, why in order.kept]

"""Server of the live page: HTML, server-sent events, and actions with a second confirmation."""

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from elastream.core.wording import counted
from elastream.dashboard.page.feed import LIVE, SPANS, Feed, unreadable
from elastream.dashboard.page.what_if import POLICIES, WhatIf
from elastream.errors import ElastreamError, InputError, in_one_line
from elastream.recording.request_log import Request as Wish
from elastream.recording.request_log import RequestLog
from elastream.report.template import rendered

log = logging.getLogger(__name__)

# Seconds between two looks at the folders, at least and at most, and the part of a core that they and the drawing may take.
LOOK_S, LONGEST_LOOK_S, SHARE = 1.0, 10.0, 0.05
# Seconds between two pictures while a long recording is read.
BEHIND_S = 3.0
# Seconds for which a confirmation is valid, and the most that wait.
CONFIRM_S, MOST_CONFIRMATIONS = 120.0, 100
# Seconds after which an idle connection gets a comment, so that both sides notice a broken one.
BEAT_S = 15.0
BY = "page"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Guarded:
    """Answers 401 and nothing else unless a request has the token: in its cookie, or once in its address."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        # Browsers keep cookies by host alone: each page of a host has one of its own.
        cookie = f"elastream-{(scope.get('server') or ('', 0))[1]}"
        if secrets.compare_digest(request.cookies.get(cookie, "").encode(), self._token.encode()):
            await self._app(scope, receive, send)
        elif secrets.compare_digest(request.query_params.get("token", "").encode(), self._token.encode()):
            answer = RedirectResponse("/", 303, headers=HEADERS)
            answer.set_cookie(cookie, self._token, httponly=True, samesite="strict")
            await answer(scope, receive, send)
        else:
            await Response(status_code=401, headers=HEADERS)(scope, receive, send)


class Page:
    """The runs on one page."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.feeds = [Feed(root) for root in roots]
        self.watchers, self.left = 0, time.monotonic()
        self._failures: dict[int, str] = {}
        self._confirmations: dict[str, tuple[float, str, Callable[[], str]]] = {}
        self._used = 0.0  # CPU seconds since the last look
        self._closing = False
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        self._what_if = [WhatIf(self._tell) for _ in roots]

    def app(self, token: str | None) -> ASGIApp:
        """Return the application. token: None admits everyone."""
        routes = [
            Route("/", self._html),
            Route("/live.js", self._script),
            Route("/events", self._events),
            Route("/runs/{run:int}/actions", self._act, methods=["POST"]),
            Route("/runs/{run:int}/what-if", self._replay, methods=["POST"]),
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan)
        return app if token is None else Guarded(app, token)

    def close(self) -> None:
        self._closing = True
        self._news.set()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        look = asyncio.create_task(self._look())
        try:
            yield
        finally:
            look.cancel()
            for each in self._what_if:
                each.close()

    async def _look(self) -> None:
        """Read the folders for ever, at most for a part `SHARE` of the time once all is read."""
        fresh, shown = False, time.monotonic()
        while True:
            async with self._lock:
                changed = [await asyncio.to_thread(self._update, run) for run in range(len(self.feeds))]
            used, self._used = self._used, 0.0
            behind = any(feed.behind for feed in self.feeds)
            fresh = fresh or any(changed)
            if fresh and (not behind or time.monotonic() - shown >= BEHIND_S):
                self._tell()
                fresh, shown = False, time.monotonic()
            await asyncio.sleep(0.01 if behind else min(max(LOOK_S, used / SHARE), LONGEST_LOOK_S))

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _update(self, run: int) -> bool:
        try:
            began = time.thread_time()
            changed = self.feeds[run].update()
            self._used += time.thread_time() - began
        except Exception as error:
            if not isinstance(error, ElastreamError):
                log.warning("%s cannot be read", self.feeds[run].name, exc_info=True)
            failure = in_one_line(error)
            changed = self._failures.get(run) != failure
            self._failures[run] = failure
            return changed
        return bool(self._failures.pop(run, "")) or changed

    def _pieces(self, run: int, span: str) -> Mapping[str, str]:
        feed = self.feeds[run]
        if run in self._failures:
            return {"head": unreadable(feed.directory.root, ElastreamError(self._failures[run]))}
        began = time.thread_time()
        pieces = feed.pieces(span)
        self._used += time.thread_time() - began
        more = {"live": json.dumps(feed.state.state in LIVE), "state": json.dumps(feed.state.state)}
        return {**pieces, **more, "what_if": self._what_if[run].html}

    async def _html(self, request: Request) -> Response:
        runs = [(number, feed.name) for number, feed in enumerate(self.feeds)]
        title = self.feeds[0].state.manifest.flow
        text = rendered("live.html.j2", runs=runs, spans=list(SPANS), policies=POLICIES, title=title)
        return HTMLResponse(text, headers=HEADERS)

    async def _script(self, request: Request) -> Response:
        text = files("elastream.report").joinpath("templates", "live.js").read_text(encoding="utf-8")
        return Response(text, media_type="text/javascript", headers=HEADERS)

    async def _events(self, request: Request) -> Response:
        span = request.query_params.get("span", "1 h")
        if span not in SPANS:
            return JSONResponse({"error": f"span {span!r} is none of {', '.join(SPANS)}"}, 400, headers=HEADERS)
        return StreamingResponse(self._stream(span), media_type="text/event-stream", headers=HEADERS)

    async def _stream(self, span: str) -> AsyncIterator[str]:
        sent: dict[tuple[int, str], str] = {}
        self.watchers += 1
        try:
            yield "retry: 2000\n\n"
            while not self._closing:
                news = self._news
                for run in range(len(self.feeds)):
                    async with self._lock:
                        pieces = await asyncio.to_thread(self._pieces, run, span)
                    fresh = {name: text for name, text in pieces.items() if sent.get((run, name)) != text}
                    sent |= {(run, name): text for name, text in fresh.items()}
                    if fresh:
                        yield f"data: {json.dumps({'run': run, 'pieces': fresh})}\n\n"
                try:
                    await asyncio.wait_for(news.wait(), BEAT_S)
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self.watchers -= 1
            self.left = time.monotonic()

    async def _replay(self, request: Request) -> Response:
        run = request.path_params["run"]
        try:
            fields = await request.json()
            if not isinstance(fields, dict) or not 0 <= run < len(self.feeds):
                raise InputError("this is not a replay of a run on this page")
            if any(each.running for each in self._what_if):
                raise InputError("another replay goes on: wait for its figures")
            self._what_if[run].start(self.feeds[run].directory.root, fields)
            return JSONResponse({"done": ""}, headers=HEADERS)
        except (ValueError, ElastreamError) as error:
            return JSONResponse({"error": in_one_line(error)}, 400, headers=HEADERS)

    async def _act(self, request: Request) -> Response:
        """Answer an action with what it does and a key; do it when the key comes back."""
        run = request.path_params["run"]
        try:
            fields = await request.json()
            if not isinstance(fields, dict) or not 0 <= run < len(self.feeds):
                raise InputError("this is not an action of a run on this page")
            if "confirm" in fields:
                async with self._lock:  # it may read the feed
                    sentence = await asyncio.to_thread(self._confirmed, str(fields["confirm"]))
                return JSONResponse({"done": sentence}, headers=HEADERS)
            sentence, act = self._action(self.feeds[run], fields)
        except (ValueError, ElastreamError) as error:
            return JSONResponse({"error": in_one_line(error)}, 400, headers=HEADERS)
        key, now = secrets.token_urlsafe(), time.monotonic()
        waiting = {each: wish for each, wish in self._confirmations.items() if now - wish[0] < CONFIRM_S}
        self._confirmations = dict([*waiting.items(), (key, (now, sentence, act))][-MOST_CONFIRMATIONS:])
        return JSONResponse({"sentence": sentence, "confirm": key}, headers=HEADERS)

    def _confirmed(self, key: str) -> str:
        began, sentence, act = self._confirmations.pop(key, (-CONFIRM_S, "", str))
        if not sentence or time.monotonic() - began >= CONFIRM_S:
            raise InputError("this confirmation is not valid any more: request the action again")
        return act()

    def _action(self, feed: Feed, fields: Mapping[str, Any]) -> tuple[str, Callable[[], str]]:  # noqa: C901
        if not feed.state.live:
            raise InputError(f"{feed.name} is not live: it is {feed.state.state}")
        requests = RequestLog(feed.directory.requests)

        def journaled(wish: Wish, *also: Callable[[], object]) -> Callable[[], str]:
            def act() -> str:
                requests.append(wish)
                for each in also:
                    each()
                return f"{wish.action} of {feed.name} is requested"

            return act

        match fields.get("action"):
            case "pause":
                sentence = f"Pause {feed.name}? Its controller plans and records, but applies nothing. Queries go on."
                return sentence, journaled(Wish("pause", BY), feed.directory.pause)
            case "unpause":
                return f"Resume {feed.name}? Its controller applies its plans again.", journaled(
                    Wish("unpause", BY), feed.directory.unpause
                )
            case "bounds":
                least, most = _count(fields, "min_hosts"), _count(fields, "max_hosts")
                if least and most and least > most:
                    raise InputError(f"at least {least} hosts and at most {most} contradict each other")
                allowed = feed.max_hosts
                if max(least, most) > allowed:
                    raise InputError(f"the run itself allows at most {counted(allowed, 'host')}")
                wish = Wish("bounds", BY, min_hosts=least, max_hosts=most)
                bounds = wish.bounds or "the run's own bounds"
                return f"Let {feed.name} have {bounds}?", journaled(wish)
            case "drain":
                host = str(fields.get("host", ""))
                if host not in feed.running_hosts:
                    raise InputError(f"host {host!r} does not run")
                sentence = f"Drain host {host} of {feed.name}? Its tasks move, then it goes. The policy may lease another."
                return sentence, journaled(Wish("drain", BY, host=host))
            case "alternate":
                operator, _, name = str(fields.get("alternate", "")).partition("=")
                if (name and name not in feed.alternates.get(operator, ())) or operator not in feed.alternates:
                    raise InputError(f"operator {operator!r} has no alternate {name!r}")
                how = f"as {name}, whatever its policy chooses" if name else "as its policy chooses"
                return f"Run {operator} of {feed.name} {how}?", journaled(
                    Wish("alternate", BY, operator=operator, alternate=name)
                )
            case "approve" | "veto" as answer:
                if (held := feed.pending_leases) is None:
                    raise InputError("nothing waits for approval")
                if answer == "approve":
                    sentence = f"Let {feed.name} have {held.text}? This ends once it costs no more than its own limit."
                    return sentence, journaled(Wish("approve", BY, hourly=held.hourly))
                if not held.hosts:
                    raise InputError("no host is there yet: set bounds instead")
                sentence = f"Let {feed.name} have no more hosts than it has by then, now {held.hosts}?"
                return sentence, lambda: journaled(_veto(feed))()
        raise InputError(f"{fields.get('action')!r} is not an action of this page")


def _veto(feed: Feed) -> Wish:
    """Return the request for no more hosts than now."""
    if (held := feed.pending_leases) is None or not held.hosts:
        raise InputError("nothing waits for approval any more")
    earlier = next((each for each in reversed(feed.requests) if each.action == "bounds"), Wish("bounds", BY))
    most = min(held.hosts, earlier.max_hosts or held.hosts)
    return Wish("bounds", BY, min_hosts=min(most, earlier.min_hosts), max_hosts=most)


def _count(fields: Mapping[str, Any], name: str) -> int:
    text = str(fields.get(name) or "0")
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"{name} is {text!r}; it must be a whole number, or empty for the run's own")
    return int(text)

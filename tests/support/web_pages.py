"""Web sites of another program: a server of given pages."""

import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Page = str | Callable[[dict[str, str]], str]


@contextmanager
def served(pages: Mapping[str, Page], statuses: Mapping[str, int] | None = None, login: str = "") -> Iterator[str]:
    """Serve pages by path, text or a function of the query; yield the address. statuses: other ones than 200."""
    key = f"Basic {b64encode(login.encode()).decode()}" if login else None

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            page = pages.get(parts.path)
            status = 404 if page is None else (statuses or {}).get(parts.path, 200)
            self.send_response(status if self.headers.get("Authorization") == key else 401)
            self.end_headers()
            text = "" if page is None else page if isinstance(page, str) else page(dict(parse_qsl(parts.query)))
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

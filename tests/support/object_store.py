"""An object store in this process, which answers what Arrow's S3 client asks of one to read, and notes each request."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1000
MODIFIED = "2026-03-01T00:00:00.000Z"


class ObjectStore(ThreadingHTTPServer):
    """Objects of one bucket, by key. requests: LIST, HEAD or GET, one for each request."""

    daemon_threads = True

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.objects, self.requests = dict(sorted(objects.items())), list[str]()


class _Answers(BaseHTTPRequestHandler):
    server: ObjectStore
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if not key:
            self._list(bucket, {name: values[0] for name, values in parse_qs(parts.query).items()})
            return
        self._note("GET")
        content = self.server.objects.get(key)
        if content is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        begin, _, end = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        self._answer(206, content[int(begin) : int(end) + 1 if end else None])

    def do_HEAD(self) -> None:
        self._note("HEAD")
        content = self.server.objects.get(unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2])
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("Last-Modified", "Sun, 01 Mar 2026 00:00:00 GMT")
        self.end_headers()

    def _list(self, bucket: str, query: Mapping[str, str]) -> None:
        self._note("LIST")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", "")
        keys = [key for key in self.server.objects if key.startswith(prefix) and key > after]
        page = keys[: min(PAGE, int(query.get("max-keys", PAGE)))]
        folders = {prefix + key.removeprefix(prefix).partition(delimiter)[0] + delimiter for key in page if delimiter}
        own = [key for key in page if not delimiter or delimiter not in key.removeprefix(prefix)]
        more = len(page) < len(keys)
        answer = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[key])}</Size>"
            f"<LastModified>{MODIFIED}</LastModified></Contents>"
            for key in own
        )
        answer += "".join(
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders - set(own))
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        about = f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        self._answer(200, f"<ListBucketResult>{about}{token}{answer}</ListBucketResult>".encode())

    def _note(self, request: str) -> None:
        self.server.requests.append(request)

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def object_store(objects: Mapping[str, bytes]) -> Iterator[ObjectStore]:
    server = ObjectStore(objects)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()

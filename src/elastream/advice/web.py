"""Sources at an address: Spark's web interface, a history server, or Prometheus."""

import json
import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

from elastream.errors import InputError, first_line

WEB = ("http://", "https://")
# Seconds for an answer. A history server reads a whole log before its first one.
TIMEOUT_S = 60.0
# Most bytes of an answer.
LARGEST_ANSWER = 1 << 28


class NoSuchPage(InputError):
    """Missing page."""


@dataclass(frozen=True, slots=True)
class Site:
    """A web site. base: its address up to `/api/v1`; login: user and password, or empty."""

    base: str
    login: str = ""

    def text(self, path: str, **query: Any) -> str:
        """Return a page. Raises InputError if nobody answers or the server refuses."""
        url = f"{self.base}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            request = urllib.request.Request(url)
            if self.login:
                request.add_unredirected_header("Authorization", f"Basic {b64encode(self.login.encode()).decode()}")
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                content: bytes = answer.read(LARGEST_ANSWER)
                return content.decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            with error:
                why = _reason(error.read(LARGEST_ANSWER))
            kind = NoSuchPage if error.code == 404 else InputError
            raise kind(f"{url} answers {error.code} {why or error.reason}") from None
        except (OSError, ValueError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            text = reason.strerror if isinstance(reason, OSError) else None
            why = text or (first_line(reason) if isinstance(reason, BaseException) else reason)
            raise InputError(f"{url} does not answer: {why}") from None

    def json(self, path: str, **query: Any) -> Any:
        """Return a page of JSON. Raises InputError as `text` does, and for others."""
        text = self.text(path, **query)
        try:
            return json.loads(text)
        except ValueError:
            raise InputError(f"{self.base}{path} answers with something else than JSON, such as a login page") from None


def _reason(content: bytes) -> str:
    """Return the error in an answer of Prometheus, or an empty string."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return ""

"""The HTTP connection of an application or a region manager to the arbiter of shared hosts."""

import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import TypeAdapter

from elastream.errors import CloudError, ElastreamError, EnvironmentProblem, needed_by

if TYPE_CHECKING:
    import httpx

ANSWER_WITHIN = 5.0
"""Seconds after which a message counts as lost."""

Answer = TypeVar("Answer")


class ArbiterLink:
    """A connection to the arbiter at `url`; a context manager. transport: replaces the network in tests.

    certificate: file of the certificate, or of the authority, by which the arbiter is known; by default those that this
    machine trusts. Raises CloudError where `url` is none, or a token would travel to another machine as it is.

    Subclasses define what the arbiter is called, and the errors for another service there and for a refusal, by status.
    """

    called: ClassVar[str]
    mistaken: ClassVar[type[ElastreamError]]
    refusals: ClassVar[Mapping[int, type[ElastreamError]]] = {}
    sender = ""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        certificate: Path | str | None = None,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        with needed_by(f"the connection to the {self.called}"):
            import httpx

        self.url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            # A proxy set in the environment must not get the token, nor delay a message.
            self._client = httpx.Client(
                base_url=url,
                headers=headers,
                timeout=ANSWER_WITHIN,
                transport=transport,
                trust_env=False,
                verify=True if certificate is None else ssl.create_default_context(cafile=certificate),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise CloudError(f"{url!r} is not the address of a {self.called}: {error}") from None
        except OSError as error:
            raise CloudError(f"the certificate {certificate} cannot be used: {error.strerror or error}") from None
        where = self._client.base_url
        if token and where.scheme == "http" and not of_this_machine(where.host):
            raise CloudError(f"{url} is on another machine, and a token for it would be read on the way: use https://")

    def ask(self, form: TypeAdapter[Answer], method: str, path: str, body: Any = None, key: str = "") -> Answer:
        """The answer to a message. Raises EnvironmentProblem if there is none, or the arbiter fails."""
        import httpx

        try:
            response = self._client.request(method, path, json=body, headers={"key": key})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = str(error) or type(error).__name__
            raise EnvironmentProblem(f"no {self.called} answers at {self.url}: {said}") from None
        status = response.status_code
        try:
            if status == 200:
                return form.validate_json(response.content)
            refusal = f"{self.sender}: {response.json()['error']}"
        except (ValueError, KeyError, TypeError):
            if status >= 500:
                raise EnvironmentProblem(f"the {self.called} at {self.url} fails: HTTP {status}") from None
            raise self.mistaken(f"the service at {self.url} is no {self.called} (HTTP {status})") from None
        if status >= 500:
            raise EnvironmentProblem(f"the {self.called} at {self.url} fails{refusal}")
        raise self.refusals.get(status, self.refusals[409])(f"the {self.called} at {self.url} refuses{refusal}")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def of_this_machine(host: str) -> bool:
    """Whether only this machine reaches what listens at `host`, an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

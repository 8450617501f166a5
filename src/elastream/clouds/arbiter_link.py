"""HTTP connection to the arbiter of shared hosts."""

import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import TypeAdapter

from elastream.errors import CloudError, ElastreamError, EnvironmentProblem, needed_by

if TYPE_CHECKING:
    import httpx

RESPONSE_TIMEOUT_S = 5.0  # a message without a response by then counts as lost

Answer = TypeVar("Answer")


class ArbiterLink:
    """Connection to the arbiter at `url`; a context manager.

    Args:
        certificate: File of the arbiter's certificate or authority; default: those that this machine trusts.

    Raises:
        CloudError: The URL is invalid, or would carry a token unencrypted to another machine.
    """

    service_name: ClassVar[str]
    wrong_service_error: ClassVar[type[ElastreamError]]
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
        with needed_by(f"the connection to the {self.service_name}"):
            import httpx

        self.url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            # A proxy set in the environment must not get the token, nor delay a message.
            self._client = httpx.Client(
                base_url=url,
                headers=headers,
                timeout=RESPONSE_TIMEOUT_S,
                transport=transport,
                trust_env=False,
                verify=True if certificate is None else ssl.create_default_context(cafile=certificate),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise CloudError(f"{url!r} is not the address of a {self.service_name}: {error}") from None
        except OSError as error:
            raise CloudError(f"the certificate {certificate} cannot be used: {error.strerror or error}") from None
        base = self._client.base_url
        if token and base.scheme == "http" and not is_this_machine(base.host):
            raise CloudError(f"{url} is on another machine, and a token for it would be read on the way: use https://")

    def ask(self, form: TypeAdapter[Answer], method: str, path: str, body: Any = None, key: str = "") -> Answer:
        """Send a message and return the response.

        Raises:
            EnvironmentProblem: There is no response, or the arbiter fails.
        """
        import httpx

        try:
            response = self._client.request(method, path, json=body, headers={"key": key})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = str(error) or type(error).__name__
            raise EnvironmentProblem(f"no {self.service_name} answers at {self.url}: {message}") from None
        status = response.status_code
        try:
            if status == 200:
                return form.validate_json(response.content)
            refusal = f"{self.sender}: {response.json()['error']}"
        except (ValueError, KeyError, TypeError):
            if status >= 500:
                raise EnvironmentProblem(f"the {self.service_name} at {self.url} fails: HTTP {status}") from None
            raise self.wrong_service_error(f"the service at {self.url} is no {self.service_name} (HTTP {status})") from None
        if status >= 500:
            raise EnvironmentProblem(f"the {self.service_name} at {self.url} fails{refusal}")
        raise self.refusals.get(status, self.refusals[409])(f"the {self.service_name} at {self.url} refuses{refusal}")

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

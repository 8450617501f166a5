"""HTTP without a network."""

import httpx
from fastapi.testclient import TestClient


class InProcess(httpx.BaseTransport):
    """Hands requests to a service of this process; cut off, it loses them."""

    def __init__(self, service: TestClient) -> None:
        self.service, self.cut = service, False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.cut:
            raise httpx.ConnectError("cut off", request=request)
        answer = self.service.request(
            request.method, request.url.path, content=request.read(), headers=dict(request.headers)
        )
        return httpx.Response(answer.status_code, content=answer.content)

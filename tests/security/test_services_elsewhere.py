"""Services listen on this machine alone, unless they have a token and TLS, by which alone a token leaves this machine."""

import shlex
import shutil
import subprocess
import threading
import urllib.request

import pytest
import uvicorn

from elastream.clouds.arbiter_link import is_this_machine
from elastream.clouds.pool import Pool
from elastream.errors import CloudError, DataflowError, EnvironmentProblem
from elastream.observability.metrics import PrometheusObserver
from elastream.pool.document import load_manager
from elastream.pool.service import listening, web_settings

DOCUMENT = "arbiter: {{name: demo, machines: {{small: 1}}, listen: '{listen}'{more}}}\n"
CLOSED = ", token_file: token, certificate: pem, key: key"


@pytest.fixture
def folder(tmp_path):
    for name in ("token", "pem", "key"):
        (tmp_path / name).write_text("as long as a token has to be")
    return tmp_path


@pytest.mark.parametrize(
    ("listen", "more", "said"),
    [
        ("127.0.0.1:8471", "", ""),
        ("[::1]:8471", "", ""),
        ("localhost:8471", "", ""),
        ("0.0.0.0:8471", "", "it listens at 0.0.0.0, where other machines reach it: that needs a token"),
        ("10.0.0.1:8471", ", token_file: token", "and TLS"),
        ("pool.example:8471", ", certificate: pem, key: key", "that needs a token"),
        ("10.0.0.1:8471", CLOSED, ""),
        ("127.0.0.1:8471", ", certificate: pem", "TLS needs both"),
        ("127.0.0.1:8471", ", certificate: pem, key: nowhere", "there is no file"),
    ],
)
def test_an_arbiter_that_others_can_reach_needs_a_token_and_tls(folder, listen, more, said):
    (folder / "arbiter.yaml").write_text(DOCUMENT.format(listen=listen, more=more))
    if not said:
        load_manager(folder / "arbiter.yaml")
        return
    with pytest.raises(DataflowError, match=said):
        load_manager(folder / "arbiter.yaml")


def test_a_token_is_not_sent_to_another_machine_as_it_is():
    for url in ("http://127.0.0.1:1", "http://[::1]:1", "https://pool.example"):
        Pool(url, "a", token="t" * 16).client().close()
    Pool("http://pool.example", "a").client().close()
    with pytest.raises(CloudError, match="would be read on the way: use https"):
        Pool("http://pool.example", "a", token="t" * 16).client()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_a_pool_is_reached_by_tls_and_known_by_its_certificate(tmp_path):
    pem, key = tmp_path / "pem", tmp_path / "key"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    places = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(pem)]
    subprocess.run([*shlex.split(made), *places], check=True, capture_output=True)

    async def nothing(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = uvicorn.Server(web_settings(nothing, pem, key))
    with listening("127.0.0.1", 0) as at:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        url = f"https://localhost:{at.getsockname()[1]}"
        with (
            Pool(url, "a", token="t" * 16).client() as client,
            pytest.raises(EnvironmentProblem, match="CERTIFICATE_VERIFY"),
        ):
            client.offer()
        with (
            Pool(url, "a", token="t" * 16, certificate=pem).client() as client,
            pytest.raises(EnvironmentProblem, match="is no pool"),
        ):
            client.offer()
        server.should_exit = True
        thread.join()
    with pytest.raises(EnvironmentProblem, match="cannot be used for TLS"):
        web_settings(nothing, key, pem)
    with pytest.raises(CloudError, match="cannot be used"):
        Pool(url, "a", certificate=tmp_path / "nowhere").client()


def test_metrics_are_served_to_this_machine_alone():
    observer = PrometheusObserver(port=0)
    try:
        host, port = observer._server.server_address[:2]
        assert is_this_machine(host)
        assert b"elastream_rounds" in urllib.request.urlopen(f"http://{host}:{port}").read()
    finally:
        observer._server.shutdown()
        observer._server.server_close()


def test_this_machine_is_known_by_its_addresses():
    assert [each for each in ("127.0.0.1", "127.8.9.1", "::1", "localhost", "0.0.0.0", "::", "10.1.1.1", "elsewhere")
            if is_this_machine(each)] == ["127.0.0.1", "127.8.9.1", "::1", "localhost"]  # fmt: skip

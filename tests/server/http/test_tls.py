"""TLS: whole answers, streams and disconnects over it, handshakes without end, wrong files."""

from __future__ import annotations

import socket
import ssl
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from heddle.config import ServerConfig
from heddle.errors import ConfigError
from heddle.server.http import process
from heddle.server.http.tls import Handshakes, tls_of
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_server import Running

BODY = {"prompt": "the sea", "max_tokens": 20, "ignore_eos": True, "seed": 1}


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate for 127.0.0.1 that signs itself."""

    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        return {"tls_cert": str(self.cert), "tls_key": str(self.key)}

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.cert))

    def connect(self, server: Running) -> ssl.SSLSocket:
        plain = socket.create_connection(server.address, timeout=PATIENCE)
        return self.client().wrap_socket(plain, server_hostname="127.0.0.1")


def certificate(folder: Path, name: str) -> Certificate:
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(made.key), "-out", str(made.cert)),
        ],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    return made


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls"), "own")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls"), "other")


@pytest.fixture
def secure(serve: Callable[..., Running], own: Certificate) -> Running:
    return serve(**own.settings, slots=2)


def test_answers_and_streams_are_those_without_tls(
    secure: Running, shared: Running, own: Certificate
) -> None:
    assert secure.url.startswith("https://")
    with httpx.Client(base_url=secure.url, verify=own.client(), timeout=PATIENCE) as client:
        answers = [client.post("/v1/completions", json=BODY).json() for _ in range(2)]
        with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            events = [line for line in answer.iter_lines() if line]
    expected = shared.post("/v1/completions", BODY).json()["choices"][0]["text"]
    assert [answer["choices"][0]["text"] for answer in answers] == [expected] * 2
    assert events[-1] == "data: [DONE]"


def test_a_client_trusts_no_other_certificate(secure: Running, other: Certificate) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(secure.url + "/health", verify=other.client(), timeout=PATIENCE)
    assert secure.executor.steps == 0


def test_plain_http_gets_no_answer(secure: Running, own: Certificate) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(secure.url.replace("https", "http") + "/health", timeout=PATIENCE)
    assert httpx.get(secure.url + "/health", verify=own.client(), timeout=PATIENCE).is_success


def test_old_versions_of_tls_are_off(own: Certificate) -> None:
    context = tls_of(ServerConfig(**own.settings))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.slow
def test_a_refusal_before_the_body_ends_the_connection(secure: Running, own: Certificate) -> None:
    with own.connect(secure) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"
            b"content-length: 1000000\r\n\r\n" + b"x" * 1000
        )
        answer = b""
        while piece := client.recv(1 << 16):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 415 ")
    assert b"connection: close" in answer


def test_bytes_that_are_no_http_get_an_error(secure: Running, own: Certificate) -> None:
    with own.connect(secure) as client:
        client.sendall(b"nonsense\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


def test_a_client_that_leaves_frees_its_slot(secure: Running, own: Certificate) -> None:
    secure.executor.gate.clear()
    with own.connect(secure) as client:
        body = b'{"prompt": "the sea", "max_tokens": 400, "ignore_eos": true, "stream": true}'
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        secure.until(lambda: not secure.idle())
    secure.executor.gate.set()
    secure.until(secure.idle)
    assert secure.executor.steps < 400


@pytest.mark.slow
def test_handshakes_without_end_do_not_keep_others_out(
    serve: Callable[..., Running], own: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "most_connections", lambda: 16)
    server = serve(**own.settings)
    idle = [socket.create_connection(server.address, timeout=PATIENCE) for _ in range(6)]
    for one in idle[:2]:  # the oldest of six, where four may wait
        assert one.recv(1) == b""
    assert httpx.get(server.url + "/health", verify=own.client(), timeout=PATIENCE).is_success
    for one in idle:
        one.close()


def test_a_handshake_has_a_time_limit(
    serve: Callable[..., Running], own: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handshakes, "SECONDS", 0.05)
    server = serve(**own.settings)
    with socket.create_connection(server.address, timeout=PATIENCE) as client:
        client.sendall(b"\x16\x03\x01")  # the beginning of a handshake
        assert client.recv(1) == b""


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tls_key": ""}, "tls_cert needs tls_key; set both or neither"),
        ({"tls_cert": ""}, "tls_key needs tls_cert; set both or neither"),
        ({"tls_cert": "/no/such"}, "tls_cert: cannot read '/no/such': No such file"),
        ({"tls_key": "/no/such"}, "tls_key: cannot read '/no/such': No such file"),
        ({"tls_key": "/"}, "tls_key: cannot read '/': Is a directory"),
        ({"tls_cert": "~nouser0/x"}, "home folder of an unknown user"),
        ({"tls_cert": "KEY"}, "must be PEM files"),
        ({"tls_key": "CERT"}, "must be PEM files"),
        ({"tls_key": "OTHER"}, "the key does not belong to the certificate"),
        ({"tls_key": "LOCKED"}, "tls_key: the key has a password"),
    ],
)
def test_wrong_files_are_refused_by_setting(
    own: Certificate, other: Certificate, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    locked = tmp_path / "locked.key"
    files = {"KEY": own.key, "CERT": own.cert, "OTHER": other.key, "LOCKED": locked}
    if change == {"tls_key": "LOCKED"}:
        subprocess.run(
            ["openssl", "pkey", "-in", own.key, "-aes128", "-passout", "pass:x", "-out", locked],
            check=True,
            timeout=PATIENCE,
        )
    changed = {name: str(files.get(value, value)) for name, value in change.items()}
    with pytest.raises(ConfigError) as refused:
        tls_of(ServerConfig(**own.settings | changed))
    assert said in refused.value.message
    assert refused.value.param in {"tls_cert", "tls_key"}


def test_without_files_there_is_no_tls() -> None:
    assert tls_of(ServerConfig()) is None

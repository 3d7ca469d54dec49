"""Pictures from addresses: only with the setting, only from public hosts, within bounds."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from image_files import CAT

from heddle.config import ServerConfig
from heddle.errors import InvalidRequestError
from heddle.extensions.vision import fetching
from heddle.extensions.vision.fetching import is_public
from heddle.extensions.vision.reader import READER
from heddle.extensions.vision.settings import FetchSettings
from heddle.sent_pictures import SentPicture

if TYPE_CHECKING:
    from collections.abc import Iterator

FETCHES = ServerConfig(extensions=(FetchSettings(allow_image_urls=True),))


class Host(ThreadingHTTPServer):
    """Answers paths; knows the requests that came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {"/cat": (200, {}, CAT)}
        self.seen: list[tuple[str, str, str]] = []
        self.hangs = threading.Event()

    def redirect(self, path: str, to: str) -> None:
        self.answers[path] = (302, {"location": to}, b"")


class Handler(BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        encoding = self.headers.get("accept-encoding", "")
        self.server.seen.append((self.path, self.headers["host"], encoding))
        if self.path == "/slow":
            self.server.hangs.wait()
        status, headers, body = self.server.answers.get(self.path, (404, {}, b""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host that counts as public. Every name but those with `private` is its address."""

    def resolve(name: str, port: int, *_: Any, **__: Any) -> list[Any]:
        address = "10.0.0.1" if "private" in name else "127.0.0.1"
        names.append(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    names: list[str] = []
    host = Host()
    host.names = names  # type: ignore[attr-defined]
    monkeypatch.setattr(fetching.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(fetching, "is_public", lambda address: address == "127.0.0.1")
    thread = threading.Thread(target=host.serve_forever)
    thread.start()
    yield host
    host.hangs.set()
    host.shutdown()
    thread.join()
    host.server_close()


def url(host: Host, path: str, name: str = "cats.example") -> str:
    return f"http://{name}:{host.server_port}{path}"


def fetch(*urls: str) -> list[tuple[int, ...]]:
    sent = [SentPicture(one, f"p[{place}]") for place, one in enumerate(urls)]
    return [one.pixels.shape for one in READER.read(sent, FETCHES)]


def refusal(*urls: str) -> str:
    with pytest.raises(InvalidRequestError) as error:
        fetch(*urls)
    assert error.value.param in ("p[0]", "p[1]")
    return error.value.message


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.127.255.255",
        "224.0.0.1",
        "239.255.255.250",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.0.8",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fd12::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::1",
        "2001:0:4136:e378::",
        "2001:db8::1",
        "fec0::1",
        "::127.0.0.1",
    ],
)
def test_no_public_address(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "::ffff:8.8.8.8", "2606:4700::1111"],
)
def test_a_public_address(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "0x7f.1", "2130706433"])
def test_this_machine_is_no_public_host(name: str) -> None:
    assert "not public" in refusal(f"http://{name}:1/cat")


def test_a_picture_from_an_address(host: Host) -> None:
    assert fetch(url(host, "/cat")) == [(8, 12, 3)]
    assert host.seen == [("/cat", f"cats.example:{host.server_port}", "identity")]
    assert host.names == ["cats.example"]  # type: ignore[attr-defined]


def test_several_pictures_keep_their_order(host: Host) -> None:
    assert len(fetch(*[url(host, "/cat")] * 12)) == 12


def test_redirects_are_followed_and_checked(host: Host) -> None:
    host.redirect("/a", "/cat")
    assert fetch(url(host, "/a")) == [(8, 12, 3)]
    host.redirect("/a", url(host, "/cat", "private.example"))
    assert "not public" in refusal(url(host, "/a"))
    host.redirect("/a", f"file://cats.example:{host.server_port}/cat")
    assert "not http or https" in refusal(url(host, "/a"))
    host.redirect("/a", "/a")
    host.seen.clear()
    assert "redirects more than 3 times" in refusal(url(host, "/a"))
    assert len(host.seen) == 4


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, {}, b""), "status 404"),
        ((200, {}, b"hello"), "no picture"),
        ((200, {}, bytes(2000)), "1,000 bytes"),
        ((302, {}, b""), "status 302"),
    ],
)
def test_other_answers(host: Host, answer: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MOST_BYTES", 1000)
    host.answers["/cat"] = answer
    assert said in refusal(url(host, "/cat"))


def test_all_files_together_are_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MOST_BYTES_TOGETHER", len(CAT) + 1)
    assert len(fetch(url(host, "/cat"))) == 1
    assert "with the others" in refusal(url(host, "/cat"), url(host, "/cat"))


def test_a_host_that_does_not_answer(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SECONDS", 0.2)
    assert "did not arrive within 0.2 s" in refusal(url(host, "/slow"))


def test_a_host_that_refuses_connections(host: Host) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        message = refusal(f"http://cats.example:{bound.getsockname()[1]}/cat")
    assert "cannot be fetched: ConnectError" in message


@pytest.mark.parametrize(
    "address",
    ["http://a:b@cats.example/", "http:///cat", "http://", "http://[::1", "https://\x00/"],
)
def test_strange_addresses(host: Host, address: str) -> None:
    refusal(address)
    assert host.seen == []


def test_without_the_setting_nothing_is_fetched(host: Host) -> None:
    with pytest.raises(InvalidRequestError, match="--allow-image-urls"):
        READER.read([SentPicture(url(host, "/cat"), "p[0]")], ServerConfig())
    assert host.seen == []

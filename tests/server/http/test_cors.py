"""`--cors`: which web pages may use the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from heddle.config import ServerConfig
from heddle.errors import ConfigError
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

PAGE = "https://page.example"


def ask_first(server: Running, origin: str) -> httpx.Response:
    """Send the preflight request that a browser sends before a page's request."""
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    return httpx.options(server.url + "/v1/chat/completions", headers=headers, timeout=PATIENCE)


def test_without_it_no_page_is_allowed(shared: Running) -> None:
    assert "access-control-allow-origin" not in ask_first(shared, PAGE).headers
    answer = shared.get("/v1/models", headers={"origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers


def test_an_origin_is_allowed_and_others_are_not(serve: Callable[..., Running]) -> None:
    server = serve(cors=(PAGE,), api_key=("sk-1",))
    allowed = ask_first(server, PAGE)
    assert allowed.status_code == 200, "a browser asks without a key"
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
    other = ask_first(server, "https://other.example")
    assert other.status_code == 200
    assert not any(name.startswith("access-control") for name in other.headers)
    refused = server.get("/v1/models", headers={"origin": PAGE})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE, "so that the page can read why"
    headers = {"origin": PAGE, "authorization": "Bearer sk-1"}
    assert server.get("/v1/models", headers=headers).status_code == 200


def test_all_origins(serve: Callable[..., Running]) -> None:
    server = serve(cors=("*",))
    allowed = ask_first(server, PAGE).headers
    assert allowed["access-control-allow-origin"] == PAGE
    assert "access-control-allow-credentials" not in allowed, "any page could use a visitor's login"
    assert allowed["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert server.get("/v1/models", headers={"origin": PAGE}).headers["vary"] == "Origin"


def test_localhost_stands_for_all_ports_of_this_machine(serve: Callable[..., Running]) -> None:
    server = serve(cors=("localhost", PAGE))
    for host in ("localhost", "127.0.0.1", "[::1]"):
        for origin in (f"http://{host}", f"https://{host}", f"http://{host}:3000", PAGE):
            assert ask_first(server, origin).headers["access-control-allow-origin"] == origin
    for origin in (
        "http://notlocalhost",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://evil.example:80",
        "http://localhost:80@evil.example",
        "null",
    ):
        assert "access-control-allow-origin" not in ask_first(server, origin).headers


@pytest.mark.parametrize("origin", ["", "page.example", "https://page.example/", "https://a b"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors must be"):
        ServerConfig(cors=(origin,))


def test_a_page_may_read_the_headers_that_clients_need(serve: Callable[..., Running]) -> None:
    answer = serve(cors=(PAGE,)).get("/v1/models", headers={"origin": PAGE})
    exposed = set(answer.headers["access-control-expose-headers"].split(", "))
    assert exposed == {"x-request-id", "request-id", "retry-after", "warning", "x-heddle-ignored"}

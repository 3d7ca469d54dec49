"""Admin routes: who may use them, on which addresses, and what a refused client reads."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from heddle.config import ServerConfig
from heddle.errors import ConfigError
from heddle.server.http import access, errors, listener
from heddle.server.http.access import ADMIN, Access
from heddle.server.http.edge import Edge
from heddle.server.http.keys import Keys, keys_of
from heddle.server.http.listener import is_loopback
from heddle.server.http.versions import Spellings
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_server import Running

USER, BOSS = "sk-user-31", "sk-boss-77"
ADMIN_ROUTES = {
    ("/v1/models/load", "post"),
    ("/v1/models/reload", "post"),
    ("/v1/models/unload", "post"),
    ("/v1/models/quantize", "post"),
    ("/v1/models/suggest", "get"),
    ("/v1/engrams/load", "post"),
    ("/v1/engrams/unload", "post"),
    ("/v1/load_lora_adapter", "post"),
    ("/v1/unload_lora_adapter", "post"),
    ("/lora-adapters", "post"),
    ("/v1/engine/limits", "post"),
    ("/v1/prefix_cache", "post"),
    ("/v1/prefix_cache", "delete"),
    ("/api/pull", "post"),
    ("/api/delete", "delete"),
    ("/slots/{id_slot}", "post"),
}


def app_with(host: str, api: tuple[str, ...] = (), admin: tuple[str, ...] = ()) -> FastAPI:
    """An application with an admin route and an ordinary one, as for a server on `host`."""
    app = FastAPI()
    app.state.access = access = Access(Keys(api, admin), host)
    app.add_middleware(Edge, access=access, spellings=Spellings(app.routes))
    errors.install(app)

    @app.post("/load", dependencies=[ADMIN])
    async def load() -> str:
        return "loaded"

    @app.get("/ordinary")
    async def ordinary() -> str:
        return "fine"

    return app


def send(
    app: FastAPI,
    path: str = "/load",
    key: str | None = None,
    host: str = "127.0.0.1:8080",
    origin: str | None = None,
) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"host": host} | ({"x-api-key": key} if key else {})
            headers |= {} if origin is None else {"origin": origin}
            return await client.request(
                "GET" if path == "/ordinary" else "POST", path, headers=headers
            )

    return asyncio.run(ask())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8", "::ffff:127.0.0.1"])
def test_on_loopback_without_keys_admin_routes_are_open(host: str) -> None:
    assert send(app_with(host)).json() == "loaded"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "no-such-host.invalid"])
@pytest.mark.parametrize("keys", [(), (USER,)])
def test_elsewhere_admin_routes_are_off_without_an_admin_key(
    host: str, keys: tuple[str, ...]
) -> None:
    answer = send(app_with(host, keys), key=USER)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "forbidden"
    assert "set --admin-key-file, HEDDLE_ADMIN_KEY or --admin-key" in error["message"]
    assert send(app_with(host, keys), "/ordinary", key=USER).json() == "fine"


def test_with_api_keys_no_ordinary_client_is_an_admin() -> None:
    answer = send(app_with("127.0.0.1", (USER,)), key=USER)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("keys", [(), (USER,)])
def test_the_admin_key_opens_all_routes(host: str, keys: tuple[str, ...]) -> None:
    app = app_with(host, keys, (BOSS,))
    assert send(app, key=BOSS, host="any.example").json() == "loaded"
    assert send(app, "/ordinary", key=BOSS).json() == "fine"
    missing, wrong = send(app), send(app, key="sk-wrong")
    assert (missing.status_code, wrong.status_code) == (401, 401)
    assert missing.headers["www-authenticate"] == "Bearer"
    assert send(app, key=USER).status_code == (403 if keys else 401)
    for answer in (missing, wrong):
        assert BOSS not in answer.text
    assert send(app, "/ordinary").status_code == (401 if keys else 200)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("LOCALHOST:1", 200),
        ("[::ffff:127.0.0.1]", 200),
        ("evil.example#@localhost", 403),
        ("evil@127.0.0.1", 403),
        ("evil:secret@localhost:8080", 403),
        ("@127.0.0.1", 403),
        ("127.0.0.1:0", 403),
        ("127.0.0.1:65536", 403),
        ("127.0.0.1:99999999999999999999", 403),
        ("127.0.0.1:", 403),
        ("127.0.0.1:80:80", 403),
        ("127.0.0.1:+80", 403),
        ("127.0.0.1/", 403),
        ("127.0.0.1?x", 403),
        ("127.0.0.1\\@evil.example", 403),
        ("http://127.0.0.1", 403),
        ("127.0.0.1.", 403),
        ("localhost.", 403),
        ("127.1", 403),
        ("0x7f.0.0.1", 403),
        ("0127.0.0.1", 403),
        ("2130706433", 403),
        ("0.0.0.0", 403),
        ("::1", 403),
        ("[127.0.0.1]", 403),
        ("[::1", 403),
        ("[::1]evil.example", 403),
        ("[::1%25lo]", 403),
        ("[::]", 403),
        ("127.0.0.1, 127.0.0.1", 403),
        ("127.0.0.1 ", 403),
        ("192.0.2.1", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_without_keys_a_foreign_host_is_no_admin(host: str, status: int) -> None:
    assert send(app_with("127.0.0.1"), host=host).status_code == status
    assert send(app_with("127.0.0.1"), "/ordinary", host=host).status_code == 200


def test_several_hosts_are_no_admin() -> None:
    hosts = [("host", "127.0.0.1"), ("host", "evil.example")]
    scope = {"type": "http", "method": "POST", "path": "/load", "query_string": b""}
    for order in (hosts, hosts[::-1], []):
        headers = [(name.encode(), value.encode()) for name, value in order]
        foreign = access._foreign(Request({**scope, "headers": headers}).headers)
        assert [name for name, _ in foreign] == ["Host"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8080", 200),
        ("https://localhost", 200),
        ("http://[::1]:3000", 200),
        ("null", 403),
        ("", 403),
        ("http://evil.example", 403),
        ("http://evil@127.0.0.1", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://127.0.0.1:65536", 403),
        ("http://http://127.0.0.1", 403),
        ("file://127.0.0.1", 403),
    ],
)
def test_without_keys_a_foreign_page_is_no_admin(origin: str, status: int) -> None:
    answer = send(app_with("127.0.0.1"), origin=origin)
    assert answer.status_code == status
    if status == 403:
        assert f"the request's Origin is {origin!r}" in answer.json()["error"]["message"]
    assert send(app_with("127.0.0.1"), "/ordinary", origin=origin).status_code == 200
    assert send(app_with("127.0.0.1", (), (BOSS,)), key=BOSS, origin=origin).status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"POST http://127.0.0.1/v1/engrams/unload HTTP/1.1\r\nHost: evil.example",
        b"POST http://evil.example/v1/engrams/unload HTTP/1.1\r\nHost: 127.0.0.1",
        b"POST /v1/engrams/unload HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example",
        b"POST /v1/engrams/unload HTTP/1.0\r\nHost: 127.0.0.1\r\nHost: evil.example",
        b"POST /v1/engrams/unload HTTP/1.1",
        b"POST /v1/engrams/unload HTTP/1.0",
    ],
)
def test_a_head_with_two_hosts_or_none_opens_no_admin_route(shared: Running, head: bytes) -> None:
    with socket.create_connection(shared.address, PATIENCE) as client:
        client.sendall(head + b"\r\nContent-Length: 0\r\n\r\n")
        assert client.recv(1 << 16).split()[1] in (b"400", b"403", b"404")


def test_a_name_with_one_foreign_address_is_not_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(2, 1, 6, "", ("127.0.0.1", 0)), (2, 1, 6, "", ("192.0.2.1", 0))]
    monkeypatch.setattr(listener.socket, "getaddrinfo", lambda *_, **__: rows)
    assert not is_loopback("two.example")
    monkeypatch.setattr(listener.socket, "getaddrinfo", lambda *_, **__: rows[:1])
    assert is_loopback("one.example")


# --- the server's own admin routes ---------------------------------------------------------------


@pytest.mark.extensions
def test_the_prefix_cache_is_changed_by_admins_only(serve: Callable[..., Running]) -> None:
    server = serve(api_key=(USER,), admin_key=(BOSS,))
    for method, path in (("POST", "/prefix_cache"), ("DELETE", "/v1/prefix_cache")):
        statuses = [
            httpx.request(
                method,
                server.url + path,
                json={"enabled": True} if method == "POST" else None,
                headers={"x-api-key": key},
                timeout=PATIENCE,
            ).status_code
            for key in ("sk-wrong", USER, BOSS)
        ]
        assert statuses == [401, 403, 200]
    answer = server.get("/v1/prefix_cache_stats", headers={"x-api-key": USER})
    assert answer.status_code == 200


@pytest.mark.extensions
def test_a_refused_client_s_body_is_not_read(serve: Callable[..., Running]) -> None:
    server = serve(admin_key=(BOSS,))
    answer = httpx.post(server.url + "/v1/prefix_cache", content=b"no JSON", timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("keys", "closed"),
    [
        ({}, set()),
        ({"admin_key": (BOSS,)}, ADMIN_ROUTES),
        ({"api_key": (USER,)}, None),
        ({"api_key": (USER,), "admin_key": (BOSS,)}, None),
    ],
)
def test_the_description_tells_who_needs_a_key(
    serve: Callable[..., Running], keys: dict[str, Any], closed: set[tuple[str, str]] | None
) -> None:
    answer = serve(**keys).get("/openapi.json", headers={"x-api-key": USER})
    description = answer.json()
    operations = {
        (path, method): operation
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    }
    forbidden = {place for place, one in operations.items() if "403" in one["responses"]}
    # Bodies without a prompt load and unload models in Ollama's API, which only admins may.
    unloading = {("/api/chat", "post"), ("/api/generate", "post")}
    assert forbidden == ADMIN_ROUTES | unloading
    with_key = {place for place, one in operations.items() if "security" in one}
    guarded = {place for place in operations if place[0] not in access.OPEN_PATHS}
    assert with_key == (guarded if closed is None else closed)
    assert {place for place, one in operations.items() if "401" in one["responses"]} == with_key
    assert ("securitySchemes" in description["components"]) == bool(keys)


# --- names and files of keys ---------------------------------------------------------------------


def test_a_named_key_shows_its_name_in_logs(
    serve: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "heddle")
    server = serve(api_key=(f"alice: {USER}", f"bob:{BOSS}"))
    for key in (USER, f"bob:{BOSS}"):
        answer = server.post("/v1/completions", {"prompt": 1.5}, headers={"x-api-key": key})
        assert answer.status_code == 400
    server.until(lambda: "400, key alice" in caplog.text)  # the line comes after the answer
    assert USER not in caplog.text
    assert BOSS not in caplog.text
    assert server.get("/slots", headers={"x-api-key": BOSS}).status_code == 401


def test_names_in_key_files(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"alice: {USER}\nalice:\tsk-second\nplain:colons:stay\n")
    keys = keys_of(ServerConfig(api_key_file=str(path), admin_key=(f"root: {BOSS}",)))
    names = {USER: "alice", "sk-second": "alice", "plain:colons:stay": None, BOSS: "root"}
    for text, name in names.items():
        key = keys.find([text.encode()])
        assert key is not None
        assert (key.name, key.is_admin) == (name, text == BOSS)
        assert key is not None and key.name == name
    assert keys.find([b"alice"]) is None


@pytest.mark.parametrize(
    "text", ["a b: sk", "alice: two words", ": sk", "alice: ", "ä: sk", "a sk"]
)
@pytest.mark.parametrize("setting", ["api_key", "admin_key"])
def test_malformed_named_keys_are_refused(text: str, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting}: key 1 of 1") as refused:
        ServerConfig(**{setting: (text,)})
    assert "sk" not in refused.value.message.replace("without spaces", "")


def test_an_empty_file_of_admin_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\n")
    with pytest.raises(ConfigError, match=r"admin_key_file: .* has no key"):
        keys_of(ServerConfig(admin_key_file=str(path)))

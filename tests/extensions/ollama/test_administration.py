"""Models are loaded, kept, unloaded, fetched and deleted over Ollama's API."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from fake_loads import Loads
from heddle.config import RegistryConfig, ServerConfig
from heddle.engine import Engine
from heddle.hosting.registry import Registry
from heddle.server.http.hints import HEADER
from live_server import live_server
from models.tiny_encoders import MODELS as ENCODERS
from patience import PATIENCE
from tiny_hub import TINY, tiny_hub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fake_hub import FakeHub

BOSS = {"authorization": "Bearer sk-boss"}


@dataclass
class Server:
    """A server of fake models, and its registry."""

    http: httpx.Client
    registry: Registry

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def ask(self, path: str = "/api/chat", **body: Any) -> httpx.Response:
        said: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
        said = said if path == "/api/chat" else {"prompt": "a"}
        limits = {"num_predict": 2, "ignore_eos": True}
        return self.post(path, **{"model": "one", "stream": False, "options": limits} | said | body)

    def names(self, path: str = "/api/ps") -> list[str]:
        return [one["name"] for one in self.http.get(path).json()["models"]]


@contextmanager
def served(registry: RegistryConfig, **settings: Any) -> Iterator[Server]:
    with Registry(registry) as models:
        models.add("one")
        with (
            live_server(models, ServerConfig(port=0, **settings)) as live,
            httpx.Client(base_url=live.url, timeout=PATIENCE) as client,
        ):
            yield Server(client, models)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Starts servers that know the model `one`, which is not loaded."""
    monkeypatch.setattr(Engine, "load", Loads())
    with ExitStack() as stack:

        def start(registry: RegistryConfig | None = None, **settings: Any) -> Server:
            return stack.enter_context(served(registry or RegistryConfig(), **settings))

        yield start


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_body_without_a_prompt_loads_or_unloads(start: Callable[..., Server], path: str) -> None:
    server = start()
    assert server.ask(path).status_code == 404  # it is not loaded
    loaded = server.post(path, model="one:latest")
    assert (loaded.json()["done"], loaded.json()["done_reason"]) == (True, "load")
    assert loaded.json().keys() >= {"message" if path == "/api/chat" else "response", "created_at"}
    assert server.names() == ["one:latest"]
    assert server.ask(path).status_code == 200
    for _ in range(2):  # the second one finds nothing to unload
        unloaded = server.post(path, model="one", keep_alive=0)
        assert unloaded.json()["done_reason"] == "unload"
        assert server.names() == []


def test_only_admins_load_and_unload(start: Callable[..., Server]) -> None:
    server = start(api_key=("sk-1",), admin_key=("sk-boss",))
    server.http.headers["authorization"] = "Bearer sk-1"
    assert server.post("/api/chat", model="one").status_code == 403
    assert server.post("/api/chat", model="one", keep_alive="0s").status_code == 403
    assert server.http.post("/api/chat", json={"model": "one"}, headers=BOSS).status_code == 200
    assert server.post("/api/chat", model="one").json()["done_reason"] == "load"  # it is there
    for body in ({"model": "one"}, {"model": "smollm2-135m"}):
        assert server.post("/api/pull", **body).status_code == 403
        assert server.http.request("DELETE", "/api/delete", json=body).status_code == 403


def test_with_autoload_requests_load_and_keep_models(start: Callable[..., Server]) -> None:
    server = start(RegistryConfig(autoload=True, keep_alive=600))
    assert server.ask(keep_alive="10m").status_code == 200

    def left() -> timedelta:
        [model] = server.http.get("/api/ps").json()["models"]
        return datetime.fromisoformat(model["expires_at"]) - datetime.now(UTC)

    assert timedelta(minutes=9) < left() < timedelta(minutes=11)
    assert HEADER not in server.ask(keep_alive="1h30m").headers
    assert timedelta(minutes=89) < left() < timedelta(minutes=91)
    for forever in (1e300, "99999999999h"):
        assert server.ask(keep_alive=forever).status_code == 200
        assert left() > timedelta(days=10_000)
    for forever in (-1, "-1m", "-1h30m"):
        server.ask(keep_alive="10m")
        server.ask(keep_alive=forever)
        assert left() > timedelta(days=36_500)


def test_without_autoload_a_prompt_does_not_change_the_time(start: Callable[..., Server]) -> None:
    server = start()
    server.post("/api/chat", model="one")
    assert server.ask(keep_alive=1).headers[HEADER] == "keep_alive"
    [model] = server.http.get("/api/ps").json()["models"]
    assert model["expires_at"].startswith("2318")


# --- fetch and delete ----------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with tiny_hub(tmp_path, monkeypatch) as hub:
        yield hub


@pytest.mark.parametrize("name", ["hf.co/org/tiny:F32", "org/tiny:F32", "hf:org/tiny:F32"])
def test_a_model_is_fetched_used_and_deleted(hub: FakeHub, tmp_path: Path, name: str) -> None:
    with served(RegistryConfig(hub_models=True, autoload=True)) as server:
        pulled = server.post("/api/pull", model=name)
        assert pulled.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in pulled.text.splitlines()]
        assert (lines[0]["status"], lines[-1]) == ("pulling manifest", {"status": "success"})
        counted = [line for line in lines if "digest" in line]
        assert all(0 <= line["completed"] <= line["total"] for line in counted)
        assert counted[0]["total"] == len(TINY)
        fetched = len(hub.fetched())
        again = server.post("/api/pull", model=name, stream=False)
        assert (again.json(), len(hub.fetched())) == ({"status": "success"}, fetched)
        assert server.names("/api/tags") == ["one:latest", "org/tiny:F32"]
        shown = server.post("/api/show", model="org/tiny:F32").json()  # it is not loaded
        assert (shown["details"]["family"], shown["details"]["format"]) == ("llama", "gguf")
        assert shown["capabilities"] == ["completion", "tools"]
        assert shown["template"] == "{{ messages[0].content }}"
        assert shown["model_info"]["general.architecture"] == "llama"
        assert server.names() == []
        asked = [{"role": "user", "content": "ABC"}]
        answer = server.ask(model=name.removeprefix("hf:"), messages=asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["eval_count"] == 2
        gone = server.http.request("DELETE", "/api/delete", json={"model": "org/tiny:F32"})
        assert (gone.status_code, gone.content) == (200, b"")
        assert server.names("/api/tags") == ["one:latest"]
        assert not list((tmp_path / "hub").rglob("*.gguf"))
        assert server.ask(model="org/tiny:F32").status_code == 404


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_an_encoder_that_is_not_loaded_makes_embeddings(tmp_path: Path, form: str) -> None:
    encoder = next(one for one in ENCODERS if one.name == "bert")
    path = tmp_path / ("bert" if form == "folder" else "bert.gguf")
    (encoder.write_folder if form == "folder" else encoder.write)(path)
    with served(RegistryConfig()) as server:
        server.registry.add(str(path), name="encoder")
        shown = server.post("/api/show", model="encoder").json()
        assert (shown["details"]["family"], shown["capabilities"]) == ("bert", ["embedding"])
        assert server.names() == []


def test_a_download_that_fails_ends_with_the_error(hub: FakeHub) -> None:
    with served(RegistryConfig(hub_models=True)) as server:
        last = server.post("/api/pull", model="hf.co/org/none").text.splitlines()[-1]
        assert "org/none" in json.loads(last)["error"]
        whole = server.post("/api/pull", model="hf.co/org/none", stream=False)
        assert (whole.status_code, whole.json()) == (503, json.loads(last))


@pytest.mark.parametrize(
    ("name", "status"),
    [("hf.co/org/tiny", 403), ("llama3.2", 404), ("/etc/passwd", 403), ("", 400)],
)
def test_what_may_not_be_fetched(start: Callable[..., Server], name: str, status: int) -> None:
    answer = start().post("/api/pull", model=name)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize(("name", "status"), [("one", 403), ("two", 404)])
def test_what_cannot_be_deleted(start: Callable[..., Server], name: str, status: int) -> None:
    server = start()
    server.post("/api/chat", model="one")
    answer = server.http.request("DELETE", "/api/delete", json={"model": name})
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert server.names() == ["one:latest"]

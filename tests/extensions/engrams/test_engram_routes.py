"""Routes of engram tables, and requests that name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from configs import configured
from engram_writer import write_version_2
from fake_executor import VOCABULARY, FakeExecutor
from fake_model import FakeTokenizer, fake_model
from heddle import Engine, EngineConfig, Registry, RegistryConfig
from heddle.config import ServerConfig
from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.engrams.format import vocabulary_fingerprint
from live_server import live_server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FINGERPRINT = vocabulary_fingerprint(FakeTokenizer().vocabulary_entries())
ASKED = [{"role": "user", "content": "x"}]


class Server:
    """A server with the table `docs`, and its models' folder."""

    def __init__(self, url: str, executor: FakeExecutor, folder: Path) -> None:
        self.url, self.executor, self.folder = url, executor, folder

    def post(self, path: str, /, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE, headers=ADMIN)

    def tables(self) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/v1/engrams", timeout=PATIENCE, headers=ADMIN)
        return {one["name"]: one for one in answer.json()["data"]}


ADMIN = {"authorization": "Bearer boss"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    path = write_version_2(tmp_path / "docs.engr", {(2,): {3: 1}}, VOCABULARY, FINGERPRINT)
    executor = FakeExecutor()

    def load(source: str, config: EngineConfig, **more: Any) -> Engine:
        return Engine(fake_model(executor), config, more["turns"], more["libraries"])

    monkeypatch.setattr(Engine, "load", load)
    models = RegistryConfig(models_dir=str(tmp_path))
    config = ServerConfig(port=0, api_key=("user",), admin_key=("boss",))
    with Registry(models, configured(engram=(f"docs={path}",))) as registry:
        registry.load("fake")
        with live_server(registry, config) as live:
            yield Server(live.url, executor, tmp_path)


def test_tables_are_listed_with_the_models_that_they_fit(server: Server) -> None:
    [docs] = server.tables().values()
    assert (docs["version"], docs["orders"], docs["entries"]) == (2, [1, 1], 1)
    assert (docs["models"], docs["fingerprint"]) == (["fake"], FINGERPRINT.hex())
    assert docs["path"] == str(server.folder / "docs.engr")


def test_a_table_is_loaded_replaced_and_unloaded(server: Server) -> None:
    path = server.folder / "api.engr"
    write_version_2(path, {(2,): {4: 1}}, VOCABULARY, FINGERPRINT)
    loaded = server.post("/engrams/load", name="api", path="api.engr")
    assert (loaded.status_code, loaded.json()["entries"]) == (200, 1)
    write_version_2(path, {(2,): {4: 1}, (3,): {4: 1}}, VOCABULARY, FINGERPRINT)
    again = server.post("/v1/engrams/load", name="api", path=str(path))
    assert (again.status_code, again.json()["entries"]) == (200, 2)
    assert list(server.tables()) == ["docs", "api"]
    gone = server.post("/engrams/unload", name="docs")
    assert (gone.status_code, gone.json()) == (200, {"name": "docs", "status": "unloaded"})
    assert list(server.tables()) == ["api"]
    again = server.post("/engrams/unload", name="docs")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "engram_not_found")


def test_what_does_not_fit_is_refused(server: Server) -> None:
    write_version_2(server.folder / "x.engr", {(2,): {4: 1}}, VOCABULARY, bytes(32))
    for body, status, code in (
        ({"name": "x", "path": "x.engr"}, 400, "invalid_setting"),
        ({"name": "a b", "path": "docs.engr"}, 400, "invalid_setting"),
        ({"name": "x", "path": "../docs.engr"}, 403, "forbidden"),
        ({"name": "x", "path": "gone.engr"}, 404, "engram_not_found"),
        *(
            ({"name": "x", "path": path}, 403, "forbidden")
            for path in (
                "..",
                "/",
                ".",
                "a/../docs.engr",
                "docs.engr/..",
                "~/docs.engr\0",
                "x.ENGR",
            )
        ),
        ({"name": "x"}, 400, "invalid_value"),
    ):
        answer = server.post("/engrams/load", **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), body
    assert FINGERPRINT.hex() in server.post("/engrams/load", name="x", path="x.engr").text
    assert list(server.tables()) == ["docs"]


@pytest.mark.parametrize("name", ["..", ".", ".x", "../docs", "a/b", "", "a\n", "é", "x" * 65])
def test_a_name_is_no_path(server: Server, name: str) -> None:
    answer = server.post("/engrams/load", name=name, path="docs.engr")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_setting")
    assert server.post("/engrams/unload", name=name).status_code == 404
    assert list(server.tables()) == ["docs"]


@pytest.mark.parametrize("size", [0, 7, 19, 20, 127, 128, 140, -1])
def test_a_damaged_table_is_a_typed_error(server: Server, size: int) -> None:
    whole = (server.folder / "docs.engr").read_bytes()
    for content in (whole[:size], b"GGUF" + whole[4:], whole[:4] + b"\xff" * 200, whole + b"x"):
        (server.folder / "bad.engr").write_bytes(content)
        answer = server.post("/engrams/load", name="docs", path="bad.engr")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engram_file")
    assert server.tables()["docs"]["path"].endswith("docs.engr")


def test_only_admins_change_tables(server: Server) -> None:
    user = {"authorization": "Bearer user"}
    for path in ("/engrams/load", "/engrams/unload"):
        body = {"name": "docs", "path": "docs.engr"}
        answer = httpx.post(server.url + path, json=body, headers=user, timeout=PATIENCE)
        assert answer.status_code == 403
    assert httpx.get(f"{server.url}/engrams", headers=user, timeout=PATIENCE).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": ASKED, "max_tokens": 1}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 1}),
        ("/v1/messages", {"model": "fake", "messages": ASKED, "max_tokens": 1}),
    ],
)
def test_requests_of_every_api_name_tables(path: str, body: Any, server: Server) -> None:
    many = [{"name": "docs", "weight": 2}]
    answer = server.post(path, **body, engram=many, engram_alpha=0.5, engram_form="literal")
    assert answer.status_code == 200, answer.text
    bias = server.executor.slots[0].rules.of(EngramBias)
    assert bias is not None
    assert ([weight for _, weight in bias.tables], bias.alpha, bias.literal) == ([2.0], 0.5, True)
    unknown = server.post(path, **body, engram="dogs")
    assert unknown.status_code == 400
    assert "there is docs" in unknown.text
    for wrong in ({"engram": 3}, {"engram": [{"weight": 1}]}, {"engram_form": "raised"}):
        assert server.post(path, **body, **wrong).status_code == 400, wrong

"""Requests that name adapters, and the routes that load and unload them, over a socket."""

from __future__ import annotations

import json
import re
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.extensions.lora.settings import LoraSettings
from heddle.hosting.registry import Registry
from live_server import live_server
from lora_writer import RANK, changes_of, gguf_tensors, peft_tensors, write_gguf_adapter, write_peft
from models.tiny.llama import PLAIN
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMPT = [(7 * i * i + 3 * i) % 31 + 1 for i in range(40)]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
BOSS = {"authorization": "Bearer boss"}
USER = {"authorization": "Bearer user"}


class Server:
    """A server of the model `m` with the adapter `one`, and a folder with the adapter `two`."""

    def __init__(self, url: str, folder: Path, registry: Registry) -> None:
        self.url, self.folder, self.registry = url, folder, registry

    def post(self, path: str, body: Any, headers: dict[str, str] = BOSS) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE, headers=headers)

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=PATIENCE, headers=BOSS).json()

    def text(self, **body: Any) -> str:
        """The text of a completion."""
        answer = self.post("/v1/completions", asked(**body)).json()
        assert "choices" in answer, answer
        return str(answer["choices"][0]["text"])

    def chat(self, **body: Any) -> str:
        """The text of a chat's answer."""
        messages = [{"role": "user", "content": "ABC"}]
        asks = {"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        answer = self.post("/v1/chat/completions", asks | body).json()
        assert "choices" in answer, answer
        return str(answer["choices"][0]["message"]["content"])

    def load(self, name: str, path: object, **more: Any) -> httpx.Response:
        body = {"lora_name": name, "lora_path": str(path)} | more
        return self.post("/v1/load_lora_adapter", body)

    def unload(self, name: str) -> httpx.Response:
        return self.post("/v1/unload_lora_adapter", {"lora_name": name})

    def scales(self, *scales: tuple[int, float]) -> httpx.Response:
        return self.post("/lora-adapters", [{"id": i, "scale": scale} for i, scale in scales])

    def write(self, place: str, seed: int) -> Path:
        return write_peft(self.folder / place, peft_tensors(changes_of(PLAIN, seed=seed)))


def asked(**body: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True} | body


@contextmanager
def serving(tmp_path: Path, **models: Any) -> Iterator[Server]:
    model = PLAIN.write_folder(tmp_path / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    one = write_peft(tmp_path / "one", peft_tensors(changes_of(PLAIN, seed=0)))
    folder = tmp_path / "served"
    folder.mkdir()
    write_peft(folder / "two", peft_tensors(changes_of(PLAIN, seed=1)))
    engine = EngineConfig(
        slots=8, threads=2, kv_cache=1 << 22, extensions=(LoraSettings(lora=(f"one={one}",)),)
    )
    config = ServerConfig(port=0, api_key=("user",), admin_key=("boss",), alias=("gpt",))
    models = {"models_dir": str(folder)} | models
    with Registry(RegistryConfig(**models), engine) as registry:
        registry.load(model, name="m")
        with live_server(registry, config) as live:
            yield Server(live.url, folder, registry)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


def message(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


def test_requests_name_adapters_in_all_ways(server: Server) -> None:
    assert server.load("two", "two").status_code == 200
    for ask in (server.text, server.chat):
        plain, one, two = ask(), ask(model="one"), ask(model="two")
        assert len({plain, one, two}) == 3
        assert ask(model="m") == ask(model="gpt") == plain
        assert ask(model="m:one") == ask(model="gpt:one") == ask(lora="one") == one
        assert ask(model="two", lora="one") == ask(model="m", lora=["one"]) == one
        assert ask(lora=[{"name": "two"}]) == ask(lora=[{"id": 1}]) == ask(lora_path="two") == two
        both = ask(lora=["one", {"name": "two", "scale": -1.0}])
        assert both not in {plain, one, two}
        assert ask(lora=[{"name": "one", "scale": 0}]) == plain
        assert ask(model="one", lora=[]) == plain


VECTOR_ROUTES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/embeddings", {"input": ["AHZ"]}),
    ("/api/embed", {"input": ["AHZ"]}),
    ("/api/embeddings", {"prompt": "AHZ"}),
    ("/embedding", {"content": "AHZ"}),
    ("/pooling", {"input": "AHZ"}),
    ("/score", {"text_1": "AHZ", "text_2": "BCDE"}),
    ("/v2/embed", {"texts": ["AHZ"], "input_type": "clustering"}),
)


@pytest.mark.parametrize(("path", "body"), VECTOR_ROUTES)
def test_vectors_have_the_adapter_that_is_their_model(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    def answer(name: str) -> str:
        found = server.post(path, {"model": name} | body)
        assert found.status_code == 200, found.text
        shown = found.json()
        vectors = ("data", "embeddings", "embedding")  # the other fields differ by time and name
        return str(shown if isinstance(shown, list) else [shown.get(key) for key in vectors])

    plain, one = answer("m"), answer("one")
    assert plain != one == answer("m:one")
    assert server.scales((0, 1.0)).status_code == 200
    assert answer("m") == one


def test_the_answer_names_what_the_request_named(server: Server) -> None:
    for name in ("one", "m:one", "m"):
        assert server.post("/v1/completions", asked(model=name)).json()["model"] == name


GREEDY = {"temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "ABC"}], "max_tokens": 9}
APIS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("/completion", {"prompt": "ABC", "n_predict": 9} | GREEDY, '"content":"(.*?)"'),
    ("/v1/chat/completions", CHAT | GREEDY, '"content":"(.*?)"'),
    ("/v1/messages", CHAT | {"temperature": 0}, '"text":"(.*?)"'),
    ("/v1/responses", {"input": "ABC", "max_output_tokens": 9} | GREEDY, '"text":"(.*?)"'),
    ("/api/chat", CHAT | {"options": GREEDY | {"num_predict": 9}}, '"content":"(.*?)"'),
    (
        "/api/generate",
        {"prompt": "ABC", "raw": True, "options": GREEDY | {"num_predict": 9}},
        '"response":"(.*?)"',
    ),
)


@pytest.mark.parametrize(("path", "body", "pattern"), APIS)
def test_all_apis_have_adapters(
    server: Server, path: str, body: dict[str, Any], pattern: str
) -> None:
    def text(model: str = "m", **more: Any) -> str:
        asks = {"model": model, "stream": False} | body
        asks |= {"options": asks["options"] | more} if "options" in asks else more
        answer = server.post(path, asks)
        assert answer.status_code == 200, answer.text
        return "".join(re.findall(pattern, answer.text))

    plain, one = text(), text(model="one")
    assert plain != one == text(lora="one") == text(model="m:one")
    assert text(model="one", lora=[]) == plain


def test_llama_cpp_s_settings_name_the_adapters(server: Server) -> None:
    body = {"prompt": "ABC", "n_predict": 1, "lora": [{"id": 0, "scale": 0.5}]}
    settings = server.post("/completion", body).json()["generation_settings"]
    assert settings["lora"] == [{"name": 0, "scale": 0.5}]


@pytest.mark.parametrize("streams", [False, True])
def test_fingerprints_name_the_contents_of_adapters(server: Server, streams: bool) -> None:
    def fingerprint(**body: Any) -> str:
        answer = server.post("/v1/completions", asked(stream=streams, **body)).text
        found = set(re.findall(r'"system_fingerprint":"(bits-[0-9a-f]{16})"', answer))
        assert len(found) == 1, answer
        return str(found.pop())

    plain, one = fingerprint(), fingerprint(model="one")
    server.load("two", "two")
    two, half = fingerprint(model="two"), fingerprint(lora=[{"name": "one", "scale": 0.5}])
    assert len({plain, one, two, half}) == 4
    assert fingerprint(lora=[]) == fingerprint(lora=[{"name": "one", "scale": 0}]) == plain
    assert fingerprint(lora="one", cache_salt="x") == one
    server.write("two", 7)
    server.load("two", "two", load_inplace=True)
    assert fingerprint(model="two") not in {plain, one, two, half}
    server.scales((0, 1.0))
    assert fingerprint() == one


def test_unknown_names_are_refused_with_those_that_there_are(server: Server) -> None:
    for name in ("three", "m:three", "three:one"):
        unknown = server.post("/v1/completions", asked(model=name))
        assert unknown.status_code == 404
        assert "'one'" in message(unknown)
    for named in ("three", ["one", "three"], [{"id": 7}]):
        refused = server.post("/v1/completions", asked(lora=named))
        assert refused.status_code == 400
        assert "there is one" in message(refused)
    wrong = server.post("/v1/completions", asked(lora=[{"name": "one", "scale": 1000}]))
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "lora.scale")


def test_models_have_their_adapters(server: Server) -> None:
    server.load("two", "two")
    models = {one["id"]: one.get("parent") for one in server.get("/v1/models")["data"]}
    assert models == {"m": None, "one": "m", "two": "m"}
    one, two = server.get("/v1/models")["data"][1:]
    assert (two["rank"], two["bytes"] > 0, "rank" in one) == (RANK, True, False)
    server.load("again", "two")
    body = httpx.get(server.url + "/metrics", timeout=PATIENCE, headers=BOSS).text
    found = {
        name: float(value)
        for name, value in re.findall(r"^(heddle_adapter\w*)\{.*\} (\S+)$", body, re.MULTILINE)
    }
    assert found == {
        "heddle_adapters": 3,
        "heddle_adapters_loaded": 2,
        "heddle_adapter_bytes": two["bytes"],
    }
    assert server.get("/v1/models/one")["id"] == "one"


def test_an_adapter_is_loaded_replaced_and_unloaded(server: Server) -> None:
    plain, one = server.text(), server.text(model="one")
    loaded = server.load("two", "two")
    assert (loaded.status_code, "'two' added" in loaded.text) == (200, True)
    two = server.text(model="two")
    server.write("two", 2)
    taken = server.load("two", "two")
    assert (taken.status_code, "load_inplace" in message(taken)) == (400, True)
    assert server.text(model="two") == two
    assert server.load("two", "two", load_inplace=True).status_code == 200
    other = server.text(model="two")
    assert other not in {plain, one, two}
    (server.folder / "two" / "adapter_model.safetensors").write_bytes(b"broken")
    broken = server.load("two", "two", load_inplace=True)
    assert (broken.status_code, broken.json()["error"]["code"]) == (503, "model_file")
    assert server.text(model="two") == other, "what is broken replaces nothing"
    gone = server.unload("two")
    assert (gone.status_code, "'two' removed" in gone.text) == (200, True)
    assert server.post("/v1/completions", asked(model="two")).status_code == 404
    assert server.unload("two").status_code == 404
    assert server.text(model="m") == plain


def test_a_gguf_file_is_loaded(server: Server) -> None:
    changes = changes_of(PLAIN, seed=1)
    write_gguf_adapter(server.folder / "two.gguf", PLAIN, gguf_tensors(PLAIN, changes))
    assert server.load("file", "two.gguf").status_code == 200
    assert server.load("folder", "two").status_code == 200
    assert server.text(model="file") == server.text(model="folder")


@pytest.mark.parametrize("taken", ["m", "gpt"])
def test_an_adapter_cannot_have_the_name_of_a_model(server: Server, taken: str) -> None:
    refused = server.load(taken, "two", load_inplace=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "lora_name")


def test_only_the_models_folder_is_read(server: Server) -> None:
    outside = server.folder.parent / "one"
    (server.folder / "link").symlink_to(outside)
    half = server.write("half", 3)
    (half / "adapter_model.safetensors").unlink()
    (half / "adapter_model.safetensors").symlink_to(outside / "adapter_model.safetensors")
    weights = server.write("other", 3) / "adapter_model.safetensors"
    (server.folder / "other" / "adapter_config.json").unlink()
    (server.folder / "other" / "adapter_config.json").symlink_to(outside / "adapter_config.json")
    (server.folder / "two.gguf").symlink_to(outside / "adapter_model.safetensors")
    refused = ["../one", "two/../../one", outside, "link", "half", weights, "two.gguf", "gone"]
    for path in (*refused, "a\0b", "a" * 300, "org/name", "hf:org/name", "~/one"):
        answer = server.load("three", path)
        assert (answer.status_code, path) == (403, path), answer.text
    assert server.load("three", server.folder / "two").status_code == 200


def test_default_scales_apply_to_requests_that_name_none(server: Server) -> None:
    server.load("two", "two")
    plain, one, two = server.text(), server.text(model="one"), server.text(model="two")
    listed = server.get("/lora-adapters")
    assert [(each["id"], each["name"], each["scale"]) for each in listed] == [
        (0, "one", 0.0),
        (1, "two", 0.0),
    ]
    assert server.scales((0, 1.0)).json() == {"success": True}
    assert server.get("/lora-adapters")[0]["scale"] == 1.0
    assert server.text() == server.text(model="m") == one
    assert server.text(lora=[]) == plain
    assert server.text(model="two") == server.text(lora="two") == two
    unknown = server.scales((1, 1.0), (9, 1.0))
    assert (unknown.status_code, "no adapter has id 9" in message(unknown)) == (400, True)
    assert server.text() == one, "a refused body changes nothing"
    assert server.scales((1, 1.0)).status_code == 200
    assert server.text() == two, "those that are left out have the factor 0"
    assert server.scales().status_code == 200
    assert server.text() == plain


def test_an_adapter_that_is_a_default_may_be_unloaded(server: Server) -> None:
    plain = server.text()
    assert server.scales((0, 1.0)).status_code == 200
    assert server.unload("one").status_code == 200
    assert server.text() == plain


def test_admin_keys_are_needed(server: Server) -> None:
    for path, body in (
        ("/v1/load_lora_adapter", {"lora_name": "two", "lora_path": "two"}),
        ("/v1/unload_lora_adapter", {"lora_name": "one"}),
        ("/lora-adapters", [{"id": 0, "scale": 1.0}]),
    ):
        assert server.post(path, body, USER).status_code == 403
        assert server.post(path, body, {}).status_code == 401
    assert server.post("/v1/completions", asked(model="one"), USER).status_code == 200
    assert [one["name"] for one in server.get("/lora-adapters")] == ["one"]


def read(lines: Iterator[str]) -> str:
    """The rest of a stream's text."""
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    found = [json.loads(event) for event in events if event != "[DONE]"]
    return "".join(one["choices"][0]["text"] for one in found if one["choices"])


def test_loads_and_unloads_change_no_running_stream(server: Server) -> None:
    bodies = [{"lora": "one"}, {"lora": "two"}, {"model": "m"}, {"lora": ["one", "two"]}]
    server.load("two", "two")
    expected = [server.text(max_tokens=150, **body) for body in bodies]
    server.post("/v1/prefix_cache", {})
    with ExitStack() as stack:
        streams = []
        for body in bodies:
            asks = asked(max_tokens=150, stream=True, **body)
            stream = stack.enter_context(
                httpx.stream(
                    "POST",
                    server.url + "/v1/completions",
                    json=asks,
                    headers=USER,
                    timeout=PATIENCE,
                )
            )
            assert stream.status_code == 200
            streams.append(stream)
        found = [""] * len(streams)

        def gather(index: int) -> None:
            found[index] = read(streams[index].iter_lines())

        readers = [threading.Thread(target=gather, args=(index,)) for index in range(len(streams))]
        for reader in readers:
            reader.start()
        server.write("two", 5)
        for seed in range(3):
            assert server.load("two", "two", load_inplace=True).status_code == 200
            assert server.unload("one").status_code == (200 if seed == 0 else 404)
        assert server.unload("two").status_code == 200
        for reader in readers:
            reader.join(PATIENCE)
    assert found == expected

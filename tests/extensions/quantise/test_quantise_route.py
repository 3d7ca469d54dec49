"""`POST /v1/models/quantize`: a new file in the models' folder, by a process that gives way."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from fake_loads import Loads, until
from gguf_writer import Tensor
from heddle.config import RegistryConfig, ServerConfig
from heddle.engine import Engine
from heddle.errors import HeddleError
from heddle.extensions.quantise import api, quantisation
from heddle.extensions.quantise.quantisation import Quantisation
from heddle.hosting.registry import Registry
from heddle.weights.gguf.file import GGUFFile
from live_server import live_server
from models.tiny.llama import TinyLlama
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from live_server import LiveServer

WIDE = TinyLlama(
    "wide", heads=4, kv_heads=2, head_dim=64, tied=False, layers=2, width=256, ffn_width=288
)

BODY = {"model": "wide", "name": "new", "type": "q4_k"}


@dataclass
class Server:
    """A server with a folder of models."""

    live: LiveServer
    folder: Path
    registry: Registry

    def post(self, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.live.url}/v1/models/quantize", json=body, timeout=PATIENCE)

    def lines(self, **body: Any) -> Generator[dict[str, Any], None, None]:
        url = f"{self.live.url}/v1/models/quantize"
        with httpx.stream("POST", url, json=body, timeout=PATIENCE) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/x-ndjson"
            yield from map(json.loads, answer.iter_lines())

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@contextmanager
def served(
    folder: Path, registry: RegistryConfig | None = None, **settings: Any
) -> Iterator[Server]:
    config = registry or RegistryConfig(models_dir=str(folder))
    with Registry(config) as models:
        models.add("one")
        with live_server(models, ServerConfig(port=0, **settings)) as live:
            yield Server(live, folder, models)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that has the model `wide` in its folder, and has loaded none."""
    monkeypatch.setattr(Engine, "load", Loads())
    monkeypatch.setattr(api, "REPEAT_SECONDS", 0.01)
    folder = tmp_path / "models"
    folder.mkdir()
    WIDE.write(folder / "wide.gguf")
    with served(folder) as server:
        yield server


def acts(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the child process run this code instead, with its input in `asked`."""
    begin = "import json, os, sys, time; asked = json.loads(sys.stdin.readline())\n"
    begin += "say = lambda **report: print(json.dumps(report), flush=True)\n"
    monkeypatch.setattr(quantisation, "_COMMAND", [sys.executable, "-c", begin + code])


STAYS = "say(total=9, completed=4)\nwhile True: time.sleep(60)"
DONE = "open(asked['target'], 'w').write('it')\nsay(total=9, completed=9)\nsay(bytes=2, kept='')"


# --- what it makes -------------------------------------------------------------------------------


def test_a_model_becomes_a_new_file_and_is_known(server: Server) -> None:
    first, *_, last = server.lines(**BODY)
    assert first["status"] == "quantising wide"
    assert (first["completed"], first["total"] > 0) == (0, True)
    size = (server.folder / "new.gguf").stat().st_size
    made = {"model": "new", "file": "new.gguf", "bytes": size, "kept": ""}
    assert last == {"status": "success"} | made
    with GGUFFile.open(server.folder / "new.gguf") as file:
        assert file.tensors["blk.1.attn_q.weight"].type.name == "Q4_K"
    assert server.files == ["new.gguf", "wide.gguf"]
    assert server.registry.source_of("new") == str(server.folder / "new.gguf")


def test_without_a_stream_the_answer_comes_at_the_end(server: Server) -> None:
    again = server.post(**BODY | {"name": "new.gguf", "type": "q8_0"}, stream=False, threads=1)
    assert again.json()["status"] == "success"
    kept = server.post(**BODY | {"model": "new", "name": "newer"}, stream=False)
    assert kept.json()["kept"] == "16 of type Q8_0"


# --- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../x",
            "/etc/x",
            "a/b",
            "..",
            ".x",
            "a b",
            "a\\b",
            "a\0b",
            "a\n",
            "-x",
            "\u00e4",
            "x" * 201,
        ),
        *("wide", "wide.gguf", "one", "link", "x-00001-of-00002"),
    ],
)
def test_a_bad_name_is_refused(server: Server, tmp_path: Path, name: str) -> None:
    (server.folder / "link.gguf").symlink_to(tmp_path / "outside.gguf")
    refused = server.post(**BODY | {"name": name})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "name"
    assert server.files == ["link.gguf", "wide.gguf"]
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize(
    ("model", "status"), [("../wide", 403), ("/etc/passwd", 403), ("org/name", 403), ("none", 404)]
)
def test_a_model_that_requests_may_not_name(server: Server, model: str, status: int) -> None:
    assert server.post(**BODY | {"model": model}).status_code == status
    assert server.files == ["wide.gguf"]


def test_nothing_is_fetched(server: Server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HEDDLE_HOME", str(tmp_path / "home"))
    refused = server.post(**BODY | {"model": "smollm2-135m"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_source")
    assert "nothing may be fetched" in refused.json()["error"]["message"]
    assert server.files == ["wide.gguf"]


def test_a_server_without_a_folder_writes_nothing(tmp_path: Path) -> None:
    with served(tmp_path, RegistryConfig()) as server:
        refused = server.post(**BODY | {"model": "one"})
    assert refused.status_code == 403
    assert "--models-dir" in refused.json()["error"]["message"]


def test_only_admins_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acts(monkeypatch, DONE)
    WIDE.write(tmp_path / "wide.gguf")
    with served(tmp_path, api_key=("sk-1",), admin_key=("sk-boss",)) as server:
        url = f"{server.live.url}/v1/models/quantize"
        for key, status in (("sk-1", 403), ("sk-none", 401), ("sk-boss", 200)):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.post(url, json=BODY, headers=headers).status_code == status


def test_a_damaged_model_is_named(server: Server) -> None:
    bad = np.full((256, 288), np.inf, np.float32)
    WIDE.write(server.folder / "bad.gguf", [Tensor.of("blk.9.ffn_down.weight", bad)])
    refused = server.post(**BODY | {"model": "bad"}, stream=False)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (503, "model_file")
    assert "infinite" in error["message"]
    assert server.files == ["bad.gguf", "wide.gguf"]


def test_an_error_before_the_work_has_a_status_and_later_ends_the_stream(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = "say(error=['OutOfMemoryError', 'too little', None])"
    acts(monkeypatch, error)
    assert (early := server.post(**BODY)).status_code == 503
    assert early.json()["error"]["code"] == "out_of_memory"
    acts(monkeypatch, f"say(total=9, completed=0)\n{error}")
    first, *_, last = server.lines(**BODY)  # a report is repeated after a second
    assert first == {"status": "quantising wide", "total": 9, "completed": 0}
    assert last == early.json()


def test_a_process_that_dies_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    acts(monkeypatch, "os._exit(3)")
    died = server.post(**BODY)
    assert died.status_code == 500
    assert "ended with status 3" in died.json()["error"]["message"]
    assert server.files == ["wide.gguf"]


def test_a_folder_that_cannot_be_written(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(quantisation.tempfile, "TemporaryDirectory", full)
    refused = server.post(**BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_source")
    assert "No space left" in refused.json()["error"]["message"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_came_meanwhile_stays(
    server: Server, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", no_links)
    other = server.folder / "new.gguf"
    acts(monkeypatch, f"open({str(other)!r}, 'w').write('other')\n{DONE}")
    refused = server.post(**BODY, stream=False)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "name"
    assert other.read_text() == "other"
    assert server.files == ["new.gguf", "wide.gguf"]


def test_a_folder_without_links_gets_the_file(server: Server, monkeypatch) -> None:
    monkeypatch.setattr(Path, "hardlink_to", no_links)
    acts(monkeypatch, DONE)
    assert server.post(**BODY, stream=False).status_code == 200
    assert (server.folder / "new.gguf").read_text() == "it"


def no_links(*_: object) -> None:
    raise OSError(95, "Operation not supported")


# --- how it ends ---------------------------------------------------------------------------------


def test_one_at_a_time_until_its_client_leaves(server: Server, monkeypatch) -> None:
    acts(monkeypatch, STAYS)
    running = server.lines(**BODY)
    next(running)
    refused = server.post(**BODY | {"name": "other"}, stream=False)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
    running.close()
    until(lambda: server.files == ["wide.gguf"])
    acts(monkeypatch, DONE)
    until(lambda: server.post(**BODY, stream=False).status_code == 200)
    assert server.files == ["new.gguf", "wide.gguf"]


def test_a_client_that_leaves_before_a_report(server: Server, monkeypatch) -> None:
    acts(monkeypatch, "while True: time.sleep(60)")
    url = f"{server.live.url}/v1/models/quantize"
    client = threading.Event()

    async def ask() -> None:
        async with httpx.AsyncClient() as http:
            asking = asyncio.create_task(http.post(url, json=BODY, timeout=PATIENCE))
            while not any(name.startswith(".heddle") for name in server.files):
                await asyncio.sleep(0)
            asking.cancel()
            client.set()

    asyncio.run(ask())
    assert client.is_set()
    until(lambda: server.files == ["wide.gguf"])


def test_a_server_that_ends_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    acts(monkeypatch, STAYS)
    WIDE.write(tmp_path / "wide.gguf")
    with served(tmp_path) as server:
        running = server.lines(**BODY)
        next(running)
    until(lambda: server.files == ["wide.gguf"])
    running.close()


def test_one_that_is_cancelled_before_its_process_starts(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts(monkeypatch, STAYS)
    ended: list[bool] = []

    async def cancelled() -> None:
        target = server.folder / "new.gguf"
        begun = Quantisation(server.registry, "wide", target, {}, lambda: ended.append(True))
        begun.cancel()
        begun.start()
        try:
            await asyncio.wait_for(begun.result(), PATIENCE)
        finally:
            begun.cancel()

    with pytest.raises(HeddleError, match="status -9"):
        asyncio.run(cancelled())
    assert ended == [True]


def test_one_may_outlive_the_event_loop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    acts(monkeypatch, STAYS)

    async def begin() -> Quantisation:
        target = server.folder / "new.gguf"
        begun = Quantisation(server.registry, "wide", target, {}, lambda: None)
        begun.start()
        await begun.report()
        return begun

    begun = asyncio.run(begin())
    [thread] = [one for one in threading.enumerate() if one.name == "heddle-quantise"]
    begun.cancel()
    thread.join(PATIENCE)  # an exception in it would fail this test
    assert server.files == ["wide.gguf"]


# --- the process ---------------------------------------------------------------------------------


def child(quantise: str) -> subprocess.Popen[bytes]:
    """The process, with another function for the work."""
    code = (
        "import os, threading; from heddle.extensions.quantise import child\n"
        f"child.quantise = {quantise}\n"
        "child.main()"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], **pipes, env=environ)


def test_the_process_ends_with_its_input_and_deletes_what_it_wrote(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "part").write_text("half")
    asked = json.dumps({"target": str(work / "new.gguf")}).encode()
    with child("lambda **_: threading.Event().wait()") as process:
        try:
            process.communicate(asked + b"\n", timeout=PATIENCE)
        finally:
            process.kill()  # leaving the block waits for it
    assert process.returncode == 1
    assert not work.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these")
def test_the_process_gives_way_to_streams() -> None:
    found = "dict(idle=os.sched_getscheduler(0) == os.SCHED_IDLE, nice=os.nice(0), "
    found += "oom=open('/proc/self/oom_score_adj').read())"
    with child(f"lambda **_: {found}") as process:
        assert process.stdin and process.stdout
        process.stdin.write(b'{"target": "/none/x"}\n')
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
    assert answer == {"idle": True, "nice": 19, "oom": "1000\n"}


def test_the_process_tells_of_failures_that_nobody_expects() -> None:
    with child("lambda **_: 1 / 0") as process:
        assert process.stdin and process.stdout
        process.stdin.write(b'{"target": "/none/x"}\n')
        process.stdin.flush()
        kind, message, param = json.loads(process.stdout.readline())["error"]
    assert (kind, param) == ("HeddleError", None)
    assert "ZeroDivisionError: division by zero" in message

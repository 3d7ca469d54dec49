"""`POST /slots/{id}`: files of slots, as clients of llama.cpp save and restore them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from configs import server_config
from heddle.errors import ConfigError
from heddle.extensions.llamacpp import slots

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_server import Running

PROMPT = "the sea is blue and the sky is as well and so are the hills in the evening"
SAVED = len(PROMPT) + 3


@pytest.fixture
def running(
    serve: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Running:
    """A server with a directory for slot files. Its model has a file."""
    (tmp_path / "fake.gguf").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    return serve(slot_save_path=str(tmp_path / "slots"), slots=4)


def complete(running: Running, **fields: Any) -> dict[str, Any]:
    asked = {"prompt": PROMPT, "n_predict": 4, "seed": 1, "ignore_eos": True}
    answer = running.post("/completion", asked | fields)
    assert (answer.status_code, answer.headers.get("x-heddle-ignored")) == (200, None)
    return answer.json()


def act(running: Running, action: str, slot: int = 1, **options: Any) -> dict[str, Any]:
    body = None if action == "erase" else {"filename": "slot.bin"}
    answer = running.post(f"/slots/{slot}?action={action}", body, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_saved_slot_comes_back_in_another_one(running: Running, tmp_path: Path) -> None:
    first = complete(running, id_slot=1)
    saved = act(running, "save")
    size = (tmp_path / "slots" / "slot.bin").stat().st_size
    assert saved.pop("timings")["save_ms"] > 0
    assert saved == {"id_slot": 1, "filename": "slot.bin", "n_saved": SAVED, "n_written": size}
    assert act(running, "erase") == {"id_slot": 1, "n_erased": SAVED}
    assert complete(running, n_predict=0)["timings"]["cache_n"] == 0
    running.engine.flush_prefix_cache()
    restored = act(running, "restore", 2)
    assert restored.pop("timings")["restore_ms"] > 0
    assert restored == {"id_slot": 2, "filename": "slot.bin", "n_restored": SAVED, "n_read": size}
    again = complete(running, id_slot=2)
    times = again["timings"]
    assert (again["content"], times["prompt_n"]) == (first["content"], 1)
    assert times["cache_n"] == len(PROMPT) - 1


def test_without_the_setting_it_is_not_supported(shared: Running) -> None:
    answer = shared.post("/slots/0?action=save", {"filename": "a"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (501, 501, "not_supported_error")
    assert "--slot-save-path" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/slots/4?action=erase", None, "id_slot"),
        ("/slots/-1?action=erase", None, "id_slot"),
        ("/slots/first?action=save", {"filename": "a"}, "id_slot"),
        ("/slots/0", {"filename": "a"}, "action"),
        ("/slots/0?action=load", {"filename": "a"}, "action"),
        ("/slots/0?action=save", {}, "filename"),
        ("/slots/0?action=save", {"filename": "../a"}, "filename"),
        ("/slots/0?action=restore", {"filename": "missing"}, "filename"),
    ],
)
def test_bad_requests(running: Running, path: str, body: Any, param: str) -> None:
    answer = running.post(path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_directory_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = server_config(slot_save_path=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="slot_save_path"):
        slots.routes(cast("Any", SimpleNamespace(config=config)))


def test_each_key_has_its_own_prefixes(
    serve: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake.gguf").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    running = serve(
        slot_save_path=str(tmp_path / "slots"),
        api_key=("user",),
        admin_key=("one", "two"),
        prefix_cache_per_key=True,
    )
    one, two, user = ({"x-api-key": key} for key in ("one", "two", "user"))
    running.post("/completion", {"prompt": PROMPT, "n_predict": 4, "ignore_eos": True}, headers=one)
    assert running.post("/slots/0?action=erase", headers=user).status_code == 403
    assert act(running, "save", 0, headers=two)["n_saved"] == 0
    assert act(running, "erase", 0, headers=two)["n_erased"] == 0
    assert act(running, "save", 0, headers=one)["n_saved"] == SAVED
    body = {"filename": "slot.bin"}
    refused = running.post("/slots/0?action=restore", body, headers=two)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "filename")

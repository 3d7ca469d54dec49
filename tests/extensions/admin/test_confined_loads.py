"""`POST /models/load` reaches no file, package or folder that the operator has not allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from fake_server import Running


@pytest.mark.parametrize(
    ("model", "status"),
    [
        ("/etc/passwd", 403),
        ("../../etc/passwd", 403),
        ("~/model.gguf", 403),
        ("pypi:some-package", 403),
        ("hf:org/name", 403),
        ("org/name", 403),
        ("https://example.org/model.gguf", 403),
        ("no-such-model", 404),
        ("no\nname", 400),
    ],
)
def test_names_beyond_the_settings_are_refused(shared: Running, model: str, status: int) -> None:
    answer = shared.post("/v1/models/load", {"model": model})
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == "model"
    assert [one["id"] for one in shared.get("/v1/models").json()["data"]] == ["fake"]


def test_a_file_outside_of_the_folder_is_refused(shared: Running, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    answer = shared.post("/v1/models/load", {"model": str(path)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "places",
    [{"prefix_cache_dir": "/tmp/x"}, {"hub_cache": "/tmp/x"}, {"offline": False}, {"device": "x"}],
)
def test_settings_that_name_places_are_unknown(shared: Running, places: dict[str, Any]) -> None:
    answer = shared.post("/v1/models/load", {"model": "smollm2-135m"} | places)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_parameter")
    assert error["param"] == next(iter(places))

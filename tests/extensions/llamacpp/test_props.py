"""`/props`, `/lora-adapters` and `/apply-template`, as clients of llama.cpp ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

ASKED = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("path", ["/props", "/v1/props", "/props?model=fake&autoload=false"])
def test_properties(shared: Running, path: str) -> None:
    told = shared.get(path).json()
    assert (told["total_slots"], told["model_alias"], told["model_path"]) == (
        4,
        "fake",
        "fake.gguf",
    )
    assert told["chat_template"] == "{{ messages }}"
    assert not any(told["modalities"].values())
    assert (told["bos_token"], told["eos_token"]) == ("", "<end>")
    assert told["build_info"].startswith("heddle ")
    defaults = told["default_generation_settings"]
    assert defaults["n_ctx"] == 512
    assert (defaults["params"]["n_predict"], defaults["params"]["seed"]) == (-1, 2**32 - 1)


def test_properties_show_the_defaults_of_model_and_server(serve: Callable[..., Running]) -> None:
    server = serve(defaults={"temperature": 0.25, "top_k": 3}, sampling={"min_p": 0.5})
    params = server.get("/props").json()["default_generation_settings"]["params"]
    assert (params["temperature"], params["top_k"], params["min_p"]) == (0.25, 3, 0.5)


def test_properties_of_an_unknown_model_are_a_404(shared: Running) -> None:
    answer = shared.get("/props?model=other")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_template_takes_a_tool_choice(shared: Running, choice: str) -> None:
    body: dict[str, Any] = {"messages": ASKED, "tools": [TOOL], "tool_choice": choice}
    prompt = shared.post("/apply-template", body).json()["prompt"]
    assert ("<tools>" in prompt) == (choice != "none")


def test_models_have_llama_cpp_s_meta(shared: Running) -> None:
    [model] = shared.get("/v1/models").json()["data"]
    names = {"n_vocab", "n_ctx", "n_embd", "n_params", "size", "ftype"}
    assert model["meta"].keys() == names

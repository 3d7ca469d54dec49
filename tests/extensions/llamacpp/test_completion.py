"""`/completion` in llama.cpp's shape."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import solo_output
from fake_model import FakeTokenizer, text_of
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

BODY = {"prompt": "hello", "seed": 1, "ignore_eos": True, "n_predict": 8}
TOKENS = FakeTokenizer().encode("hello")


def ids(prompt: list[int], seed: int = 1) -> list[int]:
    params = SamplingParams(seed=seed, max_tokens=8, ignore_eos=True)
    return solo_output(prompt, params, 512)


def events(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(one.removeprefix("data: ")) for one in answer.text.split("\n\n")[:-1]]


def test_an_answer_has_all_fields(shared: Running) -> None:
    answer = shared.post("/completion", BODY | {"return_tokens": True}).json()
    tokens = ids(TOKENS)
    assert (answer["content"], answer["tokens"]) == (text_of(tokens), tokens)
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (8, 5)
    assert (answer["index"], answer["id_slot"], answer["model"]) == (0, -1, "fake")
    assert (answer["prompt"], answer["truncated"]) == ("hello", False)
    assert answer["has_new_line"] is ("\n" in answer["content"])
    assert answer["timings"]["predicted_n"] == 8
    settings = answer["generation_settings"]
    assert (settings["seed"], settings["n_predict"], settings["max_tokens"]) == (1, 8, 8)
    assert (settings["n_ctx"], settings["ignore_eos"], settings["stream"]) == (512, True, False)
    assert settings["samplers"][:2] == ["penalties", "dry"]


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("hello", TOKENS),
        (TOKENS, TOKENS),
        ([*TOKENS, "ab"], [*TOKENS, 1, 2]),
        (["ab", 3, 4], [1, 2, 3, 4]),
        ({"prompt_string": "ab"}, [1, 2]),
        ({"prompt_string": "ab", "multimodal_data": []}, [1, 2]),
        (["ab"], [1, 2]),
        ([[1, "bc"]], [1, 2, 3]),
    ],
)
def test_forms_of_one_prompt(shared: Running, prompt: Any, tokens: list[int]) -> None:
    answer = shared.post("/completion", BODY | {"prompt": prompt, "return_tokens": True}).json()
    assert answer["tokens_evaluated"] == len(tokens)
    assert answer["tokens"] == ids(tokens)


def test_several_prompts_with_several_choices(shared: Running) -> None:
    prompts = ["ab", [3, 4], [1, "b"], {"prompt_string": "c"}]
    answer = shared.post("/completion", BODY | {"prompt": prompts, "n_cmpl": 2}).json()
    given = [[1, 2], [3, 4], [1, 2], [3]]
    assert [one["index"] for one in answer] == list(range(8))
    assert [one["content"] for one in answer] == [
        text_of(ids(prompt, seed)) for prompt in given for seed in (1, 2)
    ]
    assert [one["prompt"] for one in answer[::2]] == ["ab", "cd", "ab", "c"]


def test_a_stream_has_the_same_text_and_tokens(shared: Running) -> None:
    *pieces, last = events(shared.post("/completion", BODY | {"stream": True}))
    tokens = ids(TOKENS)
    assert "".join(piece["content"] for piece in pieces) == text_of(tokens)
    sent = [token for piece in [*pieces, last] for token in piece["tokens"]]
    assert sent == tokens
    assert not any(piece["stop"] for piece in pieces)
    counts = [piece["tokens_predicted"] for piece in pieces]
    assert counts == sorted(counts)
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", "limit")
    assert last["generation_settings"]["stream"] is True


def test_a_stop_string_ends_the_text(shared: Running) -> None:
    text = text_of(ids(TOKENS))
    answer = shared.post("/completion", BODY | {"stop": [text[3:5]]}).json()
    assert answer["content"] == text[:3]
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", text[3:5])


def test_without_a_limit_it_ends_by_itself(shared: Running) -> None:
    body = BODY | {"n_predict": -1, "ignore_eos": False, "seed": 3}
    answer = shared.post("/completion", body).json()
    assert answer["stop_type"] == "eos"
    assert answer["generation_settings"]["n_predict"] == -1


@pytest.mark.parametrize(("most", "truncated"), [(-1, True), (600, True), (507, False)])
def test_an_output_that_fills_the_context_is_truncated(
    shared: Running, most: int, truncated: bool
) -> None:
    answer = shared.post("/completion", BODY | {"n_predict": most}).json()
    assert (answer["stop_type"], answer["tokens_predicted"]) == ("limit", 507)
    assert answer["truncated"] is truncated


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, None])
def test_a_seed_may_be_random(shared: Running, seed: int | None) -> None:
    answers = [
        shared.post("/completion", BODY | {"seed": seed, "n_predict": 20}).json() for _ in range(2)
    ]
    assert answers[0]["content"] != answers[1]["content"]
    assert answers[0]["generation_settings"]["seed"] == 2**32 - 1


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(shared: Running, stream: bool) -> None:
    answer = shared.post("/completion", BODY | {"n_probs": 2, "stream": stream})
    told = events(answer) if stream else [answer.json()]
    scores = [score for one in told for score in one["completion_probabilities"]]
    assert [score["id"] for score in scores] == ids(TOKENS)
    for score in scores:
        assert score["logprob"] == -score["id"] / 8
        assert bytes(score["bytes"]) == FakeTokenizer().token_bytes(score["id"])
        assert [(one["id"], one["token"]) for one in score["top_logprobs"]] == [
            (0, "<end>"),
            (1, "a"),
        ]
    assert "completion_probabilities" not in shared.post("/completion", BODY).text


def test_each_event_of_a_stream_scores_its_own_tokens(shared: Running) -> None:
    """The token that ends the text has no text, so the last event scores it."""
    body = {"prompt": "hello", "n_probs": 1, "seed": 1, "stream": True}
    *pieces, last = events(shared.post("/completion", body))
    for piece in pieces:
        assert [score["id"] for score in piece["completion_probabilities"]] == piece["tokens"]
    scored = [score["id"] for one in (*pieces, last) for score in one["completion_probabilities"]]
    assert scored == solo_output(TOKENS, SamplingParams(seed=1), 512)
    assert [score["token"] for score in last["completion_probabilities"]] == ["<end>"]
    assert last["generation_settings"]["n_probs"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_probabilities_after_the_samplers(shared: Running, stream: bool) -> None:
    body = BODY | {"n_probs": 30, "post_sampling_probs": True, "stream": stream}
    answer = shared.post("/completion", body)
    told = events(answer) if stream else [answer.json()]
    scores = [score for one in told for score in one["completion_probabilities"]]
    assert [score["id"] for score in scores] == ids(TOKENS)
    for score in scores:
        assert score["prob"] == pytest.approx(math.exp(-score["id"] / 8))
        assert [one["id"] for one in score["top_probs"]] == list(range(30))
        assert "logprob" not in score
    settings = told[-1]["generation_settings"]
    assert (settings["post_sampling_probs"], settings["n_probs"]) == (True, 30)


def test_many_probabilities_fit_a_short_answer_or_a_stream(shared: Running) -> None:
    for more in ({"n_predict": 3}, {"stream": True}):
        body = BODY | {"n_probs": 1024, "n": 3} | more
        assert shared.post("/completion", body).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_fields_may_be_selected(shared: Running, stream: bool) -> None:
    paths = ["content", "generation_settings/n_predict", "timings/none", "none", "stop/none"]
    answer = shared.post("/completion", BODY | {"response_fields": paths, "stream": stream})
    last = events(answer)[-1] if stream else answer.json()
    content = "" if stream else text_of(ids(TOKENS))
    assert last == {"content": content, "generation_settings/n_predict": 8}
    assert shared.post("/completion", BODY | {"response_fields": [""]}).json() == {}


@pytest.mark.parametrize(
    "bias",
    [
        [[2, False]],
        {"2": False},
        {"b": False},
        [["b", False]],
        [["ab", -1.5], ["b", False], [2, 1.0]],
    ],
)
def test_a_token_may_be_excluded(shared: Running, bias: Any) -> None:
    answer = shared.post("/completion", BODY | {"logit_bias": bias})
    assert answer.status_code == 200
    told = answer.json()["generation_settings"]["logit_bias"]
    assert {"token": 2, "bias": False} in told
    [occupant] = [o for o in shared.executor.slots.values() if 2 in o.rules.forbidden]
    assert occupant.rules.forbidden == (2,)
    shared.post("/completion", BODY)  # takes the slot, so that the next case finds its own


def test_samplers_have_letters(shared: Running) -> None:
    answer = shared.post("/completion", BODY | {"samplers": "kptie"}).json()
    samplers = ["top_k", "top_p", "temperature", "infill", "penalties"]
    assert answer["generation_settings"]["samplers"] == samplers


HINTS = {
    "cache_prompt": False,
    "n_keep": 4,
    "n_discard": 9,
    "n_cache_reuse": 16,
    "penalize_nl": False,
    "t_max_predict_ms": 100,
    "n_indent": 2,
}


def test_hints_are_named(shared: Running) -> None:
    neutral = {"lora": [], "min_keep": 1, "post_sampling_probs": False, "n_probs": 0, "n_keep": -1}
    assert "x-heddle-ignored" not in shared.post("/completion", BODY | neutral).headers
    answer = shared.post("/completion", BODY | HINTS)
    assert answer.json()["content"] == text_of(ids(TOKENS))
    assert set(answer.headers["x-heddle-ignored"].split(", ")) == set(HINTS)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 1.5]}, "prompt"),
        ({"prompt": ["a", [1, 1.5]]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [32]}, "prompt"),
        ({"prompt": ["a", [1, -1]]}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt.multimodal_data[0]"),
        ({"prompt": {"text": "a"}}, "prompt.text"),
        ({"n_predict": -2}, "max_tokens"),
        ({"n_probs": 1025}, "n_probs"),
        ({"n_probs": 1000, "n_predict": -1, "prompt": ["a"] * 3}, "n_probs"),
        ({"min_keep": 2}, "min_keep"),
        ({"lora": [{"id": 0, "scale": 0.5}]}, "lora"),
        ({"mirostat": 1}, "mirostat"),
        ({"samplers": ["top_k", "nothing"]}, "samplers"),
        ({"response_fields": "content"}, "response_fields"),
        ({"foo": 1}, "foo"),
    ],
)
def test_what_is_refused(shared: Running, fields: dict[str, Any], param: str) -> None:
    answer = shared.post("/completion", BODY | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, 400, param)
    assert error["type"] == "invalid_request_error"


def test_a_prompt_that_is_too_long_names_its_length_and_the_context(shared: Running) -> None:
    long = {"prompt": "a" * 600}
    sizes = {"n_prompt_tokens": 600, "n_ctx": 512}
    error = shared.post("/completion", BODY | long).json()["error"]
    assert error.items() >= ({"code": 400, "type": "exceed_context_size_error"} | sizes).items()
    error = shared.post("/v1/completions", long).json()["error"]
    kind = {"code": "context_length_exceeded", "type": "exceed_context_size_error"}
    assert error.items() >= (kind | sizes).items()
    error = shared.post("/v1/completions", {"prompt": [40]}).json()["error"]
    assert not error.keys() & sizes.keys()


def test_an_error_in_a_stream_has_llama_cpp_s_shape(serve: Callable[..., Running]) -> None:
    server = serve()
    server.executor.poisonous = lambda history: len(history) == 8
    *pieces, last = events(server.post("/completion", BODY | {"stream": True}))
    assert pieces
    assert (last["error"]["code"], last["error"]["type"]) == (500, "server_error")

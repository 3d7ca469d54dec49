"""Log probabilities of prompts over HTTP: `echo` with `logprobs`, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import VOCABULARY, solo_output, solo_scores
from fake_model import PIECES, FakeTokenizer, text_of
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fake_server import Running

HELLO = FakeTokenizer().encode("hello")


def ask(server: Running, path: str = "/v1/completions", **fields: Any) -> dict[str, Any]:
    body = {"prompt": HELLO, "max_tokens": 2, "seed": 1, "ignore_eos": True} | fields
    if "messages" in fields:
        del body["prompt"]
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def logprobs(tokens: list[int], top: int) -> list[float | None]:
    return [one and one.logprob for one in solo_scores(tokens, top)]


@pytest.mark.parametrize("prompt", [HELLO, "hello"])
def test_an_echo_has_those_of_its_prompt(shared: Running, prompt: Any) -> None:
    [choice] = ask(shared, prompt=prompt, echo=True, logprobs=2)["choices"]
    params = SamplingParams(seed=1, max_tokens=2, ignore_eos=True)
    output = solo_output(HELLO, params, 512)
    assert choice["text"] == "hello" + text_of(output)
    told = choice["logprobs"]
    assert told["tokens"][:5] == list("hello")
    assert told["token_logprobs"] == logprobs(HELLO, 2) + [-token / 8 for token in output]
    assert told["top_logprobs"][0] is None
    assert told["top_logprobs"][1:5] == [{"<end>": 0, "a": -1 / 8}] * 4
    assert told["text_offset"] == list(range(7))
    assert len(told["tokens"]) == 7


@pytest.mark.parametrize("most", [0, 1])
def test_as_lm_eval_asks(shared: Running, most: int) -> None:
    """Log-likelihood tasks: token ids, several prompts at once, and what is generated dropped."""
    prompts = [HELLO, HELLO[::-1] + HELLO]
    choices = ask(shared, prompt=prompts, echo=True, logprobs=1, max_tokens=most, temperature=0)
    assert [choice["index"] for choice in choices["choices"]] == [0, 1]
    for prompt, choice in zip(prompts, choices["choices"], strict=True):
        told = choice["logprobs"]["token_logprobs"]
        assert told[: len(prompt)] == logprobs(prompt, 1)
        assert len(told) == len(prompt) + most
        assert choice["finish_reason"] == "length"
    assert choices["usage"]["completion_tokens"] == 2 * most


def test_an_echo_without_output_or_logprobs(shared: Running) -> None:
    [choice] = ask(shared, echo=True, max_tokens=0)["choices"]
    assert (choice["text"], choice["logprobs"]) == ("hello", None)


def test_part_of_a_character_and_a_special_token(shared: Running) -> None:
    tokens = [0, 31, 1, 0, 2]
    [choice] = ask(shared, prompt=tokens, echo=True, logprobs=0, max_tokens=0)["choices"]
    assert choice["text"] == "<end>\ufffda<end>b"
    assert choice["logprobs"]["tokens"] == ["<end>", "bytes:\\xc3", "a", "<end>", "b"]
    offsets = choice["logprobs"]["text_offset"]
    assert [choice["text"][at] for at in (offsets[0], offsets[3], offsets[4])] == ["<", "<", "b"]


def test_prompt_logprobs_of_a_completion(shared: Running) -> None:
    answer = ask(shared, prompt=[HELLO, HELLO[:2]], prompt_logprobs=1, n=2, max_tokens=1)
    assert len(answer["choices"]) == 4
    for choice, prompt in zip(answer["choices"], [HELLO, HELLO, HELLO[:2], HELLO[:2]], strict=True):
        first, *told = choice["prompt_logprobs"]
        assert first is None
        assert choice["logprobs"] is None
        for token, one, by_id in zip(prompt[1:], solo_scores(prompt, 1)[1:], told, strict=True):
            assert one is not None
            name = PIECES[token].decode()
            expected = {"logprob": one.logprob, "rank": one.rank, "decoded_token": name}
            assert by_id.pop(str(token)) == expected
            assert by_id == {"0": {"logprob": 0.0, "rank": 1, "decoded_token": "<end>"}}


def test_both_at_once_show_as_many_as_each_asks_for(shared: Running) -> None:
    fields = {"echo": True, "logprobs": 1, "prompt_logprobs": 3}
    [choice] = ask(shared, **fields)["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [1] * 6
    assert [len(by_id) for by_id in choice["prompt_logprobs"][1:]] == [4] * 4


def test_the_best_of_many_have_them_all(shared: Running) -> None:
    answer = ask(shared, echo=True, logprobs=0, n=2, best_of=4, prompt_logprobs=0)
    for choice in answer["choices"]:
        assert choice["logprobs"]["token_logprobs"][:5] == logprobs(HELLO, 0)
        assert len(choice["prompt_logprobs"]) == 5


def test_prompt_logprobs_of_a_chat(shared: Running) -> None:
    messages = [{"role": "user", "content": "hello"}]
    path = "/v1/chat/completions"
    answer = ask(shared, path, messages=messages, prompt_logprobs=0, n=2)
    prompt = FakeTokenizer().encode("user- hello.")
    told = answer["prompt_logprobs"]
    assert [one and next(iter(one.values()))["logprob"] for one in told] == logprobs(prompt, 0)
    assert [list(one) for one in told[1:]] == [[str(token)] for token in prompt[1:]]
    assert "prompt_logprobs" not in ask(shared, path, messages=messages)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_more_alternatives_than_tokens(shared: Running) -> None:
    [choice] = ask(shared, prompt_logprobs=20)["choices"]
    assert all(len(by_id) in (20, 21) for by_id in choice["prompt_logprobs"][1:])
    assert VOCABULARY > 21


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "logprobs": 0, "stream": True}, "echo"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 0, "suffix": "bye"}, "echo"),
    ],
)
def test_what_is_refused(shared: Running, fields: dict[str, Any], param: str) -> None:
    response = shared.post("/v1/completions", {"prompt": "hello"} | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param

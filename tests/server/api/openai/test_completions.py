"""`/v1/completions` as the official client sees it, over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import solo_output
from fake_model import FakeTokenizer, text_of
from heddle.outputs import FinishReason, Output, TokenLogprob, Usage
from heddle.sampling_params import SamplingParams
from heddle.server.api.openai.completion_writers import likeliest

if TYPE_CHECKING:
    from fake_server import Running

HELLO = FakeTokenizer().encode("hello")

SHOWING = 3
"""A seed whose output holds the end token and half a character."""


def expected(prompt: list[int], seed: int, max_tokens: int) -> list[int]:
    params = SamplingParams(seed=seed, max_tokens=max_tokens, ignore_eos=True)
    return solo_output(prompt, params, 512)


def ask(server: Running, prompt: Any, **fields: Any) -> Any:
    fields = {"seed": 1, "max_tokens": 8} | fields
    return server.openai.completions.create(
        model="fake", prompt=prompt, extra_body={"ignore_eos": True}, **fields
    )


@pytest.mark.parametrize("prompt", ["hello", HELLO, ["hello"], [HELLO]])
def test_a_prompt_may_be_text_or_tokens(shared: Running, prompt: Any) -> None:
    answer = ask(shared, prompt)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    [choice] = answer.choices
    assert (choice.index, choice.text) == (0, text_of(expected(HELLO, 1, 8)))
    assert (choice.finish_reason, choice.logprobs) == ("length", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 8)


def test_several_prompts_give_their_choices_side_by_side(shared: Running) -> None:
    bye = FakeTokenizer().encode("bye")
    answer = ask(shared, ["hello", "bye"], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    tokens = [expected(prompt, seed, 8) for prompt in (HELLO, bye) for seed in (1, 2)]
    assert texts == [text_of(one) for one in tokens]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 32)


def test_a_stream(shared: Running) -> None:
    texts = {0: "", 1: ""}
    finishes: dict[int, list[str | None]] = {0: [], 1: []}
    options = {"include_usage": True}
    *chunks, usage = ask(shared, ["hello", "olleh"], stream=True, stream_options=options)
    for chunk in chunks:
        assert chunk.object == "text_completion"
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        finishes[choice.index].append(choice.finish_reason)
    assert list(texts.values()) == [text_of(expected(p, 1, 8)) for p in (HELLO, HELLO[::-1])]
    assert all(reasons[-1] == "length" for reasons in finishes.values())
    assert all(set(reasons[:-1]) == {None} for reasons in finishes.values())
    assert (usage.choices, usage.usage.total_tokens) == ([], 26)


def test_sixteen_tokens_by_default(shared: Running) -> None:
    body = {"prompt": "hello", "ignore_eos": True}
    answer = shared.post("/v1/completions", body).json()
    assert answer["usage"]["completion_tokens"] == 16


def test_best_of_may_equal_n(shared: Running) -> None:
    body = {"prompt": "hello", "n": 2, "best_of": 2, "max_tokens": 1, "echo": False, "suffix": ""}
    answer = shared.post("/v1/completions", body)
    assert len(answer.json()["choices"]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(shared: Running, stream: bool) -> None:
    answer = ask(shared, "hello", max_tokens=20, seed=SHOWING, logprobs=2, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    parts = [choice.logprobs for choice in choices if choice.logprobs]
    tokens = expected(HELLO, SHOWING, 20)
    assert {0, 31} <= set(tokens), "the seed was chosen to show the end and half a character"
    logprobs = [logprob for part in parts for logprob in part.token_logprobs]
    assert logprobs == [-token / 8 for token in tokens]
    assert all(top == {"<end>": 0, "a": -1 / 8} for part in parts for top in part.top_logprobs)
    names = [name for part in parts for name in part.tokens]
    offsets = [offset for part in parts for offset in part.text_offset]
    text = "".join(choice.text for choice in choices)
    assert (offsets[0], len(offsets)) == (0, 20)
    for name, offset, token in zip(names, offsets, tokens, strict=True):
        if token == 0:
            assert name == "<end>"
        elif token == 31:
            assert name == "bytes:\\xc3"
            assert text[offset] == "\ufffd"
        else:
            assert text[offset:].lstrip("\ufffd").startswith(name)


@pytest.mark.parametrize("prompt", ["hello", HELLO])
@pytest.mark.parametrize("stream", [False, True])
def test_echo(shared: Running, prompt: Any, stream: bool) -> None:
    answer = ask(shared, [prompt, prompt], n=2, echo=True, stream=stream)
    texts = [""] * 4
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts == 2 * ["hello" + text_of(expected(HELLO, seed, 8)) for seed in (1, 2)]


def test_the_best_of_many(shared: Running) -> None:
    answer = ask(shared, ["hello", "bye"], n=2, best_of=4, echo=True)
    bye = FakeTokenizer().encode("bye")
    texts = []
    for text, prompt in (("hello", HELLO), ("bye", bye)):
        outputs = [expected(prompt, seed, 8) for seed in (1, 2, 3, 4)]
        # Token t has the log probability -t / 8.
        texts += [text + text_of(one) for one in sorted(outputs, key=sum)[:2]]
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(choice.logprobs is None for choice in answer.choices)
    assert answer.usage.completion_tokens == 64, "all that was generated"


def test_the_mean_counts_and_not_the_sum() -> None:
    def output(*logprobs: float) -> Output:
        tokens = tuple(TokenLogprob(1, logprob) for logprob in logprobs)
        return Output("", tokens, FinishReason.STOP, Usage(1, len(tokens)))

    short, long, other = output(-1.0), output(-0.5, -0.75, -0.5), output(-1.0)
    assert likeliest([short, long, other], 3, 2) == [long, short]


def test_a_suffix_is_filled_up_to(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTokenizer, "fills_in", True)
    answer = ask(shared, "hello", suffix="bye")
    prompt = FakeTokenizer().encode_fill_in("hello", "bye")
    assert answer.choices[0].text == text_of(expected(prompt, 1, 8))
    assert answer.usage.prompt_tokens == 11

"""A loaded model that says what a test tells it to, over tokens of one letter and some marks.

Where a grammar does not let it, it says something that the grammar allows, and soon ends.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx
import openai

from fake_executor import END, FakeExecutor, tokens_of
from fake_eyes import FakeEyes
from fake_model import fake_model
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.step import Sampled
from heddle.text.chat.template import ChatTemplate
from heddle.text.constrained.grammar import GrammarCompiler
from heddle.text.parsing.parts import Call, ParsedAnswer
from live_server import PATIENCE, live_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fake_executor import Occupant
    from heddle.grammars import Grammar
    from heddle.step import Chunk, Failed
    from heddle.token_rules import TokenGrammar

CONTROL = ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "[THINK]", "[/THINK]")
"""Control tokens, from id 128 on: text does not show them unless it is asked to."""
WORDS = ("<tool_call>", "</tool_call>", "<think>", ">{")
"""Tokens of several letters, from id 136 on, which are text."""
HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
"""Control tokens of gpt-oss, from id 140 on."""
CALL = 145
"""The token that ends a text after a call of gpt-oss."""
SECTIONS = (
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
    ),
    *("<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "｜DSML｜"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    *("<|START_ACTION|>", "<|END_ACTION|>", "<|tools_prefix|>", "<|tools_suffix|>"),
    *("<tool_calls:opensource>", "</tool_calls:opensource>", "<tool_call:opensource>"),
    *("<tool_sep:opensource>", "</tool_call:opensource>", "</arg_value:opensource>"),
    *("]<]minimax[>[", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
)
"""Control tokens of Kimi, DeepSeek, Gemma 4, Cohere, Apertus, Hunyuan, MiniMax M3 and Kimi K3, from
id 146 on."""
VOCABULARY = 192


class LetterTokenizer:
    """A token per ASCII letter, whose code is its id; 0 ends a text."""

    bos_id = None
    eos_id = END
    eos_ids = frozenset({END, CALL})
    unused = ()
    vocabulary_size = VOCABULARY

    def __init__(self, *, controls: bool = True) -> None:
        """`controls`: whether the marks are control tokens. If not, their tokens are text."""
        self._pieces = {id: chr(id) for id in range(1, 128)}
        self._pieces |= {136 + place: word for place, word in enumerate(WORDS)}
        self._control = {128 + place: word for place, word in enumerate(CONTROL)}
        self._control |= {140 + place: word for place, word in enumerate(HARMONY)}
        self._control[CALL] = "<|call|>"
        self._control |= {146 + place: word for place, word in enumerate(SECTIONS)}
        if not controls:
            self._pieces |= self._control
            self._control = {}
        self.grammars = GrammarCompiler(self)
        self._known = [_known(self._pieces), _known(self._pieces | self._control)]

    def encode(self, text: str, *, parse_special: bool = True, **_: bool) -> list[int]:
        known, longest = self._known[parse_special]
        ids = [known[piece] for piece in longest.findall(text)]
        assert "".join(map(self.token_text, ids)) == text, f"no token for a letter of {text!r}"
        return ids

    def encode_chat(self, text: str) -> list[int]:
        return self.encode(text)

    def spellings(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        return ()

    def grammar(self, grammar: Grammar) -> TokenGrammar:
        return self.grammars.compile(grammar)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        shown = (id for id in ids if not (skip_special and self.is_special(id)))
        return "".join(map(self.token_text, shown))

    def token_bytes(self, id: int) -> bytes:
        return self._pieces.get(id, "").encode()

    def token_text(self, id: int) -> str:
        return self._control.get(id) or self._pieces.get(id, "<end>")

    def control_id(self, text: str) -> int | None:
        return next((id for id, word in self._control.items() if word == text), None)

    def is_special(self, id: int) -> bool:
        return id not in self._pieces


def _known(pieces: Mapping[int, str]) -> tuple[dict[str, int], re.Pattern[str]]:
    """Tokens by their text, and a pattern of the longest one at a place."""
    ids = {text: id for id, text in pieces.items()}
    return ids, re.compile("|".join(map(re.escape, sorted(ids, key=len, reverse=True))))


def refused_at(grammar: Grammar, text: str, tokenizer: LetterTokenizer | None = None) -> str | None:
    """The text before the first token that is not allowed; None if all of `text` is allowed."""
    tokenizer = tokenizer or LetterTokenizer()
    state, seen = tokenizer.grammar(grammar).begin(), list[int]()
    tokens = [*tokenizer.encode(text), END]
    for place, token in enumerate(tokens):
        mask = state.next_mask(seen)
        if mask and token not in tokens_of(mask):
            return "".join(map(tokenizer.token_text, tokens[:place]))
        seen = [token]
    return None


class TalkingExecutor(FakeExecutor):
    """Says one of `answers`, by the seed, and then the end."""

    def __init__(self, tokenizer: LetterTokenizer) -> None:
        super().__init__(pages=256)
        self.answers: Sequence[str] = ("",)
        self.prompts: list[str] = []
        self._tokenizer = tokenizer
        self._encode = cache(tokenizer.encode)

    def _bind(self, binding: Any) -> None:
        super()._bind(binding)
        if not binding.output:
            text = "".join(map(self._tokenizer.token_text, binding.prompt))
            self.prompts.append(text)
        self.slots[binding.slot].said = len(binding.prompt)  # type: ignore[attr-defined]

    def _choose(self, occupant: Occupant, history: Sequence[int]) -> int:
        assert occupant.params.seed is not None
        answer = self.answers[occupant.params.seed % len(self.answers)]
        said = len(history) - occupant.said  # type: ignore[attr-defined]
        tokens = self._encode(answer)
        return tokens[said] if said < len(tokens) else END

    def _read(self, chunk: Chunk) -> list[Sampled | Failed]:  # type: ignore[override]
        return [
            replace(one, logprob=-1.0) if isinstance(one, Sampled) else one
            for one in super()._read(chunk)
        ]

    def _draw(self, allowed: Sequence[int], occupant: Occupant, history: Sequence[int]) -> int:
        ends = [token for token in (END, *map(ord, '}]"')) if token in allowed]
        return ends[0] if ends else super()._draw(allowed, occupant, history)


@dataclass
class Talking:
    """A server whose model talks."""

    url: str
    executor: TalkingExecutor
    openai: openai.OpenAI

    def says(self, *answers: str) -> None:
        """Set the texts that the model says from now on, by the seed."""
        self.executor.answers = answers
        self.executor.prompts.clear()

    @property
    def prompt(self) -> str:
        """The last prompt."""
        return self.executor.prompts[-1]

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE)


@contextmanager
def talking_engine(
    template: str, context: int = 4096, *, sees: bool = False
) -> Iterator[tuple[Engine, TalkingExecutor]]:
    """An engine of a model with this chat template. If it `sees`, it has fake eyes."""
    tokenizer = LetterTokenizer()
    executor = TalkingExecutor(tokenizer)
    model = fake_model(executor, context=context)
    shape = replace(model.shape, vocabulary=VOCABULARY)
    parts: Any = {"tokenizer": tokenizer, "template": ChatTemplate(template, "", "<end>")}
    if sees:
        parts["eyes"] = FakeEyes(tokenizer)
    model = replace(model, shape=shape, **parts)
    with Engine(model, EngineConfig(slots=4, queue=16)) as engine:
        yield engine, executor


@contextmanager
def talking_server(template: str, context: int = 4096) -> Iterator[Talking]:
    """A server of a model with this chat template."""
    with (
        talking_engine(template, context) as (engine, executor),
        live_server(engine) as live,
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Talking(live.url, executor, client)


def answered(completion: Any) -> ParsedAnswer:
    """The answer in a chat completion."""
    message = completion.choices[0].message
    calls = message.tool_calls or ()
    assert getattr(message, "reasoning", None) == getattr(message, "reasoning_content", None)
    return ParsedAnswer(
        message.content or "",
        getattr(message, "reasoning_content", None) or "",
        tuple(Call(call.function.name, call.function.arguments) for call in calls),
    )


def streamed(chunks: Any) -> ParsedAnswer:
    """The answer in the chunks of a streamed chat completion."""
    content, reasoning = "", ""
    calls: list[list[str]] = []
    for chunk in chunks:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += getattr(delta, "reasoning_content", None) or ""
        assert getattr(delta, "reasoning", None) == getattr(delta, "reasoning_content", None)
        for call in delta.tool_calls or ():
            if call.index == len(calls):
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
    return ParsedAnswer(content, reasoning, tuple(Call(*call) for call in calls))

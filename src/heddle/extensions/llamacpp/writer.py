"""Writes answers of `/completion` and `/infill` in llama.cpp's shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heddle.extensions.llamacpp.errors import native_error_body
from heddle.outputs import FinishReason
from heddle.server.generate.usage import prompt_progress, timings
from heddle.server.generate.writer import AnswerWriter
from heddle.server.http.encoding import array, encode, event
from heddle.text.parsing.parts import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heddle.errors import HeddleError
    from heddle.outputs import Delta, Output, Progress, TokenLogprob, Usage
    from heddle.server.generate.usage import Json
    from heddle.text.parsing.parts import Part
    from heddle.text.tokenizer.tokenizer import Tokenizer

_LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""
_ANY_SLOT = -1
"""llama.cpp's number for any slot. Heddle's requests may change their slot."""


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """Content of an answer.

    Attributes:
        prompts: token ids of each prompt.
        n: number of choices for each prompt.
        settings: `generation_settings` of all choices.
        fields: names of the fields to write; empty: all fields. See :func:`selected`.
        probabilities: whether to write the log probabilities of tokens.
        after_samplers: whether these are probabilities after the samplers.
        tokens: whether an answer that is not a stream has its token ids.
        progress: whether a stream shows the progress of prompts.
        truncated: whether the prompt lacks a part of the body.
    """

    prompts: Sequence[Sequence[int]]
    n: int
    settings: Json
    fields: Sequence[str] = ()
    probabilities: bool = False
    after_samplers: bool = False
    tokens: bool = False
    progress: bool = False
    truncated: bool = False


class NativeWriter(AnswerWriter):
    """Writes one choice as an object, several choices as a list.

    A stream has the text in pieces. The last event of a choice has the other fields.
    """

    prefix = "cmpl-"

    def __init__(self, model: str, tokenizer: Tokenizer, options: NativeOptions) -> None:
        super().__init__(model)
        self._tokenizer = tokenizer
        self._options = options
        self.shows_progress = options.progress
        choices = len(options.prompts) * options.n
        self._predicted = [0] * choices
        self._has_new_line = [False] * choices

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        choices = []
        for index, output in enumerate(outputs):
            self._note(index, output.text, len(output.tokens))
            shown = output.tokens if self._options.tokens else ()
            choices.append(encode(self._choice(index, output, shown, output.tokens)))
        return [choices[0] if len(choices) == 1 else array(choices)]

    def opening(self, index: int) -> bytes:
        return b""

    def part(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        assert isinstance(part, Text), "the reading is PLAIN"
        self._note(index, part.text, len(tokens))
        return event(self._piece(index, part.text, tokens) | self._scores(tokens))

    def progress(self, index: int, progress: Progress) -> bytes:
        times = {"prompt_progress": prompt_progress(progress), "timings": timings([progress.usage])}
        return event(self._piece(index, "", ()) | times)

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        self._note(index, "", len(tokens))
        return event(self._choice(index, replace(last, text=""), tokens, tokens))

    def ending(self, totals: Json) -> bytes:
        return b""

    def failure(self, error: HeddleError) -> bytes:
        return event(native_error_body(error))

    def _note(self, index: int, text: str, tokens: int) -> None:
        self._predicted[index] += tokens
        self._has_new_line[index] |= "\n" in text

    def _prompt(self, index: int) -> Sequence[int]:
        return self._options.prompts[index // self._options.n]

    def _piece(self, index: int, text: str, tokens: Iterable[TokenLogprob]) -> Json:
        """A part of a choice in a stream."""
        return {
            "index": index,
            "content": text,
            "tokens": [one.token for one in tokens],
            "stop": False,
            "id_slot": _ANY_SLOT,
            "tokens_predicted": self._predicted[index],
            "tokens_evaluated": len(self._prompt(index)),
        }

    def _choice(
        self,
        index: int,
        end: Output | Delta,
        shown: Iterable[TokenLogprob],
        scored: Iterable[TokenLogprob],
    ) -> Json:
        """A choice at its end. A stream has written its text before.

        Args:
            index: index of the choice.
            end: the complete output, or the last delta of a stream.
            shown: the tokens to write.
            scored: the tokens to write with their log probabilities.
        """
        assert end.finish is not None
        assert end.usage is not None
        options, usage = self._options, end.usage
        choice = {
            "index": index,
            "content": end.text,
            "tokens": [one.token for one in shown],
            "id_slot": _ANY_SLOT,
            "stop": True,
            "model": self._model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "generation_settings": options.settings,
            "prompt": self._tokenizer.decode(self._prompt(index), skip_special=False),
            "has_new_line": self._has_new_line[index],
            "truncated": options.truncated or self._fills_context(end.finish, usage),
            **_stop(end.finish, end.stop),
            "tokens_cached": usage.cached_tokens,
            "timings": timings([usage]),
            **self._scores(scored),
        }
        return selected(choice, options.fields) if options.fields else choice

    def _fills_context(self, finish: FinishReason, usage: Usage) -> bool:
        """Whether the context ended the output, and not the limit of the request."""
        total = usage.prompt_tokens + usage.completion_tokens
        full = finish is FinishReason.LENGTH and total >= self._options.settings["n_ctx"]
        return full and usage.completion_tokens != self._options.settings["n_predict"]

    def _scores(self, tokens: Iterable[TokenLogprob]) -> Json:
        """`completion_probabilities` of tokens, if the request asks for it."""
        if not self._options.probabilities:
            return {}
        top = "top_probs" if self._options.after_samplers else "top_logprobs"
        scores = [
            self._score(one.token, one.logprob) | {top: [self._score(*pair) for pair in one.top]}
            for one in tokens
        ]
        return {"completion_probabilities": scores}

    def _score(self, token: int, logprob: float) -> Json:
        after = self._options.after_samplers
        return {
            "id": token,
            "token": self._tokenizer.token_text(token),
            "bytes": list(self._tokenizer.token_bytes(token)),
            **({"prob": math.exp(logprob)} if after else {"logprob": max(logprob, _LOWEST)}),
        }


def selected(choice: Json, paths: Sequence[str]) -> Json:
    """The values of `choice` at `paths`, each under its whole path. Unknown paths are left out.

    A path such as `timings/prompt_n` leads into objects.
    """
    found: Json = {}
    for path in paths:
        value: Any = choice
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            found[path] = value
    return found


def _stop(finish: FinishReason, word: str | None) -> Json:
    """The reason of the end, in llama.cpp's terms."""
    kind = "limit" if finish is FinishReason.LENGTH else "eos"
    return {"stop_type": kind if word is None else "word", "stopping_word": word or ""}

"""Encodes text with a pipeline of the `tokenizers` library: normalizer, pre-tokenizer, model.

The pipeline is that of tokenizer.json, or one that says the same as a GGUF file. Special tokens are
found before, and what comes around a text is added after it, as for all tokenizers.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import tokenizers

from heddle.errors import ModelFileError, TokenizerFailedError
from heddle.text.panics import panics_as
from heddle.text.tokenizer.bpe import PIECE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from heddle.text.tokenizer.vocabulary import Vocabulary
    from heddle.weights.checkpoint import TokenizerSpec

SPACE = "\u2581"
_STEPS = ("normalizer", "pre_tokenizer")
_CUT = re.compile(r"(?<=\S) (?=\S)")


def pipeline_of(steps: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The pipeline with the two steps of `steps`, as JSON."""
    found = {name: steps.get(name) for name in _STEPS}
    return json.dumps({"version": "1.0", "added_tokens": [], **found, "model": model})


class PipelineEncoder:
    """Plain text to ids. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, spec: TokenizerSpec) -> None:
        """`spec` has the pipeline.

        Raises:
            ModelFileError: the library cannot build it.
        """
        self._size = len(vocabulary.pieces)

        def wrong(problem: object) -> ModelFileError:
            return ModelFileError(
                f"the {spec.algorithm} tokenizer cannot be built: {problem}; fetch another file",
                field=spec.label("model"),
            )

        try:
            with panics_as(wrong):
                self._tokenizer = tokenizers.Tokenizer.from_str(spec.pipeline)
        except ModelFileError:
            raise
        except Exception as error:  # the library raises no narrower class
            raise wrong(error) from error
        self._cuts_words = self._tokenizer.pre_tokenizer is not None

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Special tokens in the text are encoded as plain text.

        Raises:
            TokenizerFailedError: the library refuses the text.
        """
        return [id for part in self._parts(text) for id in self._encode(part) if id < self._size]

    def _encode(self, text: str) -> list[int]:
        try:
            # `encode` holds the GIL; see bpe.py.
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception as error:  # the library raises no narrower class
            raise TokenizerFailedError(f"the tokenizer refused this text: {error}") from error
        return encoding.ids

    def _parts(self, text: str) -> Iterator[str]:
        """Cut a long text at single spaces, which these pipelines drop or write before a word."""
        start = 0
        while self._cuts_words and (cut := _CUT.search(text, start + PIECE)):
            yield text[start : cut.start()]
            start = cut.end()
        yield text[start:]

"""A loaded model without a model: the fake executor, and a tokenizer of 32 tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fake_executor import END, SHAPE, VOCABULARY, FakeExecutor
from heddle.embedding import Pooling
from heddle.errors import InvalidRequestError, UnsupportedParameterError
from heddle.loading.loaded_model import LoadedModel, ModelInfo
from heddle.text.chat.dialect import Dialect
from heddle.text.constrained.grammar import GrammarCompiler
from heddle.text.tokenizer.sequences import find_breakers, spell
from heddle.text.tokenizer.tokenizer import Tokenizer
from heddle.token_rules import TokenPieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.grammars import Grammar
    from heddle.token_rules import TokenGrammar, TokenSequences

PIECES = [b"", *(bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz .-\n"), b"\xc3"]


class FakeTokenizer:
    """A token per letter; 0 ends a text, 31 is the first half of a character."""

    eos_id = END
    eos_ids = frozenset({END})
    unused = ()
    vocabulary_size = VOCABULARY
    fills_in = False
    _prefix_ids: list[int] = []  # noqa: RUF012
    _suffix_ids: list[int] = []  # noqa: RUF012  tests replace it
    shorten = Tokenizer.shorten

    def __init__(self, bos_id: int | None = None) -> None:
        self.bos_id = bos_id
        self.grammars = GrammarCompiler(self)

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        continues: bool = False,
    ) -> list[int]:
        ids = [PIECES.index(letter.encode()) for letter in text]
        return ids + self._suffix_ids if add_special else ids

    def encode_chat(self, text: str) -> list[int]:
        return self.encode(text, add_special=False)

    @property
    def pieces(self) -> TokenPieces:
        return TokenPieces(tuple(PIECES), (END,))

    def encode_fill_in(self, before: Any, after: str) -> list[int]:
        if not self.fills_in:
            raise UnsupportedParameterError("no tokens for it", param="suffix")
        before = self.encode(before) if isinstance(before, str) else before
        return [28, *before, 29, *self.encode(after), 30]

    def encode_files(self, files: Any) -> list[list[int]]:
        return [[], *(self.encode(f"{name} {text}") for name, text in files), self.encode(".")]

    def put_before(self, prompt: list[int], files: list[int]) -> list[int]:
        return files + prompt

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        if wrong := [token for token in ids if token >= VOCABULARY]:
            raise InvalidRequestError(f"token id {wrong[0]} is unknown", param="tokens")
        return "".join(self.token_text(token) for token in ids)

    def breakers(self, strings: tuple[str, ...]) -> TokenSequences:
        return find_breakers(PIECES, self.encode, strings)

    def spellings(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        return spell(self.encode, words)

    def grammar(self, grammar: Grammar) -> TokenGrammar:
        return self.grammars.compile(grammar)

    def token_bytes(self, token: int) -> bytes:
        return PIECES[token]

    def token_text(self, token: int) -> str:
        return PIECES[token].decode(errors="replace") or "<end>"

    def vocabulary_entries(self) -> Iterator[tuple[bytes, bool]]:
        return ((piece, id == END) for id, piece in enumerate(PIECES))

    def control_id(self, text: str) -> int | None:
        return None

    def is_special(self, token: int) -> bool:
        return token == END


class FakeTemplate:
    """Writes a line `user- hello.` per message; no newline at the end where an answer begins."""

    source = "{{ messages }}"
    dialect = Dialect.of("", ())

    def render(self, messages: Any, /, *, add_generation_prompt: bool = True, **_: Any) -> str:
        text = "\n".join(f"{m['role']}- {m['content']}." for m in messages)
        return text if add_generation_prompt else text + "\n"


def fake_model(
    executor: FakeExecutor,
    *,
    context: int = 512,
    bos_id: int | None = None,
    template: bool = True,
    path: Path = Path("fake.gguf"),
    pooling: Pooling = Pooling.MEAN,
) -> LoadedModel:
    """A model that runs on `executor`. Only the disk tier reads its file."""
    executor.shape = shape = replace(SHAPE, context=context)
    info = ModelInfo(
        id="fake",
        path=path,
        architecture="fake",
        context=context,
        vocabulary=VOCABULARY,
        parameters=0,
        file_bytes=0,
        quantisation="F32",
        created=0,
    )
    parts = cast("Any", (FakeTokenizer(bos_id), FakeTemplate() if template else None))
    return LoadedModel(info, shape, *parts, executor, pooling)  # type: ignore[call-arg]


def text_of(tokens: list[int]) -> str:
    """The text that the detokenizer must make from generated tokens, without stop strings."""
    return b"".join(PIECES[token] for token in tokens).decode(errors="replace")

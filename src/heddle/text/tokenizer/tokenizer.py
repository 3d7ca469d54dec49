"""Text to token ids and back, as llama.cpp does it for the same file.

Special tokens are found first (`special.py`). The plain parts between them go through the
vocabulary's algorithm (`bpe.py`, `sentencepiece.py`). Heddle does not remove spaces before
punctuation: decoding would lose text, and llama.cpp's server does not remove them either.
"""

from __future__ import annotations

from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Protocol

from heddle.errors import (
    InvalidRequestError,
    TokenizerFailedError,
    UnsupportedParameterError,
)
from heddle.text.constrained.grammar import GrammarCompiler
from heddle.text.panics import panics_as
from heddle.text.tokenizer import bpe, sentencepiece
from heddle.text.tokenizer.pretokenizers import pre_tokenizer_of
from heddle.text.tokenizer.sequences import find_breakers, spell
from heddle.text.tokenizer.special import SpecialTokens
from heddle.text.tokenizer.vocabulary import FillIn, TokenType, Vocabulary
from heddle.token_rules import TokenPieces
from heddle.weights.tokenizer_kind import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.grammars import Grammar
    from heddle.token_rules import TokenGrammar
    from heddle.weights.checkpoint import TokenizerSpec


class Encoder(Protocol):
    """The algorithm of a vocabulary, without special tokens."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        ...


class Tokenizer:
    """One model's tokenizer. Immutable after construction; safe to share between threads.

    Attributes:
        bos_id: the token that begins a text; None if the file names none.
        eos_id: the token that ends a text; None if the file names none.
        eos_ids: all tokens that end a generation.
        unused: tokens without text that end nothing. They are sampled only if a bias names them.
        fill_in: fill-in-the-middle (FIM) tokens; None if the model has none.
        grammars: compiles grammars over these tokens; see also :meth:`grammar`.
        breakers: token sequences that spell strings; see `sequences.find_breakers`.
        spellings: the tokens of words; see `sequences.spell`.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: Encoder,
        piece_bytes: list[bytes],
        *,
        add_bos: bool,
        add_eos: bool,
        text_end: int | None,
        between: Sequence[int] = (),
        add_space_prefix: bool,
    ) -> None:
        """See :meth:`of`. `piece_bytes` are the bytes each token adds to a text."""
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.end_ids
        self.fill_in = vocabulary.fill_in
        self._prefix_ids = [self.bos_id] if add_bos and self.bos_id is not None else []
        end = self.eos_id if text_end is None else text_end
        self._suffix_ids = [end] if add_eos and end is not None else []
        self._between = between or self._suffix_ids
        self._space_prefix = " " if add_space_prefix else ""
        self._pieces = vocabulary.pieces
        self._bytes = piece_bytes
        self._encoder = encoder
        hidden = vocabulary.of_types(TokenType.CONTROL, TokenType.UNKNOWN)
        user_defined = vocabulary.of_types(TokenType.USER_DEFINED)
        self._special = frozenset(hidden)
        unused = vocabulary.of_types(TokenType.UNUSED)
        self.unused = tuple(id for id in unused if id not in self.eos_ids)
        self._control_ids = {self._pieces[id]: id for id in hidden}
        self._always_parsed = SpecialTokens({self._pieces[id]: id for id in user_defined})
        self._all_parsed = SpecialTokens({self._pieces[id]: id for id in hidden + user_defined})
        inside = partial(self.encode, add_special=False, parse_special=False, continues=True)
        # With a vocabulary of 152,000 tokens, most strings take 5 ms.
        self.breakers = lru_cache(maxsize=32)(partial(find_breakers, self._bytes, inside))
        self.grammars = GrammarCompiler(self)
        self.spellings = lru_cache(maxsize=32)(partial(spell, inside))

    @classmethod
    def of(cls, spec: TokenizerSpec) -> Tokenizer:
        """The tokenizer that a checkpoint describes.

        Raises:
            UnsupportedModelError: the pre-tokenizer is not supported.
            ModelFileError: parts of the description contradict each other.
        """
        vocabulary = Vocabulary.of(spec)
        encoder: Encoder
        if kind := kind_of(spec.algorithm):
            add_bos, add_space_prefix = False, False
            encoder, piece_bytes = kind.build(vocabulary, spec)
        elif spec.algorithm == "bpe":
            words = pre_tokenizer_of(spec)
            add_bos, add_space_prefix = words.add_bos, False
            encoder = bpe.ByteLevelEncoder(vocabulary, spec, words)
            piece_bytes = bpe.piece_bytes(vocabulary)
        else:
            add_bos, add_space_prefix = True, spec.add_space_prefix is not False
            encoder = sentencepiece.SentencePieceEncoder(vocabulary, spec)
            piece_bytes = sentencepiece.piece_bytes(vocabulary, spec)
        if spec.add_bos is not None:
            add_bos = spec.add_bos
        add_eos = bool(spec.add_eos)
        for role, added in (("bos", add_bos), ("eos", add_eos and spec.text_end is None)):
            if added and role not in spec.roles:
                spec.fail(role, f"is missing, but texts need a {role.upper()} token")
        if spec.text_end is not None and spec.text_end >= len(spec.pieces):
            spec.fail("post_processor", f"adds token id {spec.text_end}, which does not exist")
        return cls(
            vocabulary,
            encoder,
            piece_bytes,
            add_bos=add_bos,
            add_eos=add_eos,
            text_end=spec.text_end,
            between=spec.between,
            add_space_prefix=add_space_prefix,
        )

    @cached_property
    def pieces(self) -> TokenPieces:
        """The bytes that tokens add to a text, and the tokens that end a generation."""
        texts = (b"" if id in self._special else raw for id, raw in enumerate(self._bytes))
        return TokenPieces(tuple(texts), tuple(sorted(self.eos_ids)))

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens. Ids are in [0, vocabulary_size)."""
        return len(self._pieces)

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        continues: bool = False,
    ) -> list[int]:
        """Ids of `text`. Half a surrogate pair counts as U+FFFD.

        Args:
            text: any string.
            add_special: add the tokens that begin and end a text, if the file asks for them.
            parse_special: encode the text of a control token as that token. User-defined tokens
                are always found.
            continues: the text follows other text, so the tokenizer puts no space before it.

        Raises:
            TokenizerFailedError: the library panicked.
        """
        special = self._all_parsed if parse_special else self._always_parsed
        ids = list(self._prefix_ids) if add_special else []
        after_special = not continues
        for part in special.split(_well_formed(text)):
            if isinstance(part, str):
                with panics_as(_failed_at_text):
                    plain = self._space_prefix + part if after_special else part
                    ids += self._encoder.encode(plain)
                after_special = False
            else:
                ids.append(part)
                after_special = True
        return ids + self._suffix_ids if add_special else ids

    def shorten(self, ids: list[int], limit: int, *, from_begin: bool = False) -> list[int]:
        """At most `limit` ids of an encoded text, without its end, or without its beginning.

        The tokens that begin and end a text stay.
        """
        if len(ids) <= limit:
            return ids
        end = self._suffix_ids[:limit]
        begin = self._prefix_ids[: limit - len(end)]
        plain = ids[len(begin) : len(ids) - len(end)]
        kept = limit - len(begin) - len(end)
        return begin + (plain[len(plain) - kept :] if from_begin else plain[:kept]) + end

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Ids of two texts in one sequence, for models that compare texts.

        Control tokens in the texts are encoded as plain text.
        """
        plain = partial(self.encode, add_special=False, parse_special=False)
        head = [*self._prefix_ids, *plain(first), *self._between]
        return [*head, *plain(second), *self._suffix_ids]

    def encode_chat(self, text: str) -> list[int]:
        """Ids of a rendered chat template.

        Some templates write BOS, and a model needs exactly one BOS. So this method adds BOS if the
        model asks for it and the template did not write it. It never adds EOS, because the model
        continues the prompt.
        """
        ids = self.encode(text, add_special=False)
        return ids if ids[:1] == self._prefix_ids else self._prefix_ids + ids

    def encode_fill_in(self, before: str | Sequence[int], after: str) -> list[int]:
        """Ids of a prompt for fill-in-the-middle. Its continuation fills the gap between two texts.

        Models were trained on the order prefix, suffix, middle (Bavarian et al. 2022,
        arXiv:2207.14255). Control tokens in the texts are encoded as plain text.

        Raises:
            UnsupportedParameterError: the model has no FIM tokens.
        """
        marks = self._fill_in_marks()
        inside = partial(self.encode, add_special=False, parse_special=False, continues=True)
        first = inside(before) if isinstance(before, str) else before
        head = [*self._prefix_ids, marks.prefix]
        return [*head, *first, marks.suffix, *inside(after), marks.middle]

    def encode_files(self, files: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Ids of files, each a name and a text, that come before a prompt of `encode_fill_in`.

        If the model has tokens for repositories and files, the ids have the form that
        Qwen2.5-Coder was trained on (Hui et al. 2024, arXiv:2409.12186): the name of the
        repository, then the name and text of each file, then the name of the file with the gap.
        Without such tokens, a line with the name goes before each text.

        Returns:
            Ids of the head, of each file, and of the text between the last file and the prompt.

        Raises:
            UnsupportedParameterError: the model has no FIM tokens.
        """
        marks = self._fill_in_marks()
        inside = partial(self.encode, add_special=False, parse_special=False, continues=True)
        if marks.file is None:
            texts = [inside(f"\n\n--- {name} ---\n\n{text}") for name, text in files]
            return [[], *texts, []]
        head = [] if marks.repository is None else [marks.repository, *inside("repository\n")]
        texts = [[marks.file, *inside(f"{name}\n{text}")] for name, text in files]
        return [head, *texts, [marks.file, *inside("file\n")]]

    def put_before(self, prompt: Sequence[int], files: Sequence[int]) -> list[int]:
        """A prompt of `encode_fill_in` with the ids of files in front, but after BOS."""
        begin = len(self._prefix_ids)
        return [*prompt[:begin], *files, *prompt[begin:]]

    def _fill_in_marks(self) -> FillIn:
        if self.fill_in is None:
            raise UnsupportedParameterError(
                "suffix is not supported: this model has no fill-in-the-middle tokens. Leave suffix"
                " out, or serve a model that has them",
                param="suffix",
            )
        return self.fill_in

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`. Broken UTF-8 becomes U+FFFD.

        The space that :meth:`encode` puts before a text is removed.

        Raises:
            InvalidRequestError: an id is not in [0, vocabulary_size).
        """
        for id in ids:
            if not 0 <= id < len(self._pieces):
                raise InvalidRequestError(
                    f"token id {id} is not in [0, {len(self._pieces)})", param="tokens"
                )
        if skip_special:
            parts = [self._bytes[id] for id in ids]
        else:
            parts = [self._visible_bytes(id) for id in ids]
        return b"".join(parts).removeprefix(self._space_prefix.encode()).decode(errors="replace")

    def grammar(self, grammar: Grammar) -> TokenGrammar:
        """Compile a grammar over these tokens. Recent grammars are cached.

        Compiling may take 100 ms, and more the first time. Do not call this from an event loop,
        unless `grammars.known` has the grammar.

        Raises:
            GrammarError: it is wrong, can match nothing, or is too large.
        """
        return self.grammars.compile(grammar)

    def token_bytes(self, id: int) -> bytes:
        """The bytes that the token adds to a text; none for special and unused tokens."""
        return self._bytes[id]

    def token_text(self, id: int) -> str:
        """A readable form of one token, also of a special token. Broken UTF-8 becomes U+FFFD."""
        return self._visible_bytes(id).decode(errors="replace")

    def vocabulary_entries(self) -> Iterator[tuple[bytes, bool]]:
        """The bytes of each token id from 0, and whether it is a control token or unknown.

        The bytes of a control token are its text. An engram table has a fingerprint of these.
        """
        for id in range(self.vocabulary_size):
            yield self._visible_bytes(id), self.is_special(id)

    def control_id(self, text: str) -> int | None:
        """The control token whose text is `text`; None if there is none."""
        return self._control_ids.get(text)

    def is_special(self, id: int) -> bool:
        """Whether the token is a control token or unknown. Text never shows such tokens."""
        return id in self._special

    def _visible_bytes(self, id: int) -> bytes:
        return self._pieces[id].encode() if id in self._special else self._bytes[id]


def _failed_at_text(panic: str) -> TokenizerFailedError:
    return TokenizerFailedError(f"the tokenizer failed at this text: {panic}; send another text")


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text

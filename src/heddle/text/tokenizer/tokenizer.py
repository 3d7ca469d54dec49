"""Text to token ids and back, as llama.cpp does it for the same file.

What is special is found first (`special.py`), the plain parts between go through the vocabulary's
own algorithm (`bpe.py`, `sentencepiece.py`). llama.cpp's clean-up of spaces before punctuation is
left out: it would make decoding lose text, and its server does not do it either.
"""

from __future__ import annotations

from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Protocol

from heddle.errors import (
    InvalidRequestError,
    UnsupportedParameterError,
)
from heddle.step import TokenPieces
from heddle.text.constrained.grammar import GrammarCompiler
from heddle.text.tokenizer import bpe, sentencepiece
from heddle.text.tokenizer.pretokenizers import pre_tokenizer
from heddle.text.tokenizer.sequences import find_breakers, spell
from heddle.text.tokenizer.special import SpecialTokens
from heddle.text.tokenizer.vocabulary import FillIn, TokenType, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.step import TokenGrammar, TokenSequences
    from heddle.types import Grammar
    from heddle.weights.checkpoint import TokenizerSpec


class Encoder(Protocol):
    """A vocabulary's algorithm, blind to special tokens."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        ...


class Tokenizer:
    """One model's tokenizer. Immutable after construction; safe to share between threads.

    Attributes:
        bos_id: the token that begins a text, if the file names one.
        eos_id: the token that ends a text, if the file names one.
        eos_ids: all tokens that end a generation.
        fill_in: tokens for filling in the middle; None if the model knows none.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: Encoder,
        piece_bytes: list[bytes],
        *,
        add_bos: bool,
        add_eos: bool,
        add_space_prefix: bool,
    ) -> None:
        """See :meth:`of`. `piece_bytes` are the bytes each token adds to a text."""
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.end_ids
        self.fill_in = vocabulary.fill_in
        self._prefix_ids = [self.bos_id] if add_bos and self.bos_id is not None else []
        self._suffix_ids = [self.eos_id] if add_eos and self.eos_id is not None else []
        self._space_prefix = " " if add_space_prefix else ""
        self._pieces = vocabulary.pieces
        self._bytes = piece_bytes
        self._encoder = encoder
        hidden = vocabulary.of_types(TokenType.CONTROL, TokenType.UNKNOWN)
        user_defined = vocabulary.of_types(TokenType.USER_DEFINED)
        self._special = frozenset(hidden)
        self._control_ids = {self._pieces[id]: id for id in hidden}
        self._always_parsed = SpecialTokens({self._pieces[id]: id for id in user_defined})
        self._all_parsed = SpecialTokens({self._pieces[id]: id for id in hidden + user_defined})
        inside = partial(self.encode, add_special=False, parse_special=False, continues=True)
        self._breakers = lru_cache(maxsize=32)(partial(find_breakers, self._bytes, inside))
        self._grammars = GrammarCompiler(self)
        self._spellings = lru_cache(maxsize=32)(partial(spell, inside))

    @classmethod
    def of(cls, spec: TokenizerSpec) -> Tokenizer:
        """The tokenizer that a checkpoint describes.

        Raises:
            UnsupportedModelError: the pre-tokenizer is not supported.
            ModelFileError: parts of the description contradict each other.
        """
        vocabulary = Vocabulary.of(spec)
        encoder: Encoder
        if spec.algorithm == "bpe":
            cut = pre_tokenizer(spec.pre_tokenizer, spec.label("pre_tokenizer"))
            add_bos, add_space_prefix = cut.add_bos, False
            encoder = bpe.ByteLevelEncoder(vocabulary, spec, cut)
            piece_bytes = bpe.piece_bytes(vocabulary)
        else:
            add_bos, add_space_prefix = True, spec.add_space_prefix is not False
            encoder = sentencepiece.SentencePieceEncoder(vocabulary, spec)
            piece_bytes = sentencepiece.piece_bytes(vocabulary, spec)
        if spec.add_bos is not None:
            add_bos = spec.add_bos
        add_eos = bool(spec.add_eos)
        for role, added in (("bos", add_bos), ("eos", add_eos)):
            if added and role not in spec.roles:
                spec.fail(role, f"is missing, and texts are to have {role.upper()} added")
        return cls(
            vocabulary,
            encoder,
            piece_bytes,
            add_bos=add_bos,
            add_eos=add_eos,
            add_space_prefix=add_space_prefix,
        )

    @cached_property
    def pieces(self) -> TokenPieces:
        """The bytes that tokens add to a text, and which of them end it."""
        texts = (b"" if id in self._special else raw for id, raw in enumerate(self._bytes))
        return TokenPieces(tuple(texts), tuple(sorted(self.eos_ids)))

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are; ids are in [0, vocabulary_size)."""
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
            add_special: add the tokens that begin and end a text, where the file asks for them.
            parse_special: take the text of control tokens for the tokens; user-defined tokens
                are always taken.
            continues: the text goes on after another one: no space is put before it.
        """
        special = self._all_parsed if parse_special else self._always_parsed
        ids = list(self._prefix_ids) if add_special else []
        after_special = not continues
        for part in special.split(_well_formed(text)):
            if isinstance(part, str):
                ids += self._encoder.encode(self._space_prefix + part if after_special else part)
                after_special = False
            else:
                ids.append(part)
                after_special = True
        return ids + self._suffix_ids if add_special else ids

    def encode_chat(self, text: str) -> list[int]:
        """Ids of a rendered chat template.

        This is where the rule on BOS lives: a template may or may not write it, a model wants it
        once, so it is added where the model asks for it and the template did not write it. EOS is
        never added: the prompt is to be continued.
        """
        ids = self.encode(text, add_special=False)
        return ids if ids[:1] == self._prefix_ids else self._prefix_ids + ids

    def encode_fill_in(self, before: str | Sequence[int], after: str) -> list[int]:
        """Ids of a prompt whose continuation fills the gap between two texts.

        The order is that of the models (Bavarian et al. 2022, arXiv:2207.14255: prefix, suffix,
        middle). Control tokens in the texts are text.

        Raises:
            UnsupportedParameterError: the model has no tokens for it.
        """
        marks = self._fill_in_marks()
        inside = partial(self.encode, add_special=False, parse_special=False, continues=True)
        first = inside(before) if isinstance(before, str) else before
        head = [*self._prefix_ids, marks.prefix]
        return [*head, *first, marks.suffix, *inside(after), marks.middle]

    def encode_files(self, files: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Ids of files, each a name and a text, to stand before a prompt of `encode_fill_in`.

        Where the model has the tokens, they have the form of a repository that Qwen2.5-Coder was
        trained on (Hui et al. 2024, arXiv:2409.12186): first its name, then each file behind its
        own, last the name of the file with the gap. Else a line with the name goes before a text.

        Returns:
            Ids of the head, of each file, and of what stands between the last file and the prompt.

        Raises:
            UnsupportedParameterError: the model has no tokens for filling in the middle.
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
        """A prompt of `encode_fill_in` with ids of files at its front, behind the BOS if any."""
        begin = len(self._prefix_ids)
        return [*prompt[:begin], *files, *prompt[begin:]]

    def _fill_in_marks(self) -> FillIn:
        if self.fill_in is None:
            raise UnsupportedParameterError(
                "suffix is not supported: this model has no tokens for filling in the middle",
                param="suffix",
            )
        return self.fill_in

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; broken UTF-8 becomes U+FFFD.

        The space that :meth:`encode` puts before a text is taken off again.

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

    def breakers(self, strings: tuple[str, ...]) -> TokenSequences:
        """Ways in which the strings can come about in tokens; see `sequences.find_breakers`.

        A vocabulary of 152,000 takes 5 ms a string, mostly; what was asked for lately is kept.
        """
        return self._breakers(strings)

    def spellings(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The words in tokens; see `sequences.spell`. What was asked for lately is kept."""
        return self._spellings(words)

    def grammar(self, grammar: Grammar) -> TokenGrammar:
        """The grammar over these tokens; what was asked for lately is kept.

        May take 100 ms, the very first one more: not for event loops, unless it is kept.

        Raises:
            GrammarError: it is wrong, can match nothing, or is too large.
        """
        return self._grammars.compile(grammar)

    def prepare_grammars(self) -> None:
        """Make what all grammars share, which holds up every thread for up to a second."""
        self._grammars.prepare()

    def known_grammar(self, grammar: Grammar) -> TokenGrammar | None:
        """As :meth:`grammar` at once; None for one that is not kept."""
        return self._grammars.known(grammar)

    def token_bytes(self, id: int) -> bytes:
        """The bytes the token adds to a text; none for special and unused tokens."""
        return self._bytes[id]

    def token_text(self, id: int) -> str:
        """A readable form of one token, special ones included; broken UTF-8 as U+FFFD."""
        return self._visible_bytes(id).decode(errors="replace")

    def control_id(self, text: str) -> int | None:
        """The control token that is written as `text`; None if there is none."""
        return self._control_ids.get(text)

    def is_special(self, id: int) -> bool:
        """Whether the token is a control or unknown token, which text never shows."""
        return id in self._special

    def _visible_bytes(self, id: int) -> bytes:
        return self._pieces[id].encode() if id in self._special else self._bytes[id]


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text

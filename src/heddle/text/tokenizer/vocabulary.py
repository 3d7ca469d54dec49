"""The vocabulary of a model file: pieces, their types, and tokens with a role such as BOS.

Roles follow llama.cpp (`src/llama-vocab.cpp`). If the file does not name the token of a role, this
module finds the token by the text of its piece, because many files do not name the tokens that end
a generation. `bpe.py` and `sentencepiece.py` turn text into pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.weights.checkpoint import TokenizerSpec


class TokenType(IntEnum):
    """The type of a token, numbered as in SentencePiece and GGUF."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _Role:
    """A role of a token, and the pieces that have the role if the file names no token for it."""

    name: str
    pieces: tuple[str, ...]


_BAR = "\uff5c"  # DeepSeek's full-width bar

# The first three mark the text before a gap, the text after the gap, and its filling. The last
# three end a generation: padding, name of a repository, end of a file.
_FILL_IN_THE_MIDDLE = (
    _Role(
        "fim_prefix",
        (
            *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", f"<{_BAR}fim▁begin{_BAR}>"),
            *("<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>"),
        ),
    ),
    _Role(
        "fim_suffix",
        (
            *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", f"<{_BAR}fim▁hole{_BAR}>"),
            *("<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"),
        ),
    ),
    _Role(
        "fim_middle",
        (
            *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", f"<{_BAR}fim▁end{_BAR}>"),
            *("<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>"),
        ),
    ),
    _Role(
        "fim_pad",
        ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    ),
    _Role(
        "fim_repository",
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ),
    _Role("fim_separator", ("<|file_sep|>",)),
)

_END_ROLES = ("eos", "eot", "eom")
_END_PIECES = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>"),
    *("<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>"),
    *("<end_of_turn>", "<turn|>", "<end_of_utterance>", "<eos>", "</s>", "[EOS]", "[e~["),
    *("<EOT>", "_<EOT>", "[EOT]", f"<{_BAR}end▁of▁sentence{_BAR}>"),
)

_HARMONY_PIECES = ("<|end|>", "<|return|>", "<|call|>")
"""A vocabulary with these pieces is gpt-oss's: `<|end|>` ends a message there, and an answer has
several messages."""


@dataclass(frozen=True, slots=True)
class FillIn:
    """Ids of fill-in-the-middle tokens.

    `prefix` comes before the text that precedes the gap, `suffix` before the text that follows the
    gap, and `middle` before the text that fills it. `repository` and `file` come before the names
    of a repository and of a file; None if the model has no such token.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Pieces by id and ids by piece.

    Attributes:
        pieces: each token's text as stored; unique.
        ids: the inverse of `pieces`.
        types: a :class:`TokenType` per token, as plain integers.
        bos_id: the token that begins a text; None if the file names none.
        eos_id: the token that ends a text; None if the file names none.
        end_ids: all tokens that end a generation.
        fill_in: FIM tokens; None unless the vocabulary has prefix, suffix and middle.
    """

    pieces: list[str]
    ids: dict[str, int]
    types: list[int]
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]
    fill_in: FillIn | None

    @classmethod
    def of(cls, spec: TokenizerSpec) -> Vocabulary:
        """Check the vocabulary and find the roles of its tokens.

        Raises:
            ModelFileError: the vocabulary is empty, a piece occurs twice, a list has another size,
                or a role names an id that does not exist.
        """
        # An empty piece gets llama.cpp's name for it, so that ids do not change.
        pieces = [piece or f"[EMPTY_{i}]" for i, piece in enumerate(spec.pieces)]
        size = len(pieces)
        try:
            "".join(pieces).encode()
        except UnicodeEncodeError as error:
            spec.fail("pieces", f"has half a surrogate pair, which is no text: {error.reason}")
        ids = {piece: i for i, piece in enumerate(pieces)}
        if len(ids) != size or not size:
            spec.fail(
                "pieces",
                f"has {size} pieces, {len(ids)} of them different; there must be at least one, and"
                " each must be unique",
            )
        if spec.types is not None:
            spec.check_entries("types", len(spec.types))
        for role, id in spec.roles.items():
            if not 0 <= id < size:
                spec.fail(role, f"must be a token id below {size}, got {id}")
        types = list(spec.types or [TokenType.NORMAL.value] * size)
        for id in spec.end_ids:
            if id >= size:
                spec.fail("end_ids", f"must be token ids below {size}, got {id}")
        ends = {spec.roles[role] for role in _END_ROLES if role in spec.roles} | {*spec.end_ids}
        roles = _fill_in_the_middle(spec, ids, types)
        before, after, middle, *others = roles
        ends |= {id for id in others if id is not None}
        fill_in = None
        if before is not None and after is not None and middle is not None:
            _, repository, separator = others
            fill_in = FillIn(before, after, middle, repository, separator)
        for piece in _END_PIECES:
            if piece in ids:
                ends.add(ids[piece])
                types[ids[piece]] = TokenType.CONTROL
        if all(piece in ids for piece in _HARMONY_PIECES):
            ends.discard(ids["<|end|>"])
        bos, eos = spec.roles.get("bos"), spec.roles.get("eos")
        return cls(pieces, ids, types, bos, eos, frozenset(ends), fill_in)

    def of_types(self, *types: TokenType) -> list[int]:
        """Ids of the tokens that have one of `types`, ascending."""
        return [id for id, type in enumerate(self.types) if type in types]


def _fill_in_the_middle(
    spec: TokenizerSpec, ids: dict[str, int], types: list[int]
) -> list[int | None]:
    """Ids of the fill-in-the-middle roles, in their order. Tokens that are found by their text
    become control tokens in `types`."""
    found = []
    for role in _FILL_IN_THE_MIDDLE:
        id = spec.roles.get(role.name)
        if id is None:
            id = next((ids[piece] for piece in role.pieces if piece in ids), None)
            if id is not None:
                types[id] = TokenType.CONTROL
        found.append(id)
    return found

"""Tokens that continue a word or the last bytes of a prompt, compared with brute force."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heddle.text.tokenizer.continuations import MAX_HEALED_TOKENS, Continuations


class Pieces:
    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.vocabulary_size = len(pieces)

    def token_bytes(self, id: int) -> bytes:
        return self.pieces[id]


short = st.binary(max_size=4).map(lambda raw: bytes(byte % 3 + 97 for byte in raw))
vocabularies = st.lists(short, min_size=1, max_size=40)


def can_begin(piece: bytes, wanted: bytes, pieces: list[bytes]) -> bool:
    if not piece or not wanted.startswith(piece):
        return piece.startswith(wanted)
    rest = wanted[len(piece) :]
    return not rest or any(can_begin(other, rest, pieces) for other in pieces if other)


@given(vocabularies, short.filter(len), st.integers(-3, 3))
def test_disagreeing_lists_the_tokens_that_cannot_spell_the_bytes(
    pieces: list[bytes], wanted: bytes, more: int
) -> None:
    vocabulary = max(1, len(pieces) + more)
    known = pieces[:vocabulary]
    found = Continuations(Pieces(pieces), vocabulary).disagreeing(wanted)
    assert list(found) == [
        token
        for token in range(vocabulary)
        if token >= len(pieces) or not can_begin(pieces[token], wanted, known)
    ]


@example([b"a", b"ab"], [0])  # the first token stays
@given(vocabularies, st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
def test_healing_takes_back_the_longest_tail_that_a_longer_token_starts_with(pieces, picks) -> None:
    tokens = [pick % len(pieces) for pick in picks]
    expected = 0
    for count in range(1, min(MAX_HEALED_TOKENS, len(tokens) - 1) + 1):
        parts = [pieces[token] for token in tokens[-count:]]
        tail = b"".join(parts)
        if not all(parts):
            break
        if any(piece.startswith(tail) and piece != tail for piece in pieces):
            expected = count
    assert Continuations(Pieces(pieces), len(pieces)).unfinished(tokens) == expected


@pytest.mark.parametrize(
    ("piece", "of_word"),
    [(b"a", True), (b"Z9", True), (b"7", True), (b"_x", True), ("é".encode(), True),
     ("世界".encode(), True), (b"\xa9", True), (b"\xe2", False), ("—".encode(), False),
     (b" a", False), (b"(", False), (b"\n", False), (b"", False), (b"-", False)],
)  # fmt: skip
def test_tokens_that_continue_a_word(piece: bytes, of_word: bool) -> None:
    found = Continuations(Pieces([piece, b"b"]), 3).not_in_word("")
    assert found == ((2,) if of_word else (0, 2))


@pytest.mark.parametrize(
    ("piece", "of_word"),
    [(b"-", True), (b"-a", True), (b"'t", True), ("’s".encode(), True), (b"- ", False),
     (b"--", False), (b"-'a", False), (b"+", False), (b"+a", False)],
)  # fmt: skip
def test_marks_inside_of_words_continue_a_word(piece: bytes, of_word: bool) -> None:
    found = Continuations(Pieces([piece, b"b"]), 3).not_in_word("'’-")
    assert found == ((2,) if of_word else (0, 2))


def test_tokens_with_line_ends_and_without_text_are_found() -> None:
    found = Continuations(Pieces([b"a\n", b"", b"\r", b"b", b"a\nb\n", b"a\nb"]), 8)
    assert found.without_text == (1, 6, 7)
    assert found.breaking == (0, 2, 4, 5)
    assert found.breaking_after(b"a\n") == (4,)

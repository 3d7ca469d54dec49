"""SentencePiece merging, compared with a direct version of llama.cpp's algorithm."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import sentencepiece, tokenizer_of


def merge(text: str, scores: dict[str, float]) -> list[str]:
    """Join pairs until none is left: highest score first, then leftmost."""
    symbols = list(text.replace(" ", "▁"))
    before, after = [i - 1 for i in range(len(symbols))], [i + 1 for i in range(len(symbols))]
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right < len(symbols):
            piece = symbols[left] + symbols[right]
            if piece in scores:
                heapq.heappush(queue, (-scores[piece], left, right, piece))

    for right in range(1, len(symbols)):
        offer(right - 1, right)
    while queue:
        _, left, right, piece = heapq.heappop(queue)
        if symbols[left] and symbols[right] and symbols[left] + symbols[right] == piece:
            symbols[left], symbols[right] = piece, ""
            after[left] = after[right]
            if after[right] < len(symbols):
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
    return [symbol for symbol in symbols if symbol]


def expected_bytes(symbols: list[str], scores: dict[str, float]) -> list[bytes]:
    """Pieces stay whole; other characters become their bytes."""
    parts = []
    for symbol in symbols:
        text = symbol.replace("▁", " ").encode()
        stays = symbol in scores
        parts += [text] if stays else [bytes([byte]) for byte in symbol.encode()]
    return parts


@st.composite
def vocabulary(draw: st.DrawFn) -> dict[str, float]:
    alphabet = draw(st.sampled_from(["a", "ab", "abé▁"]))
    pieces = draw(st.lists(st.text(alphabet, min_size=1, max_size=6), unique=True, min_size=1))
    order = draw(st.permutations(range(len(pieces))))
    return {piece: -float(rank) for piece, rank in zip(pieces, order, strict=True)}


@given(vocabulary(), st.lists(st.text("abé x", max_size=30), max_size=5))
def test_sentencepiece_agrees_with_merging_by_score(
    scores: dict[str, float], texts: list[str]
) -> None:
    tokenizer = tokenizer_of(sentencepiece(scores, add_space_prefix=False))
    for text in texts:
        ids = tokenizer.encode(text)
        found = [tokenizer.token_bytes(id) for id in ids]
        assert found == expected_bytes(merge(text, scores), scores)


@pytest.mark.parametrize("longest", [3, 31])
def test_pairs_of_equal_score_merge_from_the_left(longest: int) -> None:
    scores = {"▁" * n: -1.0 for n in range(1, longest + 1)} | {"x": 0.0, "▁x": -2.0}
    tokenizer = tokenizer_of(sentencepiece(scores, add_space_prefix=False))
    for count in range(1, 3 * longest):
        text = " " * count + "x"
        found = [tokenizer.token_bytes(id) for id in tokenizer.encode(text)]
        assert found == expected_bytes(merge(text, scores), scores)


def test_characters_merge_even_if_they_are_not_pieces() -> None:
    tokenizer = tokenizer_of(sentencepiece({"éx": -1.0}, add_space_prefix=False))
    assert [tokenizer.token_bytes(id) for id in tokenizer.encode("éxé")] == [
        "éx".encode(),
        b"\xc3",
        b"\xa9",
    ]


@given(st.text(st.characters(codec="utf-8", exclude_characters="▁")))
def test_sentencepiece_round_trip(text: str) -> None:
    tokenizer = ROUND_TRIP
    assert tokenizer.decode(tokenizer.encode(text)) == text


ROUND_TRIP = tokenizer_of(sentencepiece({"▁": -1.0, "a": -2.0, "▁a": -3.0}))

"""Regular expressions followed by Heddle: their masks are llguidance's, and few are made."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_executor import tokens_of
from heddle.errors import GrammarError
from heddle.extensions.grammars.patterns.masks import PatternMasks, TokenTexts
from heddle.extensions.grammars.patterns.syntax import parse
from heddle.grammars import Grammar
from heddle.text.constrained.grammar import GrammarCompiler
from heddle.text.constrained.matching import CompiledGrammar

WORDS = (
    *"abcxyz AZ019.,;-_\né",
    *("ab", "abc", "a a", " b", "ba ", "x1", "1-", "é ", "ééé", "ab ab", "b" * 9, "aaab", "\n\n"),
    *("日", "²", "Ⓐ"),
)
PIECES = [b"", *(word.encode() for word in WORDS), b"\xc3", b"\xa9", b"a\xc3", b"\xa9b", b"\xff"]


class Tokens:
    """A token per piece; 0 ends a text."""

    vocabulary_size = len(PIECES)
    bos_id = None
    eos_ids = frozenset({0})

    def token_bytes(self, token: int) -> bytes:
        return PIECES[token]

    def token_text(self, token: int) -> str:
        return PIECES[token].decode(errors="replace") or "<end>"

    def is_special(self, token: int) -> bool:
        return token == 0

    def control_id(self, text: str) -> int | None:
        return None

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        continues: bool = False,
    ) -> list[int]:
        data, found = text.encode(), []
        while data:  # the longest token that fits
            token = max(range(1, 1 + len(WORDS)), key=lambda id: _fit(data, PIECES[id]))
            if not _fit(data, PIECES[token]):
                break
            found.append(token)
            data = data[len(PIECES[token]) :]
        return found


def _fit(data: bytes, piece: bytes) -> int:
    return len(piece) if data.startswith(piece) else 0


TEXTS = TokenTexts(Tokens())
COMPILER = GrammarCompiler(Tokens())

_ATOMS = (
    *(
        "a",
        "b",
        "ab",
        r"\n",
        r"\.",
        "[a-c]",
        "[^0-9]",
        r"\w",
        r"\d",
        r"\s",
        r"\W",
        ".",
        "[é-ü]a",
        "é",
    ),
    *("[é-ü]a", r"[\w.-]", r"[^\s]", r"\x61", "[a-]", r"[\d\-x]", r"[^a-z\n]"),
)
_COUNTS = ("", "", "*", "+", "?", "{3}", "{2,}", "{1,3}", "{8,}", "{5,40}", "{0,30}")
_atoms, _counts = st.sampled_from(_ATOMS), st.sampled_from(_COUNTS)
_patterns = st.recursive(
    st.tuples(_atoms, _counts).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, _counts).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)


def compare(grammar: Grammar, draws: random.Random) -> None:
    """Compare the masks of random outputs with llguidance's."""
    try:
        compiled = COMPILER.compile(grammar)
    except GrammarError:
        return
    assert isinstance(compiled, CompiledGrammar)
    for _ in range(4):
        state, plain = compiled.begin(), compiled.matcher.deep_copy()
        last: list[int] = []
        for _ in range(30):
            try:
                mask = state.next_mask(last)
            except GrammarError:  # no token has the characters that the expression needs
                plain.compute_bitmask()
                assert plain.is_error()
                break
            assert mask == plain.compute_bitmask()
            allowed = [token for token in tokens_of(mask) if token]
            if not allowed:
                break
            last = [draws.choice(allowed)]
            plain.consume_tokens(last)


@settings(max_examples=40, deadline=None)
@given(pattern=_patterns, seed=st.integers(0, 1000))
def test_masks_of_random_expressions_are_those_of_llguidance(pattern: str, seed: int) -> None:
    compare(Grammar.of("regex", pattern), random.Random(seed))


@pytest.mark.parametrize("pattern", ["[ab]{3,30}c", "([ab]{2,4}c?){3,11}", "([ab]|é){12,}Z"])
def test_masks_change_where_a_token_may_use_up_a_count(pattern: str) -> None:
    for seed in range(4):
        compare(Grammar.of("regex", pattern), random.Random(seed))


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("([a-z]{2,9} ){900,}", 12),
        (r"(\w+[ .,]+){900,}", 4),
        ("[a-z]{20,60}( [a-z]{20,60}){50,}", 90),
        ("([^0-9]{3,7};){400,}", 30),
    ],
)
def test_a_counting_expression_has_few_masks(pattern: str, most: int) -> None:
    masks = PatternMasks.of(pattern, TEXTS)
    assert masks is not None
    draws, keys = random.Random(1), set()
    compiled = COMPILER.compile(Grammar.of("regex", pattern))
    for _ in range(3):
        state, place, last = compiled.begin(), masks.begin(), list[int]()
        for _ in range(150):
            place.mask_after(last)
            keys.add(place.key)
            last = [draws.choice([token for token in tokens_of(state.next_mask(last)) if token])]
    assert len(keys) <= most


def test_tokens_can_be_taken_back() -> None:
    state = COMPILER.compile(Grammar.of("regex", "([ab]{2,3} ){9}")).begin()
    a, space = PIECES.index(b"a"), PIECES.index(b" ")
    first = state.next_mask([a])
    state.next_mask([a])
    assert state.next_mask([space]) != first
    assert state.rewind(2)
    assert state.next_mask([]) == first


def test_a_place_where_one_byte_is_forced_has_no_key() -> None:
    # llguidance allows only the first token of the forced text there, which may be long.
    masks = PatternMasks.of("a{40}b", TEXTS)
    assert masks is not None
    place = masks.begin()
    place.mask_after([])
    assert place.key is None


def test_an_expression_with_too_many_places_has_no_keys() -> None:
    masks = PatternMasks.of("(a{1,50}){1,50}b|c", TEXTS)
    assert masks is not None
    place = masks.begin()
    place.mask_after([])
    assert place.key is not None
    place.mask_after([PIECES.index(b"aaab"), PIECES.index(b"b" * 9)])
    assert place.key is None
    many = PatternMasks.of("".join(f"a{{0,{count}}}" for count in range(2, 60)), TEXTS)
    assert many is not None
    place = many.begin()
    place.mask_after([PIECES.index(b"a")])
    assert place.key is None


def test_characters_that_unicode_versions_classify_differently_end_the_keys() -> None:
    masks = PatternMasks.of(r"(\w|-){9,}x", TEXTS)
    assert masks is not None
    for word, is_known in (("é", True), ("日", True), ("Ⓐ", False)):
        place = masks.begin()
        place.mask_after([PIECES.index(word.encode())])
        assert (place.key is not None) == is_known


UNUSUAL = (
    *("^a", "a$", r"\bb", "(?i)a", "a*?", "a{,3}", "[[:alpha:]]", "[a-z&&b]", "a**", "(", "a)"),
    *(r"[^\x00-\x7f]", "a{3,2}", "a{0}", r"\p{L}", r"\1", "(?P<n>a)", "]", "[a--b]", "[z-a]"),
    *("[]a]", "(" * 60 + "a" + ")" * 60, "ab" * 400),
)


@pytest.mark.parametrize("pattern", UNUSUAL)
def test_unusual_syntax_has_no_tree(pattern: str) -> None:
    assert parse(pattern) is None


def test_old_masks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.extensions.grammars.patterns.masks._MOST_BYTES", 25)
    masks = PatternMasks.of("[ab]+", TEXTS)
    assert masks is not None
    for key in range(5):
        masks.keep(key, bytes(10))
    assert [key for key in range(5) if masks.get(key)] == [3, 4]

"""Grammars over a tokenizer of letters: what masks allow, and what is refused."""

from __future__ import annotations

import gc
import itertools
import json
import random
import re
import threading
import weakref
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_executor import END, VOCABULARY, tokens_of
from fake_model import PIECES, FakeTokenizer
from heddle.errors import GrammarError, InvalidRequestError
from heddle.grammars import JSON_SCHEMA, MAX_GRAMMAR_LENGTH, Grammar
from heddle.sampling_params import SamplingParams
from heddle.text.constrained import grammar as grammar_module
from heddle.text.constrained import matching
from heddle.text.constrained.grammar import GrammarCompiler
from heddle.text.constrained.language import JSON_SPACE
from patterns import regular

COMPILER = GrammarCompiler(FakeTokenizer())


class JsonTokenizer(FakeTokenizer):
    """A token per byte below 128; 0 ends a text."""

    vocabulary_size = 128

    def encode(self, text, **_special):
        return list(text.encode("ascii", "ignore"))

    def token_bytes(self, token):
        return bytes([token]) if token else b""

    def token_text(self, token):
        return chr(token) if token else "<end>"


JSON = GrammarCompiler(JsonTokenizer())


class WordTokenizer(JsonTokenizer):
    """A JsonTokenizer with further tokens: pairs of characters, words, two control tokens."""

    words = (
        *(first + second for first in 'aZ 1,"é\n' for second in "bY 2.\\ü"),
        *("weaver", " weaver", "Weaver", " a long way", "x" * 29, "x" * 35, "    "),
    )
    specials = ("<call>", "[CALL]")
    vocabulary_size = 128 + len(words) + len(specials)

    def token_bytes(self, token):
        if token < 128:
            return super().token_bytes(token)
        return b"".join(word.encode() for word in self.words[token - 128 : token - 127])

    def token_text(self, token):
        if self.is_special(token) and token:
            return self.specials[token - 128 - len(self.words)]
        return self.token_bytes(token).decode() or "<end>"

    def is_special(self, token):
        return token == END or token >= 128 + len(self.words)


CALL, BRACKETED_CALL = (WordTokenizer.vocabulary_size - place for place in (2, 1))


def ids(text):
    return [PIECES.index(letter.encode()) for letter in text]


def accepts(compiler, grammar, tokens):
    """Whether the grammar allows the tokens one by one, and an end after them."""
    state, seen = compiler.compile(grammar).begin(), []
    for token in [*tokens, END]:
        if token not in tokens_of(state.next_mask(seen)):
            return False
        seen = [token]
    return True


@pytest.mark.extensions
def test_a_choice_allows_only_its_strings():
    grammar = Grammar.of("choice", ["tea", "ten", "to"])
    words = {
        "".join(word)
        for length in range(5)
        for word in itertools.product("aent o", repeat=length)
        if accepts(COMPILER, grammar, ids("".join(word)))
    }
    assert words == {"tea", "ten", "to"}


@pytest.mark.parametrize(
    "grammar_of",
    [regular, pytest.param(partial(Grammar.of, "regex"), marks=pytest.mark.extensions)],
)
@settings(deadline=None)
@given(word=st.text("abc", max_size=6))
@pytest.mark.parametrize("pattern", ["a*b+c?", "(ab|c){1,3}", "[ab]c.*"])
def test_a_regex_matches_the_whole_output(grammar_of, pattern, word):
    expected = re.fullmatch(pattern, word) is not None
    assert accepts(COMPILER, grammar_of(pattern), ids(word)) == expected


def test_a_lark_grammar_is_followed():
    grammar = Grammar.lark('start: "a" start "b" | "-"')
    assert accepts(COMPILER, grammar, ids("aa-bb"))
    assert not accepts(COMPILER, grammar, ids("aa-b"))


def test_a_mask_has_one_bit_for_each_token():
    mask = COMPILER.compile(regular("(.|\\n)*")).begin().next_mask([])
    assert tokens_of(mask) == list(range(VOCABULARY))


def test_masks_do_not_depend_on_how_tokens_are_grouped():
    compiled = COMPILER.compile(regular("(ab|cd)*-(e|f){3,9}"))
    tokens = ids("abcdab-efef")
    step_by_step = compiled.begin()
    masks = [step_by_step.next_mask([])] + [step_by_step.next_mask([t]) for t in tokens]
    for length in range(len(tokens) + 1):
        assert compiled.begin().next_mask(tokens[:length]) == masks[length]


def test_states_of_one_grammar_are_independent():
    compiled = COMPILER.compile(regular("ab|cd"))
    one, other = compiled.begin(), compiled.begin()
    one.next_mask(ids("a"))
    assert tokens_of(other.next_mask(ids("c"))) == ids("d")
    assert tokens_of(one.next_mask(ids("b"))) == [END]


@pytest.mark.parametrize("space", ["", " ", "\n", "\n  ", "\n\t\t"])
def test_json_may_be_compact_or_indented(space):
    grammar = Grammar.json_schema({"type": "object"})
    assert accepts(JSON, grammar, f'{{{space}"a":{space}[{space}1,{space}2{space}]}}'.encode())


@pytest.mark.parametrize("space", ["  ", "\n\n", " \n", "\n" + " " * 33])
def test_json_whitespace_is_bounded(space):
    assert not accepts(JSON, Grammar.json_schema({"type": "object"}), f"{{{space}}}".encode())


def test_a_schema_is_followed():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", None]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    grammar = Grammar.json_schema(schema)
    assert accepts(JSON, grammar, b'{"a": -12, "b": null}')
    assert not accepts(JSON, grammar, b'{"a": 1.5, "b": null}')
    assert not accepts(JSON, grammar, b'{"a": 1, "b": "y"}')
    assert not accepts(JSON, grammar, b'{"a": 1}')
    assert not accepts(JSON, grammar, b'{"a": 1, "b": "x", "c": 1}')


NESTED: dict[str, object] = {"type": "string"}
for _ in range(300):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(JSON_SCHEMA, "{"),
        Grammar(JSON_SCHEMA, "3"),
        Grammar(JSON_SCHEMA, "false"),
        Grammar.json_schema({"type": "nope"}),
        Grammar.json_schema({"type": "string", "minLength": 5, "maxLength": 2}),
        Grammar.json_schema({"type": "integer", "minimum": 5, "maximum": 3}),
        Grammar.json_schema({"enum": []}),
        Grammar.json_schema({"$ref": "#"}),
        Grammar.json_schema({"$ref": "http://example.com/schema"}),
        Grammar.json_schema({"$ref": "file:///etc/passwd"}),
        Grammar.json_schema({"type": "array", "uniqueItems": True}),
        Grammar.json_schema({"type": "string", "pattern": "(?=a)b"}),
        Grammar.json_schema(NESTED),
        Grammar.lark(""),
        Grammar.lark("start: nowhere"),
        Grammar.lark('start: start "a"'),
        Grammar.lark('start: "a"\nnonsense'),
        Grammar.lark("\0"),
        regular("("),
        regular("(a{1000}){1000}"),
        regular("a{4000000000}"),
        regular(r"[^\x00-\U0010ffff]"),
    ],
    ids=lambda grammar: grammar.text[:40],
)
def test_an_invalid_impossible_or_too_large_grammar_is_refused(grammar):
    with pytest.raises(GrammarError, match=r"grammar cannot be served: .+") as raised:
        JSON.compile(grammar)
    assert raised.value.param == "grammar"
    assert raised.value.status == 400
    assert len(raised.value.message) < 1000


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "("),
        ("regex", "(a{1000}){1000}"),
        ("regex", "a{4000000000}"),
        ("regex", r"[^\x00-\U0010ffff]"),
        ("choice", "[]"),
        ("choice", '["a", ""]'),
    ],
)
def test_so_is_a_pattern_or_a_choice(kind, text):
    test_an_invalid_impossible_or_too_large_grammar_is_refused(Grammar(kind, text))


@pytest.mark.extensions
def test_the_error_says_what_is_wrong_with_a_pattern():
    with pytest.raises(GrammarError, match=r'invalid regex "\[ab" .*: unclosed character class$'):
        JSON.compile(Grammar.of("regex", "[ab"))
    with pytest.raises(GrammarError, match=r"look-ahead and look-behind, is not supported$"):
        JSON.compile(Grammar.of("regex", "a(?=b)"))


def test_a_grammar_that_the_vocabulary_cannot_spell_is_refused():
    with pytest.raises(GrammarError, match="nothing"):
        JSON.compile(regular("\u00e9"))


def test_a_grammar_that_becomes_too_much_work_fails_only_its_output():
    """Each letter after the first `a` doubles the states of the lexer."""
    compiled = COMPILER.compile(regular("[ab]*a[ab]{60}c"))
    state, beside = compiled.begin(), compiled.begin()
    beside.next_mask(ids("a"))
    with pytest.raises(GrammarError, match="failed during generation"):
        for letter in random.Random(1).choices(ids("ab"), k=40_000):
            state.next_mask([letter])
    with pytest.raises(GrammarError, match="failed during generation"):
        state.next_mask([])
    assert tokens_of(beside.next_mask(ids("b"))) == ids("ab")
    assert tokens_of(compiled.begin().next_mask([])) == ids("ab")


def test_a_mask_that_takes_too_long_ends_its_output(monkeypatch):
    state = COMPILER.compile(regular("[ab]{9}")).begin()
    assert tokens_of(state.next_mask([])) == ids("ab")
    monkeypatch.setattr(matching, "MASK_SECONDS", -1.0)
    with pytest.raises(GrammarError, match="finding the tokens that may come next takes more than"):
        state.next_mask(ids("a"))


def test_a_garbage_collection_does_not_count_in_the_time_of_a_mask(monkeypatch):
    state = COMPILER.compile(regular("[ab]{9}")).begin()
    clock, thread = [0.0], threading.get_ident()

    def collect(_phase: str, _info: dict[str, int]) -> None:
        if threading.get_ident() == thread:  # another thread's collection is not its own time
            clock[0] += 1.0

    monkeypatch.setattr(matching, "thread_time", lambda: clock[0])
    monkeypatch.setattr(matching, "MASK_SECONDS", 0.5)
    usual = gc.get_threshold()
    gc.callbacks.append(collect)
    gc.set_threshold(1)
    try:
        mask = state.next_mask(ids("a"))
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(collect)
    assert clock[0] > 0
    assert tokens_of(mask) == ids("ab")


def test_a_grammar_that_is_too_long_is_refused_unparsed():
    Grammar.lark("a" * MAX_GRAMMAR_LENGTH)
    with pytest.raises(GrammarError, match="131,073 characters"):
        Grammar.lark("a" * (MAX_GRAMMAR_LENGTH + 1))
    with pytest.raises(GrammarError, match="surrogate"):
        Grammar.lark("\ud800")


def test_a_model_without_an_end_token_refuses_grammars():
    class Endless(FakeTokenizer):
        eos_ids = frozenset()

    with pytest.raises(GrammarError, match="no token that ends"):
        GrammarCompiler(Endless()).compile(regular("a"))


PATTERNS = (
    "[a-z ]{3,40}",
    "[a-zA-Z ]*",
    "(.|\\n){2,33}",
    "([a-z]{2,9} ){2,}",
    "[^0-9]{1,30}",
    "\\w+( \\w+)*",
)
GRAMMARS = [regular(pattern) for pattern in PATTERNS] + [
    Grammar.json_schema({"type": "array", "items": {"type": "string", "maxLength": 32}})
]


@settings(deadline=None)
@given(grammar=st.sampled_from(GRAMMARS), seed=st.integers(0, 2**32))
def test_masks_from_token_slices_equal_masks_without_slices(grammar, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar_module, "_SLICES", [])
        one_by_one = ONE_BY_ONE.compile(grammar).begin()
    in_sets, seen, choose = IN_SETS.compile(grammar).begin(), [], random.Random(seed).choice
    for _ in range(12):
        mask = in_sets.next_mask(seen)
        assert one_by_one.next_mask(seen) == mask
        seen = [choose(tokens_of(mask))]
        if seen == [END]:
            break


ONE_BY_ONE, IN_SETS = GrammarCompiler(WordTokenizer()), GrammarCompiler(WordTokenizer())


def test_lark_can_name_control_tokens_by_text_or_id():
    by_name, by_id = Grammar.lark('start: <call> "a"'), Grammar.lark(f"start: <[{BRACKETED_CALL}]>")
    assert accepts(IN_SETS, by_name, [CALL, ord("a")])
    assert accepts(IN_SETS, by_id, [BRACKETED_CALL])
    assert not accepts(IN_SETS, by_name, list(b"<call>a"))
    assert CALL not in tokens_of(IN_SETS.compile(regular("(.|\\n)*")).begin().next_mask([]))


def test_lark_can_combine_text_a_mark_and_json_with_bounded_whitespace():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    room = {"x-guidance": {"whitespace_pattern": JSON_SPACE}}
    lark = 'start: before object\nbefore[suffix="<call>"]: /(.|\\n)*/\n'
    lark += f"object: %json {json.dumps(schema | room)}"
    grammar = Grammar.lark(lark)
    assert accepts(JSON, grammar, b'so: <call>{"a": 1}')
    assert accepts(JSON, grammar, b'<call>{\n\t"a":1\n}')
    assert not accepts(JSON, grammar, b'so: {"a": 1}')
    assert not accepts(JSON, grammar, b'so: <call>{"a": "b"}')
    assert not accepts(JSON, grammar, b'so: <call>{  "a": 1}')


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.lark(
            "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(4500)) + 'r4500: "z"'
        ),
        Grammar.lark(
            "start: T0\n" + "".join(f'T{i}: (T{i + 1} "b")*\n' for i in range(400)) + 'T400: "z"'
        ),
        Grammar.json_schema(
            {"$ref": "#/$defs/0"}
            | {"$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(1800)} | {"1800": {}}}
        ),
    ],
    ids=["rules", "terminals", "references"],
)
def test_long_chains_of_definitions_do_not_end_the_process(grammar):
    try:
        compiled = JSON.compile(grammar)
    except GrammarError:
        return
    state = compiled.begin()
    for _ in range(3):
        allowed = tokens_of(state.next_mask([]))
    state.next_mask(allowed[:1])


def test_a_grammar_in_use_is_not_compiled_again():
    kept = COMPILER.compile(regular("kept"))
    for count in range(1, 50):
        COMPILER.compile(regular("other" * count))
    assert COMPILER.compile(regular("kept")) is kept


@pytest.mark.extensions
def test_choices_are_matched_literally():
    grammar = Grammar.of("choice", ['"\\n', "a.b", "\n"])
    for choice in json.loads(grammar.text):
        assert accepts(JSON, grammar, choice.encode())
    assert not accepts(JSON, grammar, b"acb")


def test_sampling_parameters_check_their_grammar():
    with pytest.raises(InvalidRequestError, match="must be a Grammar"):
        SamplingParams(grammar={"type": "object"})
    with pytest.raises(InvalidRequestError, match="min_tokens must be 0 for a request with"):
        SamplingParams(grammar=regular("a"), min_tokens=1)


class PanicException(BaseException):
    """A panic of a library written in Rust, as Python sees it."""


@pytest.mark.parametrize("call", ["consume_token", "compute_bitmask"])
def test_a_panic_of_llguidance_refuses_only_the_grammar(call):
    class Panicking:
        def __init__(self, matcher):
            self._matcher = matcher

        def __getattr__(self, name):
            return getattr(self._matcher, name) if name != call else self._panic

        def _panic(self, *_):
            raise PanicException("out of bounds")

    state: Any = COMPILER.compile(regular("a(b|c)*x")).begin()
    state._matcher = Panicking(state._matcher)
    with pytest.raises(GrammarError, match="failed during generation: out of bounds"):
        state.next_mask(ids("ab"))


def test_a_panic_while_a_grammar_is_compiled_refuses_it(monkeypatch):
    def panic(*_):
        raise PanicException("out of bounds")

    monkeypatch.setattr(grammar_module, "_check_beginning", panic)
    with pytest.raises(GrammarError, match="grammar cannot be served: out of bounds"):
        COMPILER.compile(regular("never compiled before"))


def test_a_panic_while_guesses_are_taken_back_makes_the_grammar_begin_again():
    class Panicking:
        def rollback(self, count):
            raise PanicException("out of bounds")

    state: Any = COMPILER.compile(regular("a(b|c)*x")).begin()
    state.next_mask(ids("ab"))
    state._matcher = Panicking()
    assert state.rewind(1) is False


def test_a_dropped_tokenizer_is_freed_with_its_grammars_but_not_while_one_is_in_use():
    class Letters(FakeTokenizer):
        pass

    tokens = Letters()
    tokens.grammars.prepare()
    compiled, dropped = tokens.grammar(regular("[a-c]+")), weakref.ref(tokens)
    del tokens
    gc.collect()
    assert compiled.begin().next_mask(())
    assert dropped() is not None
    del compiled
    gc.collect()
    assert dropped() is None

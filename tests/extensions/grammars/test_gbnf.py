"""llama.cpp's grammars match the same texts after their translation."""

from __future__ import annotations

import itertools
import random
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_executor import END, tokens_of
from heddle.errors import GrammarError
from heddle.extensions.grammars.gbnf.lark import lark
from heddle.extensions.grammars.gbnf.syntax import (
    Alt,
    Chars,
    Ref,
    Repeat,
    Seq,
    Token,
    characters,
    is_gbnf,
    parse,
)
from heddle.grammars import Grammar
from heddle.text.constrained.grammar import GrammarCompiler
from talking_model import LetterTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.extensions.grammars.gbnf.syntax import Node

TOKENIZER = LetterTokenizer()
COMPILER = GrammarCompiler(TOKENIZER)


def accepts(grammar: str, text: str) -> bool:
    """Whether the translated grammar allows the tokens of a text one by one, and then an end."""
    state, seen = COMPILER.compile(Grammar.of("gbnf", grammar)).begin(), list[int]()
    for token in [*TOKENIZER.encode(text), END]:
        if token not in tokens_of(state.next_mask(seen)):
            return False
        seen = [token]
    return True


JSON = r"""
# values of JSON
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})  # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
SUMS = """
root ::= (sum "=" ws term "\\n")+
sum  ::= term ([-+*/] term)*
term ::= name | num | "(" ws sum ")" ws
name ::= [a-z] [a-z0-9_]* ws
num  ::= [0-9]+ ws
ws   ::= [ \\t\\n]*
"""
CALLS = """
root ::= call
call ::= name ws "(" (args)? ")"
args ::= call-or-name ("," ws call-or-name)*
call-or-name ::= call | name
name ::= [a-zA-Z_][a-zA-Z0-9_]*
ws ::= ([ \\t] ws)?
"""
MOVES = """
root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+
move ::= (pawn | other | castle) [+#]?
other ::= [NBRQK] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBRQK])?
castle ::= "O-O" "-O"?
"""
BOTH: list[tuple[str, list[str], list[str]]] = [
    (
        JSON,
        ["{}", '{"a": [1, -2.5e3, "b\\u00e9"]}', '{"a":{"b":[{}, [], null ]}}\n  '],
        ["{", '{"a"}', '{"a": 01}', '{"a":1,}', "[1]", '{"a": tru}'],
    ),
    (SUMS, ["a=1\n", "(a +b)*c1 =\n2\n\n", "1=2\n3+4=x\n"], ["a=1", "a+=1\n", "(a=1\n", "A=1\n"]),
    (CALLS, ["f()", "f  (a,g(b, c),d)", "f(g(h()))"], ["f", "f(a b)", "f(a,)", "f((a)"]),
    (MOVES, ["1. e4 e5\n2. Nf3 O-O\n"], ["1. e4 e5\n", "1. e4\n", "1. e4 e5\n2. Nf3 O-O-\n"]),
    ('root ::= [^a-c]{2,} "-"? [x\\-y]', ["ddx", "zz--", "zz-y"], ["dx", "adx", "ddz"]),
    ('root ::= "\\x41\\u0042\\U00000043" [\\]\\[] .', ["AB]C"[:2] + "C]."], ["ABC]", "ABCx."]),
    ('root ::= ("a" | "ab") ("c" | "bc")', ["ac", "abc", "abbc"], ["a", "abb"]),
    ('root ::= x x\nx ::= "a" | "a" x "a"', ["aa", "aaaa"], ["a", "aaa", ""]),
    ('root ::= "" | "a" root "b"', ["", "ab", "aabb"], ["a", "aab", "ba"]),
    ('root ::= word ("," word){2}\nword ::= [a-z]+', ["a,bb,c"], ["a,b", "a,b,c,d", "a,b,"]),
    ('root ::= ("a"?){2,3} "b"{0} "c"', ["c", "aac", "aaac"], ["aaaac", "bc"]),
    (
        'root ::= <[128]> "f" (!<[128]>)* <|python_tag|>',
        ["[TOOL_CALLS]fab<|python_tag|>", "[TOOL_CALLS]f[ARGS]<|python_tag|>"],
        ["f<|python_tag|>", "[TOOL_CALLS]f", "[TOOL_CALLS]f[TOOL_CALLS]<|python_tag|>"],
    ),
    (
        "root ::= <[128]> (!<[129]>)* <[129]> !<|python_tag|>+",
        ["[TOOL_CALLS]a<|python_tag|>[ARGS]b[ARGS]", "[TOOL_CALLS][ARGS][TOOL_CALLS]"],
        ["[TOOL_CALLS]a[ARGS]", "[TOOL_CALLS][ARGS]<|python_tag|>", "[ARGS]a"],
    ),
    ('root ::= a # a comment\n  | b\na ::= "a"\n\n\nb ::= "b"\n', ["a", "b"], ["ab", ""]),
]


RANGES = st.lists(st.tuples(*[st.sampled_from("abcdefgh")] * 2).map(sorted), min_size=1, max_size=4)


@given(RANGES, st.booleans())
def test_ranges_of_a_class_may_overlap(ranges: list[list[str]], negated: bool) -> None:
    written = "".join(f"{low}-{high}" for low, high in ranges)
    [node] = parse(f"root ::= [{'^' * negated}{written}]").values()
    assert isinstance(node, Chars)
    assert all(low <= high for low, high in node.ranges)
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(node.ranges))
    inside = {one for one in range(128) if any(low <= one <= high for low, high in node.ranges)}
    named = {code for low, high in ranges for code in range(ord(low), ord(high) + 1)}
    assert inside == (set(range(128)) - named if negated else named)


@pytest.mark.parametrize(("grammar", "matching", "others"), BOTH)
def test_texts_match_as_in_llamacpp(grammar: str, matching: list[str], others: list[str]) -> None:
    assert is_gbnf(grammar)
    for text in matching:
        assert accepts(grammar, text), text
    for text in others:
        assert not accepts(grammar, text), text


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= a", "uses 'a', which is not defined"),
        ('root ::= "a', "line 1: a text does not end"),
        ('root ::= "a"\nx ::= [a', "line 2: a class of characters does not end"),
        ('root ::= "\\q"', "unknown escape \\q"),
        ('root ::= "\\ud800"', "is not a character"),
        ('root ::= "a"{3,2}', "the second count is smaller"),
        ('root ::= "a"{,2}', "expected a count"),
        ('root ::= "a"{20000}', "larger than 10,000"),
        ('root ::= ("a"', "expected ')'"),
        ('root ::= "a")', "expected a new line"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is defined twice"),
        ('root ::= "a" x\nx ::= "b" x', "rule 'root' matches no text"),
        ("root ::= [^\\x00-\\U0010ffff]", "a class has no characters"),
        ("root ::= <no such token>", "no control token <no such token>"),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "more than 100 parentheses"),
    ],
)
def test_a_wrong_grammar_says_what_is_wrong(grammar: str, said: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(said)):
        COMPILER.compile(Grammar.of("gbnf", grammar))


def test_lark_is_not_taken_for_gbnf() -> None:
    assert not is_gbnf('start: "a ::= b" | x\nx: /::=/')
    assert is_gbnf('# Lark?\n  root ::= "start: x"')


def test_regular_parts_are_single_expressions() -> None:
    """A string of JSON character by character would take the parser for each one."""
    rules = lark(JSON, TOKENIZER).splitlines()
    assert len(rules) < 16
    assert any("\\x{22}" in rule and "{4,4}" in rule and ")*" in rule for rule in rules)
    assert lark(MOVES, TOKENIZER).count("\n") == 1


# --- random grammars -----------------------------------------------------------------------------


def matches(rules: Mapping[str, Node], text: str) -> bool:
    """Whether the rule `root` matches a text, by the definition of GBNF."""
    found: dict[tuple[str, int], set[int]] = {}

    def ends(node: Node, at: int) -> set[int]:
        match node:
            case Chars(ranges):
                inside = at < len(text) and any(lo <= ord(text[at]) <= hi for lo, hi in ranges)
                return {at + 1} if inside else set()
            case Ref(name):
                return found.get((name, at), set())
            case Seq(items):
                places = {at}
                for item in items:
                    places = set[int]().union(*(ends(item, place) for place in places))
                return places
            case Alt(items):
                return set[int]().union(*(ends(item, at) for item in items))
            case Repeat(item, low, high):
                places, reached = {at}, set[int]()
                for times in range(len(text) + low + 2 if high is None else high + 1):
                    reached |= places if times >= low else set()
                    places = set[int]().union(*(ends(item, place) for place in places))
                return reached
            case Token():
                raise AssertionError(node)

    while True:
        new = {(name, at): ends(rules[name], at) for name in rules for at in range(len(text) + 1)}
        if new == found:
            return len(text) in found["root", 0]
        found = new


@cache
def texts() -> list[str]:
    return ["".join(one) for length in range(5) for one in itertools.product("abc", repeat=length)]


def random_node(chance: random.Random, depth: int, names: list[str]) -> str:
    kind = chance.random() if depth else 0
    if kind < 0.35:
        return chance.choice(['"a"', '"ab"', '"abc"', "[ab]", "[^b]", '"c"', *names])
    if kind < 0.6:
        return " ".join(random_node(chance, depth - 1, names) for _ in range(2))
    choice = " | ".join(random_node(chance, depth - 1, names) for _ in range(2))
    return f"({choice})" + (chance.choice("*+?") if kind > 0.8 else "")


@pytest.mark.parametrize("seed", range(24))
def test_random_grammars_match_what_their_definition_matches(seed: int) -> None:
    chance = random.Random(seed)
    names = ["x", "y", "root"]
    source = "\n".join(f'{name} ::= {random_node(chance, 3, names)} | "a"' for name in names)
    rules = parse(source)
    for text in chance.sample(texts(), 20):
        assert accepts(source, text) == matches(rules, text), (source, text)


def test_classes_have_no_surrogates() -> None:
    assert characters([(0xD000, 0xE001)]).ranges == ((0xD000, 0xD7FF), (0xE000, 0xE001))
    assert characters([(0xD900, 0xDA00)]).ranges == ()
    assert characters([(0, 1), (2, 9)], negated=True).ranges[0] == (10, 0xD7FF)

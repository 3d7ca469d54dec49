"""Colours code, in a time that grows with its length alone.

Hostile code must not stop the server, so no pattern here looks at a character twice. Pygments was
weighed: its lexer of C takes 29 s for 16,384 line breaks, in one match that holds the GIL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_C_COMMENT = r"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?+"
_HASH_COMMENT = r"(?<![\w$])\#[^\n]*+"
_DOUBLE = r'"(?:[^"\\\n]|\\.)*+"?+'
_SINGLE = r"'(?:[^'\\\n]|\\.)*+'?+"
_BACKTICK = r"`(?:[^`\\]|\\.)*+`?+"
_TRIPLE = r'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?+|' + r"'''(?:[^'\\]|\\.|'(?!''))*+(?:''')?+"
_CHARACTER = r"'(?:[^'\\\n]|\\.)'"
_NUMBER = r"\b0[xXbBoO][0-9a-fA-F_]++|\b\d[\d_]*+(?:\.\d[\d_]*+)?+(?:[eE][+-]?+\d++)?+\w*+"
_WORD = r"[^\W\d]\w*+"

_SHARED = (
    "break case catch class const continue default do else enum export extends false finally"
    " for if implements import in interface new null package private protected public return"
    " static super switch this throw true try void while yield"
)
_SCRIPT = _SHARED + (
    " abstract any as async await boolean debugger declare delete from function get instanceof"
    " let namespace never number of readonly set string type typeof undefined unknown var"
)
_SYSTEM = _SHARED + (
    " alignas auto bool char concept constexpr delete double explicit extern float inline int"
    " long namespace noexcept nullptr operator register short signed sizeof struct template"
    " typedef typename union unsigned using virtual volatile"
)
_MANAGED = _SHARED + (
    " abstract as base boolean bool byte char companion data def double final float fun get"
    " instanceof int internal is lateinit long namespace object open override readonly record"
    " sealed set short string struct suspend synchronized throws trait using val var virtual"
    " when"
)
_PYTHON = (
    "False None True and as assert async await break case class continue def del elif else"
    " except finally for from global if import in is lambda match nonlocal not or pass raise"
    " return try while with yield"
)
_RUBY = (
    "BEGIN END alias and begin break case class def defined do else elsif end ensure false for"
    " if in module next nil not or redo require rescue retry return self super then true undef"
    " unless until when while yield"
)
_SHELL = (
    "case do done elif else esac export fi for function if in local readonly return select set"
    " shift then trap unset until while"
)
_SQL = (
    "add all alter and as asc between by case check column create cross default delete desc"
    " distinct drop else end exists foreign from full group having if in index inner insert into"
    " is join key left like limit not null offset on or order outer primary references returning"
    " right select set table then union unique update using values view when where with"
)
_GO = (
    "any bool break byte case chan const continue default defer else error fallthrough false"
    " float64 for func go goto if import int int64 interface map nil package range return rune"
    " select string struct switch true type var"
)
_RUST = (
    "Self as async await bool break char const continue crate dyn else enum extern f32 f64"
    " false fn for i32 i64 if impl in let loop match mod move mut pub ref return self static str"
    " struct super trait true type u32 u64 u8 unsafe use usize where while"
)
_SWIFT = _MANAGED + (" extension func guard init inout let nil protocol self some weak")
_LUA = (
    "and break do else elseif end false for function goto if in local nil not or repeat return"
    " then true until while"
)
_HASKELL = (
    "case class data deriving do else if import in instance let module newtype of then type where"
)


@dataclass(frozen=True, slots=True)
class _Language:
    """How code of a language looks.

    Attributes:
        comment: pattern of its comments.
        string: pattern of its strings.
        keywords: its keywords, in lower case if it does not tell cases apart.
        has_cases: whether it tells upper from lower case.
    """

    comment: str
    string: str
    keywords: str
    has_cases: bool = True

    @property
    def pattern(self) -> str:
        """The pattern of all parts: comments, strings, numbers, words, and calls of them."""
        word = rf"(?P<w>{_WORD})(?P<f>\()?+"
        return f"(?P<c>{self.comment})|(?P<s>{self.string})|(?P<m>{_NUMBER})|{word}"


_QUOTES = f"{_DOUBLE}|{_SINGLE}"
_SCRIPTS = _Language(_C_COMMENT, f"{_QUOTES}|{_BACKTICK}", _SCRIPT)
_LANGUAGES = {
    "c c++ cpp h hpp": _Language(_C_COMMENT, _QUOTES, _SYSTEM),
    "java kotlin cs csharp c# scala php dart": _Language(_C_COMMENT, _QUOTES, _MANAGED),
    "javascript js jsx typescript ts tsx": _SCRIPTS,
    "go": _Language(_C_COMMENT, f"{_QUOTES}|{_BACKTICK}", _GO),
    "rust rs zig": _Language(_C_COMMENT, f"{_DOUBLE}|{_CHARACTER}", _RUST),
    "swift": _Language(_C_COMMENT, _DOUBLE, _SWIFT),
    "python py": _Language(_HASH_COMMENT, f"{_TRIPLE}|{_QUOTES}", _PYTHON),
    "ruby rb": _Language(_HASH_COMMENT, _QUOTES, _RUBY),
    "bash sh shell zsh": _Language(_HASH_COMMENT, _QUOTES, _SHELL),
    "perl r powershell": _Language(_HASH_COMMENT, _QUOTES, _RUBY + " function my sub"),
    "yaml yml toml ini dockerfile make makefile nginx graphql": _Language(
        _HASH_COMMENT, _QUOTES, "true false null yes no on off type query"
    ),
    "sql": _Language(f"--[^\\n]*+|{_C_COMMENT}", _QUOTES, _SQL, has_cases=False),
    "lua": _Language(r"--[^\n]*+", _QUOTES, _LUA),
    "haskell": _Language(r"--[^\n]*+", _DOUBLE, _HASKELL),
    "css scss": _Language(_C_COMMENT, _QUOTES, "important media supports keyframes"),
    "json jsonc": _Language(_C_COMMENT, _DOUBLE, "true false null"),
}
"""Languages by their names in Markdown."""

_MARKUP = re.compile(
    r"(?P<c><!--(?:[^-]|-(?!->))*+(?:-->)?+)|(?P<k></?+[A-Za-z][\w:-]*+|/?+>)|(?P<s>=\s{0,9}+"
    + f"(?:{_QUOTES}))"
)
_DIFF = re.compile(r"^(?:(?P<i>\+[^\n]*+)|(?P<d>-[^\n]*+)|(?P<c>@[^\n]*+))", re.MULTILINE)


def coloured(text: str, language: str, escape: Callable[[str], str]) -> str:
    """The HTML of code: spans with the classes c, d, f, i, k, m and s for its parts.

    Args:
        text: the code.
        language: its name in Markdown. Code of unknown languages has no spans.
        escape: makes HTML of text.
    """
    return "".join(_parts(text, language.lower(), escape))


def _parts(text: str, language: str, escape: Callable[[str], str]) -> Iterator[str]:
    found = _scanner(language)
    if found is None:
        yield escape(text)
        return
    pattern, keywords, has_cases = found
    done = 0
    for match in pattern.finditer(text):
        kind, part = match.lastgroup or "", match[0]
        if kind in "wf":
            part = match["w"]
            is_keyword = (part if has_cases else part.lower()) in keywords
            kind = "k" if is_keyword else kind
        yield escape(text[done : match.start()])
        yield escape(part) if kind == "w" else f'<span class="{kind}">{escape(part)}</span>'
        done = match.start() + len(part)
    yield escape(text[done:])


@cache
def _scanner(language: str) -> tuple[re.Pattern[str], frozenset[str], bool] | None:
    """The pattern of a language, its keywords, and whether it tells cases apart."""
    if language in ("html", "xml", "svg", "vue"):
        return _MARKUP, frozenset(), True
    if language in ("diff", "patch"):
        return _DIFF, frozenset(), True
    for names, one in _LANGUAGES.items():
        if language in names.split():
            pattern = re.compile(one.pattern, re.DOTALL)
            return pattern, frozenset(one.keywords.split()), one.has_cases
    return None

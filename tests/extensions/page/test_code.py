"""Colours of code, and that no code takes long."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from html import escape

import pytest

from heddle.extensions.page.code import _DIFF, _LANGUAGES, _MARKUP, coloured


def parts(text: str, language: str) -> list[tuple[str, str]]:
    html = coloured(text, language, lambda part: escape(part, quote=False))
    plain = re.sub(r"</?span[^>]*>", "", html)
    assert plain == escape(text, quote=False)
    return re.findall(r'<span class="(.)">(.*?)</span>', html, re.DOTALL)


@pytest.mark.parametrize(
    ("language", "text", "found"),
    [
        ("python", "def f(x): return 'a\\'b' # c", "k:def f:f k:return s:'a\\'b' c:# c"),
        ("py", 'x = """a\n"b" """ + 0x1F', 's:"""a\n"b" """ m:0x1F'),
        ("js", "const a = `x\n${1}`; // end", "k:const s:`x\n${1}` c:// end"),
        (
            "c",
            "int main(void) { /* a * b */ return 1.5e3f; }",
            "k:int f:main k:void c:/* a * b */ k:return m:1.5e3f",
        ),
        ("rust", "fn f<'a>() { 'x' }", "k:fn s:'x'"),
        ("sql", "SELECT a FROM b -- all", "k:SELECT k:FROM c:-- all"),
        ("bash", "if [ $# -gt 1 ]; then # why", "k:if m:1 k:then c:# why"),
        (
            "html",
            '<a href="x">b</a><!-- c -->',
            'k:&lt;a s:="x" k:&gt; k:&lt;/a k:&gt; c:&lt;!-- c --&gt;',
        ),
        ("diff", "+ a\n- b\n c\n@@ d", "i:+ a d:- b c:@@ d"),
        ("json", '{"a": [1, true]}', 's:"a" m:1 k:true'),
        ("c", "'a\n\"b", "s:'a s:\"b"),
        ("c", "/* open", "c:/* open"),
        ("unknown", "def f(): pass", ""),
    ],
)
def test_parts(language: str, text: str, found: str) -> None:
    assert " ".join(f"{kind}:{part}" for kind, part in parts(text, language)) == found


UNITS = [
    "\n",
    " ",
    "a",
    "a(",
    "0",
    "1.",
    "_",
    "'",
    '"',
    "`",
    '"""',
    "/*",
    "*",
    "/",
    "#",
    "<",
    "<a ",
]
UNITS += ["<!--", "-", "--", "\\", "= ", "+", "@", "$", "é", "1e", "0x"]


@pytest.mark.parametrize("names", [*_LANGUAGES, "html", "diff"])
def test_each_character_is_looked_at_a_few_times_only(names: str) -> None:
    """A pattern with a quantifier that gives characters back could take seconds."""
    for unit in UNITS:
        coloured(unit * 16_384, names.partition(" ")[0], str)


def test_no_quantifier_without_a_bound_gives_back() -> None:
    patterns = [one.pattern for one in _LANGUAGES.values()] + [_MARKUP.pattern, _DIFF.pattern]
    for pattern in patterns:
        shown = io.StringIO()
        with redirect_stdout(shown):
            re.compile(pattern, re.DEBUG)
        tree = shown.getvalue()
        assert "POSSESSIVE_REPEAT" in tree
        assert not re.search(r"(?:MAX|MIN)_REPEAT", tree), pattern

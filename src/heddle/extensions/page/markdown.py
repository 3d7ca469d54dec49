"""Renders Markdown that nobody trusts as HTML that can do nothing.

The HTML has no addresses: a link is a button with its address as data, and an image is its text and
its address. HTML inside of the text is text. Code has classes for its colours.
"""

from __future__ import annotations

import re
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from markdown_it.utils import EnvType, OptionsDict
    from pygments.lexer import Lexer
    from pygments.token import _TokenType

MOST_CHARACTERS = 1 << 16
"""Longest text to render. Rendering takes about 1 s for each MB."""
_MOST_CODE = 1 << 14
"""Longest code to colour, in characters."""
_SECONDS = 0.5
"""Longest time for all texts of a request. Later texts and code stay plain."""
_DIRECTIONS = {
    ord(one): f'<span class="control">U+{ord(one):04X}</span>'
    for one in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
}
"""Characters that change the direction of text, by which code can look as it is not."""
_NAME = re.compile(r"[A-Za-z0-9+#._-]{1,20}")
"""Names of languages that the page shows."""
_LANGUAGES = re.compile(
    "bash|c|c\\+\\+|cpp|cs|csharp|css|diff|dockerfile|go|graphql|haskell|html|ini|java|javascript|js"
    "|json|jsx|kotlin|lua|make|makefile|nginx|php|perl|powershell|py|python|r|rb|ruby|rs|rust|scala"
    "|sh|shell|sql|swift|toml|ts|tsx|typescript|xml|yaml|yml|zig"
)
"""Names of languages whose code is coloured: lexers that others have searched for slow patterns."""


def rendered(texts: Sequence[str]) -> list[str]:
    """The HTML of each text. Takes about half a second at most: later texts stay plain."""
    until = time.monotonic() + _SECONDS
    return [
        _markdown().render(text, {"until": until}) if time.monotonic() < until else _plain(text)
        for text in texts
    ]


def visible(text: str) -> str:
    """The text as HTML, with characters that change its direction made visible."""
    return escapeHtml(text).translate(_DIRECTIONS)


def _plain(text: str) -> str:
    return f'<p class="plain">{escapeHtml(text)}</p>'


@cache
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "maxNesting": 20})
    markdown.enable(["table", "strikethrough"])
    for rule in (_link_open, _link_close, _image, _fence, _code_block, _code_inline):
        markdown.add_render_rule(rule.__name__[1:], rule)
    for name in ("th_open", "td_open"):
        markdown.add_render_rule(name, _cell)
    return markdown


# Rules are bound to the renderer, and get its tokens and the place of one.


def _link_open(
    _self: RendererHTML, tokens: Sequence[Token], place: int, _options: OptionsDict, _env: EnvType
) -> str:
    address = escapeHtml(str(tokens[place].attrGet("href") or ""))
    return f'<button type="button" class="link" data-address="{address}" title="{address}">'


def _link_close(*_: object) -> str:
    return "</button>"


def _cell(
    _self: RendererHTML, tokens: Sequence[Token], place: int, _options: OptionsDict, _env: EnvType
) -> str:
    """A cell, whose side is a class: the page's policy forbids styles in attributes."""
    side = str(tokens[place].attrGet("style") or "").removeprefix("text-align:")
    return f'<{tokens[place].tag} class="{side}">' if side else f"<{tokens[place].tag}>"


def _image(
    _self: RendererHTML, tokens: Sequence[Token], place: int, _options: OptionsDict, _env: EnvType
) -> str:
    address = visible(str(tokens[place].attrGet("src") or ""))
    return (
        f'<span class="image">{visible(tokens[place].content)} <code dir="ltr">{address}</code>'
        "</span>"
    )


def _code_inline(
    _self: RendererHTML, tokens: Sequence[Token], place: int, _options: OptionsDict, _env: EnvType
) -> str:
    return f"<code>{visible(tokens[place].content)}</code>"


def _code_block(
    _self: RendererHTML, tokens: Sequence[Token], place: int, _options: OptionsDict, env: EnvType
) -> str:
    return _code(tokens[place].content, "", env)


def _fence(
    _self: RendererHTML, tokens: Sequence[Token], place: int, _options: OptionsDict, env: EnvType
) -> str:
    return _code(tokens[place].content, (tokens[place].info.split() or [""])[0], env)


def _code(text: str, language: str, env: Any) -> str:
    """Code in its frame, which has the name of its language."""
    lexer = _lexer(language.lower())
    is_coloured = lexer is not None and len(text) <= _MOST_CODE
    code = "".join(_coloured(text, lexer, env["until"])) if is_coloured else visible(text)
    name = language if _NAME.fullmatch(language) else "text"
    return f'<pre dir="ltr" data-language="{name}"><code>{code}</code></pre>\n'


@cache
def _lexer(language: str) -> Lexer | None:
    if not _LANGUAGES.fullmatch(language):
        return None
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:  # an older version of Pygments
        return None


def _coloured(text: str, lexer: Lexer | None, until: float) -> Iterator[str]:
    """Parts of the HTML of code. After the time `until`, the rest has no colours."""
    assert lexer is not None
    done = 0
    for kind, part in lexer.get_tokens(text):
        if time.monotonic() >= until:
            yield visible(text[done:])
            return
        done += len(part)
        name = _class_of(kind)
        yield f'<span class="{name}">{visible(part)}</span>' if name else visible(part)


@cache
def _class_of(kind: _TokenType) -> str:
    """The class of a kind of token; empty if it has no colour."""
    while kind not in STANDARD_TYPES and kind.parent is not None:
        kind = kind.parent
    name: str = STANDARD_TYPES.get(kind, "")
    return name

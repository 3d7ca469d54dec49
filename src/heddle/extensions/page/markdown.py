"""Renders Markdown that nobody trusts as HTML that can do nothing.

The HTML has no addresses: a link is a button with its address as data, and an image is its text and
its address. HTML inside of the text is text. Code has classes for its colours.
"""

from __future__ import annotations

import re
import time
from functools import cache
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml

from heddle.extensions.page.code import coloured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from markdown_it.utils import EnvType, OptionsDict

MOST_CHARACTERS = 1 << 14
"""Longest text to render. The worst texts of this length take about 0.3 s."""
_SECONDS = 0.5
"""Time after which the texts of a request stay plain."""
_DIRECTIONS = {
    ord(one): f'<span class="control">U+{ord(one):04X}</span>'
    for one in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
}
"""Characters that change the direction of text, by which code can look as it is not."""
_NAME = re.compile(r"[A-Za-z0-9+#._-]{1,20}")
"""Names of languages that the page shows."""


def rendered(texts: Sequence[str]) -> list[str]:
    """The HTML of each text. Takes less than a second: later texts stay plain."""
    until = time.monotonic() + _SECONDS
    return [
        _markdown().render(text) if time.monotonic() < until else _plain(text) for text in texts
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
    _self: RendererHTML, tokens: Sequence[Token], place: int, _options: OptionsDict, _env: EnvType
) -> str:
    return _code(tokens[place].content, "")


def _fence(
    _self: RendererHTML, tokens: Sequence[Token], place: int, _options: OptionsDict, _env: EnvType
) -> str:
    return _code(tokens[place].content, (tokens[place].info.split() or [""])[0])


def _code(text: str, language: str) -> str:
    """Code in its frame, which has the name of its language."""
    name = language if _NAME.fullmatch(language) else "text"
    code = coloured(text, name, visible)
    return f'<pre dir="ltr" data-language="{name}"><code>{code}</code></pre>\n'

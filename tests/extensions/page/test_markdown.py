"""Markdown of hostile models becomes HTML that can do nothing."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.extensions.page import markdown
from heddle.extensions.page.markdown import MOST_CHARACTERS, rendered

if TYPE_CHECKING:
    from fake_server import Running

TAGS = {
    "blockquote",
    "br",
    "button",
    "code",
    "del",
    "em",
    "hr",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "span",
}
TAGS |= {
    "strong",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
    *(f"h{n}" for n in range(1, 7)),
}
ATTRIBUTES = {"class", "data-address", "data-language", "dir", "start", "title", "type"}


class Found(HTMLParser):
    """All elements and attributes of a text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.tags.append("!--")

    def handle_decl(self, decl: str) -> None:
        self.tags.append("!")

    def unknown_decl(self, data: str) -> None:
        self.tags.append("![")


def html(text: str) -> str:
    [made] = rendered([text])
    found = Found(made)
    assert set(found.tags) <= TAGS
    assert {name for name, _ in found.attributes} <= ATTRIBUTES
    return made


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<!-- --><iframe srcdoc='<script>'>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](&#106;avascript:alert(1))",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "[a](vbscript:x)",
    '[a](<https://e.example/"onmouseover=alert(1) x=">)',
    "![a](https://e.example/pixel.png)",
    '![a"><script>](https://e.example/\'"><script>)',
    "[![a](https://e.example/a.png)](https://e.example/b)",
    '<https://e.example/"><script>alert(1)</script>>',
    '```"><script>alert(1)</script>\nx\n```',
    "```\u202e\nx\n```",
    "```html\n<script>alert(1)</script>\n```",
    "`<script>alert(1)</script>`",
    "| <script> | b |\n|:-:|-:|\n| <img src=x> | 2 |",
    "[a]: javascript:alert(1) '\"><script>'\n\n[a]",
    "# <style>*{display:none}</style>",
    "~~<object data=x>~~",
    "\x00<scr\x00ipt>alert(1)</scr\x00ipt>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_have_only_harmless_elements(text: str) -> None:
    html(text)


@given(
    st.lists(
        st.sampled_from([*HOSTILE, "\n\n", "> ", "- ", "```", "[", "](", "*", "\\"]), max_size=8
    )
)
def test_so_have_mixtures_of_them(parts: list[str]) -> None:
    html("".join(parts))


def test_a_link_keeps_its_address_as_data() -> None:
    made = html("[a *b*](https://e.example/x?y=1&z=2 'words')")
    assert (
        '<button type="button" class="link" data-address="https://e.example/x?y=1&amp;z=2"'
        ' title="https://e.example/x?y=1&amp;z=2">a <em>b</em></button>'
    ) in made
    assert "words" not in made


def test_an_image_is_its_text_and_its_address() -> None:
    made = html("![a cat](https://e.example/cat.png)")
    assert made == (
        '<p><span class="image">a cat <code dir="ltr">https://e.example/cat.png</code></span></p>\n'
    )


def test_code_has_colours_and_its_language() -> None:
    made = html("```python\ndef f(): pass\n```")
    assert '<pre dir="ltr" data-language="python">' in made
    assert '<span class="k">def</span>' in made
    assert Found(made).text == "def f(): pass\n\n"
    assert 'data-language="text"' in html('```a"b\nx\n```')
    assert "span" not in html("```unknown\ndef f(): pass\n```")
    assert "span" not in html("    def f(): pass")


def test_cells_have_their_side_as_a_class() -> None:
    made = html("|a|b|\n|-:|-|\n|1|2|")
    assert '<th class="right">a</th>' in made
    assert "<td>2</td>" in made


@pytest.mark.parametrize(
    "text", ["`a\u202eb`", "    a\u202eb", "```python\n# a\u202eb\n```", "![a\u202eb](x)"]
)
def test_changes_of_direction_are_visible_in_code(text: str) -> None:
    made = html(text)
    assert "\u202e" not in made
    assert '<span class="control">U+202E</span>' in made


def test_texts_beyond_the_time_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "_SECONDS", -1)
    assert rendered(["# <b>"]) == ['<p class="plain"># &lt;b&gt;</p>']


def test_the_route(shared: Running) -> None:
    answer = shared.post("/page/markdown", {"texts": ["*a*", "b"]})
    assert answer.json() == {"html": ["<p><em>a</em></p>\n", "<p>b</p>\n"]}


@pytest.mark.parametrize(
    "body",
    [{}, {"texts": "a"}, {"texts": ["a" * (MOST_CHARACTERS + 1)]}, {"texts": ["a"] * 65}],
)
def test_bodies_that_the_route_refuses(shared: Running, body: object) -> None:
    assert shared.post("/page/markdown", body).status_code == 400


UNITS = ["> ", "[", "![a](", "*", "- ", "`", "<", "|a", "\\", "&", "[a]: b\n"]


@pytest.mark.parametrize("unit", UNITS)
def test_deep_texts_end(unit: str) -> None:
    html((unit * MOST_CHARACTERS)[:MOST_CHARACTERS])

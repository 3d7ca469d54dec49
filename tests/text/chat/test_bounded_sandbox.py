"""Templates without an end are refused, when they are loaded or when they run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from heddle.errors import InvalidRequestError
from heddle.text.chat import bounded_sandbox
from heddle.text.chat.bounded_sandbox import BUDGET, BoundedSandbox, Budget
from heddle.text.chat.template import ChatTemplate

BOMBS = [
    "{{ 10 ** (10 ** 9) }}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ 10 ** 10 * 'x' }}",
    "{{ 2 ** 2000 * 2 ** 2000 * 2 ** 2000 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ 2 ** -(10 ** 9) }}",
    "{{ messages | tojson(indent=10 ** 9) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x' | center(width=1000000000) }}",
    "{{ '\t'.expandtabs(tabsize=1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' | format(1000000000, 1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:1000000000}'.format_map({}) }}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set s = 'x' * 9999 %}{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set s = 'x' * 99999 %}{{ s | replace('x', s) }}",
    "{% set s = 'x' * 99999 %}{{ s.replace('x', s) }}",
    "{% set s = 'x' * 99999 %}{{ s.join(s) }}",
    "{% set s = '\t' * 99999 %}{{ s.expandtabs(99999) }}",
    "{{ lipsum() }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_template_that_computes_without_end_is_refused(source: str) -> None:
    began = time.thread_time()
    with pytest.raises(InvalidRequestError, match=r"messages: (it \w+|'lipsum' is undefined)"):
        ChatTemplate(source, "", "").render([{"role": "user", "content": "x"}])
    assert time.thread_time() - began < 20.0


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages + messages }}" * 64,
        "{{ messages ~ messages }}" * 64,
        "{{ f() }}" * 64,
        "{% for m in range(64) %}{% endfor %}",
        "{{ messages | list }}",  # a filter can take seconds, so each filter checks the time limit
    ],
)
def test_every_kind_of_work_checks_the_time_limit(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_sandbox, "_SECONDS", -1.0)
    with pytest.raises(InvalidRequestError, match="it takes more than -1 s"):
        ChatTemplate(source, "", "").render([], f=str)


def test_loading_a_template_computes_nothing() -> None:
    """No budget bounds the constants that Jinja would compute before a rendering."""
    seen: list[str] = []
    sandbox = BoundedSandbox()

    def note(text: str) -> str:
        seen.append(text)
        return text

    sandbox.add_filter("note", note)
    template = sandbox.from_string(sandbox.bounded("{{ 'x' | note }}"))
    assert seen == []
    assert template.render({BUDGET: Budget()}) == "x"


def test_ordinary_templates_render_as_without_the_sandbox() -> None:
    source = (
        "{% for m in messages %}{{ loop.index ~ '/' ~ loop.length }}{{ m.role + ':' }}"
        "{{ '%-4s|' % m.content }}{{ m | tojson(indent=1) }}{% if loop.last %}{{ 2 ** 10 }}"
        "{% endif %}{% endfor %}{{ ['a', 'b'] | join('-') }}"
    )
    text = ChatTemplate(source, "", "").render([{"role": "u", "content": "x"}] * 2)
    object_text = '{\n "role": "u",\n "content": "x"\n}'
    assert text == f"1/2u:x   |{object_text}2/2u:x   |{object_text}1024a-b"


def test_the_indentation_of_client_values_is_bounded() -> None:
    """Each of 50,000 numbers is a line, indented by its depth."""
    deep: Any = [1] * 50_000
    for _ in range(200):
        deep = [deep]
    template = ChatTemplate("{{ tools | tojson(indent=4) }}", "", "")
    with pytest.raises(InvalidRequestError, match="it makes a value of"):
        template.render([], tools=deep)
    assert len(template.render([], tools=[1, 2])) == len("[\n    1,\n    2\n]")


def test_an_error_without_a_message_still_has_a_reason() -> None:
    template = ChatTemplate("{{ f() }}", "", "")

    def full() -> None:
        raise MemoryError

    with pytest.raises(InvalidRequestError, match="MemoryError"):
        template.render([], f=full)

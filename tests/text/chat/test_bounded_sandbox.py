"""Templates without an end are refused, when they are loaded or when they run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from heddle.errors import InvalidRequestError, ModelFileError
from heddle.text.chat import budget
from heddle.text.chat.bounded_sandbox import BoundedSandbox
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
    # Widths that come from arguments, in other digits, or from a subject that is no text:
    "{{ '{:{}}'.format(3, 999999999) }}",
    "{{ '{0:{1}}'.format(3, '>999999999') }}",
    "{{ '{a:{b}}'.format_map({'a': 3, 'b': '>999999999'}) }}",
    "{{ '{:\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669}'.format(1) }}",
    "{{ ['%999999999d'] | format(3) }}",
    "{{ ('%9999d' * 99999) % ((1,) * 99999) }}",
    # Arguments that repeat:
    "{{ ('%(a)s' * 99999) % {'a': 'b' * 99999} }}",
    "{{ ('%s' * 9999) % (('a' * 99999,) * 9999) }}",
    "{{ ('{0}' * 99999).format('a' * 99999) }}",
    "{{ ('a' * 99999) | replace(old='a', new='b' * 99999) }}",
    "{{ ['a' * 99999] | replace('a', 'b' * 99999) }}",
    "{{ ('a\n' * 99999) | indent('b' * 99999) }}",
    "{{ ('a\x0b' * 99999) | indent(width=99999) }}",
    "{{ range(30000) | map('string') | join('a' * 99999) }}",
    "{{ ('a' * 99999).join(range(3000) | map('string')) }}",
    "{{ [1] | tojson(separators=('a' * 99999, ':')) }}",
    # Methods without a use in chat templates:
    "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
    "{{ 'a'.encode() * 10 ** 10 }}",
    "{{ (1).to_bytes(99999) }}",
    "{{ dict.fromkeys(range(9)) }}",
    # Output and memory:
    "{% set s = 'a' * 30000000 %}{% for i in range(9999) %}{{ s }}{% endfor %}",
    "{% for i in range(9999) %}" + "a" * 9999 + "{% endfor %}",
    "{% set s = 'a' * 30000000 %}{% set n = namespace(x=[]) %}{% for i in range(999) %}"
    "{% set n.x = n.x + [s[i:]] %}{% endfor %}",
    "{% set s = 'a' * 30000000 %}{% set n = namespace(x=[]) %}{% for i in range(999) %}"
    "{% set n.x = n.x + [s.upper()] %}{% endfor %}",
    "{{ ([0] * 9999999) | length }}",
    "{{ ('a,' * 9999999).split(',') | length }}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set y %}{{ n.x }}{{ n.x }}"
    "{% endset %}{% set n.x = y %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{% set x = f(n - 1) %}{{ x }}{{ x }}{% else %}aaaa{% endif %}"
    "{% endmacro %}{{ f(40) }}",
    # Large work in one step:
    "{{ ([[1]] * 99999) | sum(start=[]) }}",
    "{{ (['a' * 9999999, 'a' * 9999998 + 'a'] * 99999) | sort }}",
    "{{ (['a' * 9999999] * 99999) | select('eq', 'a' * 9999998 + 'b') | list }}",
    "{{ ('a ' * 9999999) | title }}",
    # Its own budget:
    "{% macro s() %}{% endmacro %}{% set _budget = namespace(step=s, check=s) %}"
    "{{ 'x' * 10 ** 10 }}",
    "{% set l = [] %}{% set _ = l.append(1) %}{% for i in l %}{% set _ = l.append(i) %}"
    "{% endfor %}",
    "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}",
    "{% set l = [] %}{% set _ = l.append([l, l]) %}{{ l == [l] }}",
    "{% set range = 'x'.center %}{{ range(10 ** 9) }}",
    "{% set range = namespace %}{{ 'x'.center(10 ** 9) }}",
]

_NESTED = (
    "{% set n = namespace(x=[1], y=[1], z=namespace(a=1)) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% set n.z = namespace(a=n.z, b=n.z) %}"
    "{% endfor %}"
)
"""A template's values whose text is exponentially long, and whose comparison takes as long."""

BOMBS += [
    _NESTED + use
    for use in (
        "{{ n.x }}",
        "{{ n.z }}",
        "{{ n.x ~ 'a' }}",
        "{{ n.x | string }}",
        "{{ n.x | join }}",
        "{{ n.x | tojson }}",
        "{{ n.x | tojson(indent=1) }}",
        "{{ '%s' % (n.x,) }}",
        "{{ '{}'.format(n.x) }}",
        "{{ n.x == n.y }}",
        "{{ n.x in [n.y] }}",
        "{{ n.x is eq(n.y) }}",
        "{{ [n.x].index(n.y) }}",
        "{{ [n.x, n.y] | unique | list }}",
        "{% for i in [n.x, n.y] %}{{ loop.changed(i) }}{% endfor %}",
    )
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_template_that_computes_without_end_is_refused(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_SECONDS", 0.02)
    began = time.thread_time()
    said = r"messages: (it \w+|loops over|'lipsum' is undefined)"
    with pytest.raises(InvalidRequestError, match=said):
        ChatTemplate(source, "", "").render([{"role": "user", "content": "x"}])
    assert time.thread_time() - began < 20.0


def test_a_template_may_not_append_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_MOST_MADE", 1 << 16)
    source = "{% set l = [] %}{% for i in range(N) %}{% set _ = l.append(i) %}{% endfor %}."
    assert ChatTemplate(source.replace("N", "900"), "", "").render([]) == "."
    with pytest.raises(InvalidRequestError, match="it makes more than"):
        ChatTemplate(source.replace("N", "1100"), "", "").render([])


@pytest.mark.parametrize("name", ["urlize", "wordwrap", "striptags", "xmlattr", "pprint"])
def test_filters_for_web_pages_do_not_exist(name: str) -> None:
    with pytest.raises(ModelFileError, match=f"No filter named '{name}'"):
        ChatTemplate(f"{{{{ 'x' | {name} }}}}", "", "")


def test_a_template_without_end_is_not_parsed() -> None:
    with pytest.raises(ModelFileError, match="has 600,000 characters; the limit is 131,072"):
        ChatTemplate("x" * 600_000, "", "")


def test_the_message_of_a_template_is_cut() -> None:
    template = ChatTemplate("{{ raise_exception('a' * 1000000) }}", "", "")
    with pytest.raises(InvalidRequestError) as refused:
        template.render([])
    assert len(refused.value.message) < 1100


def test_a_template_without_budget_left_does_not_touch_the_next() -> None:
    bomb = ChatTemplate("{{ 'x' * 30000000 }}" * 20, "", "")
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="it makes"):
            bomb.render([])
        assert ChatTemplate("{{ 'x' * 3 }}", "", "").render([]) == "xxx"


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
    monkeypatch.setattr(budget, "_SECONDS", -1.0)
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
    assert budget.render(template, {}) == "x"


def test_ordinary_templates_render_as_without_the_sandbox() -> None:
    source = (
        "{% for m in messages %}{{ loop.index ~ '/' ~ loop.length }}{{ m.role + ':' }}"
        "{{ '%-4s|' % m.content }}{{ m | tojson(indent=1) }}{% if loop.last %}{{ 2 ** 10 }}"
        "{% endif %}{% endfor %}{{ ['a', 'b'] | join('-') }}"
    )
    text = ChatTemplate(source, "", "").render([{"role": "u", "content": "x"}] * 2)
    object_text = '{\n "role": "u",\n "content": "x"\n}'
    assert text == f"1/2u:x   |{object_text}2/2u:x   |{object_text}1024a-b"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ content.split('</think>')[-1].lstrip('\n') }}", "answer"),
        ("{{ content[:-2] ~ content[1:3] ~ content[0] }}", "<think>t</think>answth<"),
        ("{{ messages[::-1][0].role }}{{ messages[1:] | length }}", "user0"),
        ("{{ '<think>' in content and 'a' not in ['b', 'c'] and 1 < 2 <= 2 }}", "True"),
        ("{% if content is string and content is not mapping %}s{% endif %}", "s"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user"),
        ("{{ messages == messages }}{{ messages[0] == {'role': 'x'} }}", "TrueFalse"),
        ("{% for k, v in messages[0].items() %}{{ k }}{% endfor %}", "rolecontent"),
        ("{{ 'a\nb' | indent(2) }}|{{ 'a' | replace('a', 'b') }}", "a\n  b|b"),
        ("{{ '%s-%d' | format('a', 2) }}{{ '{}{x}'.format(1, x=2) }}", "a-212"),
        ("{{ [3, 1, 2] | sort | join }}{{ [1, 2] | sum }}{{ [1, 1] | unique | list }}", "1233[1]"),
        ("{{ messages }}", "[{'role': 'user', 'content': '<think>t</think>answer'}]"),
        ("{{ none }}{{ undefined_name }}{{ 1.0 }}{{ true }}", "None1.0True"),
        ("{{ range(3) | list }}{{ range(2) }}", "[0, 1, 2]range(0, 2)"),
        ("{{ 1.0.is_integer() }}{{ messages[0].get('x', 'd') }}", "Trued"),
        ("{{ 'x' if content.startswith('<think>') else 'y' }}{{ content | trim | length }}", "x22"),
        (
            "{% set n = namespace(x=[]) %}{% set _ = n.x.append('a') %}"
            "{% set _ = n.x.append('b') %}{{ n.x.pop(0) }}{{ n.x }}",
            "a['b']",
        ),
        ("{% set n = namespace(x=1) %}{% set n.x = n.x + 1 %}{{ n.x }}", "2"),
        (
            "{% macro f(m) %}[{{ m.role }}{{ caller() }}]{% endmacro %}"
            "{% call f(messages[0]) %}!{% endcall %}",
            "[user!]",
        ),
        ("{% filter upper %}a{% endfilter %}{% set b %}c{{ 1 }}{% endset %}{{ b }}", "Ac1"),
    ],
)
def test_what_templates_use_works(source: str, expected: str) -> None:
    content = "<think>t</think>answer"
    messages = [{"role": "user", "content": content}]
    assert ChatTemplate(source, "", "").render(messages, content=content) == expected


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

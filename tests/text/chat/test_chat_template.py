"""Chat templates: the conventions they expect, and what they are forbidden."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from heddle.errors import InvalidRequestError, ModelFileError
from heddle.text.chat.template import ChatTemplate
from heddle.text.tokenizer.tokenizer import Tokenizer
from heddle.weights.gguf.checkpoint import GGUFCheckpoint

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b> & é"},
]


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.render(MESSAGES if messages is None else messages, **variables)


def test_a_chatml_template_renders() -> None:
    source = (
        "{% for message in messages %}"
        "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    conversation = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b> & é<|im_end|>\n"
    )
    assert render(source) == conversation + "<|im_start|>assistant\n"
    assert render(source, add_generation_prompt=False) == conversation


def test_blocks_leave_no_whitespace() -> None:
    source = """{{ bos_token }}
{% for message in messages %}
    {% if message.role == 'user' %}
{{ message.content }}{{ eos_token }}
    {% endif %}
{% endfor %}
"""
    assert render(source) == "<s>\nHi <b> & é</s>\n"


def test_templates_get_the_names_that_llama_cpp_defines() -> None:
    source = "{{ date_string }} {{ enable_thinking }}"
    before = datetime.now().strftime("%d %b %Y")
    written = render(source)
    after = datetime.now().strftime("%d %b %Y")
    assert written in (f"{before} True", f"{after} True")
    assert render(source, date_string="26 Jul 2024", enable_thinking=False) == "26 Jul 2024 False"


def test_a_template_gets_the_time_and_may_append_functions() -> None:
    """As Firefunction's does, with or without functions."""
    source = "{{ 'Functions: ' + functions + ' Today is ' + datetime }}"
    before = datetime.now().strftime("%b %d %Y")
    written = render(source)
    after = datetime.now().strftime("%b %d %Y")
    day, _, time = written.removeprefix("Functions:  Today is ").rpartition(" ")
    assert day in (before, after)
    assert datetime.strptime(time, "%H:%M:%S")
    assert render(source, datetime="noon", functions="f") == "Functions: f Today is noon"


def test_loop_controls_work() -> None:
    source = (
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}"
    )
    assert render(source) == "system"


def test_to_json_keeps_order_and_characters() -> None:
    value = {"b": "<é>'&", "a": [1, None]}
    assert render("{{ x | tojson }}", x=value) == '{"b": "<é>\'&", "a": [1, null]}'
    assert render("{{ x | tojson(indent=2) }}", x={"a": 1}) == '{\n  "a": 1\n}'
    assert render("{{ 'é' | tojson(ensure_ascii=True) }}") == '"\\u00e9"'


def test_safe_text_escapes_nothing_that_is_joined_to_it() -> None:
    assert render("""{{ '"<' + x | tojson | safe + '>&' }}""", x="'") == """"<"'">&"""


def test_strftime_now_gives_the_date() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))


def test_generation_tags_are_transparent() -> None:
    source = "{% generation %}{{ messages[0].role }}{% endgeneration %}!"
    assert render(source) == "system!"


def test_tools_are_none_by_default() -> None:
    source = "{% if tools is none %}none{% else %}{{ tools[0].name }}{% endif %}"
    assert render(source) == "none"
    assert render(source, tools=[{"name": "f"}]) == "f"


def test_extra_variables_reach_the_template() -> None:
    source = "{{ 'thinking' if deeply else 'not' }}"
    assert render(source) == "not"
    assert render(source, deeply=True) == "thinking"


NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
)


def test_a_template_can_refuse_messages() -> None:
    assert render(NO_SYSTEM, MESSAGES[1:]) == "user: Hi <b> & é;"
    for messages in (MESSAGES[:1], [MESSAGES[0], {"role": "assistant", "content": ""}]):
        with pytest.raises(InvalidRequestError, match="no system role") as caught:
            render(NO_SYSTEM, messages)
        assert caught.value.param == "messages"


def test_a_template_that_refuses_a_system_message_gets_it_in_the_user_s() -> None:
    further = [{"role": "assistant", "content": "So."}, {"role": "user", "content": "?"}]
    text = render(NO_SYSTEM, MESSAGES + further)
    assert text == "user: Be brief.\n\nHi <b> & é;assistant: So.;user: ?;"
    assert MESSAGES[0]["role"] == "system", "the given messages are unchanged"
    refuses = (
        "{% if messages | length > 1 %}{{ raise_exception('too many') }}{% endif %}" + NO_SYSTEM
    )
    with pytest.raises(InvalidRequestError, match="too many"):
        render(refuses, MESSAGES + further)


def test_a_template_may_loop_over_tools_that_there_are_not() -> None:
    source = "{% for tool in tools %}{{ tool.name }}{% endfor %}."
    assert render(source) == "."
    assert render(source, tools=[{"name": "f"}]) == "f."
    with pytest.raises(InvalidRequestError, match="not iterable"):
        render("{% for one in none %}{% endfor %}", tools=[{"name": "f"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ undefined_function() }}",
        "{{ messages[0].nothing.further }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ nothing | tojson }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        # what the sandbox forbids
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'user'}) }}",
        "{% include '/etc/passwd' %}",
        # loops without end
        "{{ range(100000000) | list }}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    ],
)
def test_an_error_while_rendering_is_a_request_error(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(source)
    assert caught.value.param == "messages"


def test_each_rendering_has_its_own_step_budget() -> None:
    template = ChatTemplate("{% for i in range(60000) %}{% endfor %}done", "", "")
    assert [template.render(MESSAGES) for _ in range(3)] == ["done"] * 3


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ unclosed",
        "{% for m in messages %}",
        "{{ x | no_such_filter }}",
        "{% generation %}",
        "{% no_such_tag %}",
        "{% for i in x %}" * 30 + "{% endfor %}" * 30,  # more blocks than Python compiles
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ],
)
def test_a_template_that_does_not_parse_is_a_model_file_error(source: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        ChatTemplate(source, "", "")
    assert caught.value.field == "tokenizer.chat_template"


@pytest.mark.model
def test_the_template_of_the_default_model_renders(model_path: Path) -> None:
    checkpoint = GGUFCheckpoint.open(model_path)
    metadata = dict(checkpoint.metadata)
    source = metadata["tokenizer.chat_template"]
    assert isinstance(source, str)
    text = ChatTemplate(source, "<|im_start|>", "<|im_end|>").render(MESSAGES[1:])
    assert text == (  # llama.cpp's /apply-template gives the same
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi <b> & é<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = Tokenizer.of(checkpoint.tokenizer()).encode_chat(text)
    assert ids[:3] == [1, 9690, 198]  # <|im_start|> once, "system", "\n"
    assert ids.count(1) == 3

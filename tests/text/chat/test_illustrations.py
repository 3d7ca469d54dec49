"""Pictures in messages reach templates in the form that each template reads."""

from __future__ import annotations

from typing import Any

import pytest

from fake_executor import FakeExecutor
from fake_eyes import FakeEyes
from fake_model import fake_model
from heddle.errors import BlindModelError, InvalidRequestError
from heddle.loading.loaded_model import LoadedModel
from heddle.pictures import Illustrated
from heddle.text.chat.illustrations import parts_of, pictures_in
from heddle.text.chat.template import ChatTemplate
from templates import CHATML, HERMES

QWEN_VL = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content -%}
{%- if part.type == 'image' or 'image' in part -%}<v><pad></v>
{%- elif 'text' in part -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

SMOLVLM = """\
{% for message in messages %}{{ message['role'] | capitalize }}:
{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}\
{% elif line['type'] == 'image' %}{{ '<pad>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""

DROPS = QWEN_VL.replace("<v><pad></v>", "")
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + QWEN_VL

CAT: dict[str, Any] = {"type": "image", "image": "cat"}
DOG: dict[str, Any] = {"type": "image", "image": "dog"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def model(template: str, *, sees: bool = True) -> LoadedModel:
    fake: Any = fake_model(FakeExecutor())
    found = ChatTemplate(template, "<s>", "</s>")
    return LoadedModel(
        fake.info,
        fake.shape,
        fake.tokenizer,
        found,
        fake.executor,
        eyes=FakeEyes(fake.tokenizer) if sees else None,
    )


ASKED = [
    {"role": "system", "content": "Be."},
    user(CAT, text("What?"), DOG),
    {"role": "assistant", "content": "Two."},
    user(text("Sure?")),
]


def test_a_template_of_texts_gets_the_mark_in_place() -> None:
    assert model(CHATML).chat_text(ASKED) == (
        "<|im_start|>system\nBe.<|im_end|>\n"
        "<|im_start|>user\n<pad>What?<pad><|im_end|>\n"
        "<|im_start|>assistant\nTwo.<|im_end|>\n"
        "<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_of_parts_writes_the_mark_itself() -> None:
    written = model(QWEN_VL).chat_text(ASKED)
    assert "<|im_start|>user\n<v><pad></v>What?<v><pad></v><|im_end|>\n" in written
    assert "system\nBe.<|im_end|>" in written


def test_a_template_that_shows_no_texts_gets_parts_alone() -> None:
    assert model(SMOLVLM).chat_text(ASKED) == (
        "System:\nBe.<end_of_utterance>\nUser:\n<pad>What?<pad><end_of_utterance>\n"
        "Assistant:\nTwo.<end_of_utterance>\nUser:\nSure?<end_of_utterance>\nAssistant:"
    )


def test_a_template_that_shows_no_texts_shows_them_without_pictures() -> None:
    asked = [{"role": "user", "content": "hello"}]
    written = "User:\nhello<end_of_utterance>\nAssistant:"
    assert model(SMOLVLM, sees=False).chat_text(asked) == written


def test_texts_stay_texts_where_the_template_shows_them() -> None:
    shows_kind = QWEN_VL.replace("is string %}", "is string %}text: ")
    written = model(shows_kind).chat_text([{"role": "user", "content": "a"}, user(CAT)])
    assert "text: a<|im_end|>" in written
    assert written.count("text: ") == 1


@pytest.mark.parametrize("template", [CHATML, QWEN_VL, SMOLVLM])
def test_an_answer_goes_on_after_pictures(template: str) -> None:
    asked = [user(CAT, text("What?")), {"role": "assistant", "content": "A c"}]
    written = model(template).chat_text(asked, continue_final_message=True)
    assert written.endswith("A c")
    assert written.count("<pad>") == 1


def test_a_last_message_with_a_picture_goes_on() -> None:
    written = model(QWEN_VL).chat_text([user(text("a"), CAT)], continue_final_message=True)
    assert written == "<|im_start|>user\na<pad>"


def test_a_system_message_may_join_the_parts_of_the_user() -> None:
    written = model(NO_SYSTEM).chat_text(ASKED[:2])
    assert written.startswith("<|im_start|>user\nBe.\n\n<v><pad></v>What?")


def test_pictures_beside_tools() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for template in (CHATML, HERMES):
        written = model(template).chat_text([user(CAT, text("What?"))], tools=[tool])
        assert "<pad>What?" in written


@pytest.mark.parametrize("template", [CHATML, QWEN_VL, SMOLVLM])
def test_a_mark_of_the_user_is_refused(template: str) -> None:
    with pytest.raises(InvalidRequestError, match="stands for a picture") as error:
        model(template).chat_text([user(CAT), user(text("the <pad> mark"))])
    assert error.value.param == "messages[1].content"


def test_a_picture_that_the_template_drops_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="shows 0 pictures of 1"):
        model(DROPS).chat_text([user(CAT)])


def test_a_model_without_eyes_refuses() -> None:
    with pytest.raises(BlindModelError, match="fake sees no pictures"):
        model(QWEN_VL, sees=False).chat_text([user(CAT)])


@pytest.mark.parametrize("part", [{"type": "video"}, {"type": "image"}, "a", {"text": "a"}])
def test_other_parts_are_refused(part: object) -> None:
    with pytest.raises(InvalidRequestError) as error:
        model(QWEN_VL).chat_text([user(text("a"), part)])
    assert error.value.param == "messages[0].content[1]"


def test_the_prompt_has_the_pictures() -> None:
    assert pictures_in(ASKED) == ["cat", "dog"]
    prompt = model(CHATML).chat_prompt(ASKED)
    assert isinstance(prompt, Illustrated)
    assert prompt.pictures == ("cat", "dog")


def test_parts_of_a_text() -> None:
    assert parts_of("a<1>b<2><1>", ["<1>", "<2>"]) == [
        text("a"),
        {"type": "image"},
        text("b"),
        {"type": "image"},
        {"type": "image"},
    ]
    assert parts_of("", ()) == [text("")]

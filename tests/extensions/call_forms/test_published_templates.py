"""Published chat templates: the form of each, and its calls in histories, read back.

`published.toml` says which form each template gets. `python scripts/fetch_templates.py` fetches the
templates; without them these tests are skipped.
"""

from __future__ import annotations

import json
import runpy
import tomllib
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from heddle.grammars import LARK, Grammar
from heddle.text.chat.template import ChatTemplate
from heddle.text.constrained import matching
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from talking_model import LetterTokenizer, answered, refused_at, streamed, talking_server

if TYPE_CHECKING:
    from heddle.text.parsing.parts import ParsedAnswer

HERE = Path(__file__).parent
FETCHING = runpy.run_path(str(HERE.parents[2] / "scripts" / "fetch_templates.py"))
FOLDER: Path = FETCHING["FOLDER"]
TABLE: dict[str, Any] = tomllib.loads((HERE / "published.toml").read_text())
FORMS: dict[str, str] = TABLE["forms"]
FAILS: dict[str, str] = TABLE["fails"]
LEAVES_OUT_TEXT: list[str] = TABLE["histories"]["leave_out_text"]
LEAVES_OUT_REASONING: list[str] = TABLE["histories"]["leave_out_reasoning"]
REASONING: dict[str, list[str]] = TABLE["reasoning"]
LEAVES_OUT_NULLS: list[str] = TABLE["histories"]["leave_out_nulls"]
FAULTY: dict[str, str] = TABLE["faulty"]
ONE_CALL: list[str] = TABLE["histories"]["have_one_call"]
ENDS: list[str] = TABLE["histories"]["ends"]

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="no published templates; run `python scripts/fetch_templates.py`"
)

SCHEMAS: dict[str, Any] = {
    "edit": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "The text."},
            "count": {"type": "number", "description": "How many."},
            "force": {"type": "boolean", "description": "Whether."},
            "lines": {"type": "array", "items": {"type": "string"}, "description": "Some lines."},
            "options": {"type": "object", "properties": {}, "description": "Some options."},
        },
        "required": ["text"],
    },
    "clock": {"type": "object", "properties": {}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Work.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ASKED = {"role": "user", "content": "Do it."}
CALLS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "strings": (("edit", {"text": 'say "a\\b" to <b> & it\'s\nall'}),),
    "numbers in strings": (("edit", {"text": "3", "count": 3}),),
    "nested": (
        ("edit", {"text": "a", "lines": ["x", "1"], "options": {"a": {"b": [None, True, "é"]}}}),
    ),
    "empty": (("clock", {}),),
    "two": (("edit", {"text": "a", "force": False}), ("clock", {})),
}


def works(*, known: bool = False) -> list[Any]:
    """The templates; with `known` those whose form Heddle knows and that write it."""
    return [
        pytest.param(name, marks=pytest.mark.xfail(reason=FAILS[name]) if name in FAILS else ())
        for name, form in FORMS.items()
        if not (known and (form == "generic" or name in FAULTY))
    ]


@cache
def template_of(name: str) -> ChatTemplate:
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text(), "<s>", "</s>")


def said(calls: Any, content: str = "") -> dict[str, Any]:
    written = [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for place, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}


def rendered(template: ChatTemplate, *messages: dict[str, Any], asks: bool = False) -> str:
    conversation, tools = template.dialect.conversation(messages, TOOLS)
    return template.render(conversation, tools=tools, add_generation_prompt=asks)


def answer_in(template: ChatTemplate, message: dict[str, Any]) -> tuple[str, str]:
    """The prompt, and what the template writes for an answer to it, up to the mark of its end."""
    whole, prompt = rendered(template, ASKED, message), rendered(template, ASKED, asks=True)
    plain = rendered(template, ASKED, {"role": "assistant", "content": "Fine."})
    same = (a == b for a, b in zip(whole, prompt, strict=False))
    common = whole[: sum(takewhile(bool, same))]
    if common.rfind("<") > common.rfind(">"):  # the prompt opens reasoning, the history closes it
        common = common[: common.rfind("<")]
    text, end = whole[len(common) :].rstrip(), plain.rpartition("Fine.")[2].strip()
    # Marks of the text come before the mark of the end. Kimi K3's marks end with a separator.
    while not text.endswith(end) or end.startswith("<|sep|>"):
        end = end[max(end.find("<", 1), 0) or len(end) :]
    for mark in (end, *ENDS):
        text = text.removesuffix(mark)
    text = text.removesuffix("<|eom_id|>")  # a token that ends answers with calls
    marks = template.dialect.marks
    if marks and text.startswith(marks.closing):
        common, text = common + marks.closing, text.removeprefix(marks.closing)
    elif marks and marks.closing not in text:  # the history leaves the reasoning out
        common = common.rstrip().removesuffix(marks.opening)
    return common, text


def test_every_template_has_a_row() -> None:
    assert sorted(FORMS) == sorted(path.stem for path in FOLDER.glob("*.jinja"))
    assert len(FORMS) >= 40
    left_out = {*LEAVES_OUT_TEXT, *LEAVES_OUT_REASONING, *LEAVES_OUT_NULLS}
    assert {*FAILS, *FAULTY, *left_out, *ONE_CALL, *REASONING} <= FORMS.keys()


@pytest.mark.parametrize("name", FORMS)
def test_a_template_shows_its_form(name: str) -> None:
    dialect = template_of(name).dialect
    assert (type(dialect.form).__name__ if dialect.knows_tools else "generic") == FORMS[name]


@pytest.mark.parametrize("name", works())
@pytest.mark.parametrize("content", ["", "Let me see."])
def test_a_conversation_with_calls_and_results_is_rendered(name: str, content: str) -> None:
    results = [
        {"role": "tool", "tool_call_id": "call_0", "content": "first result"},
        {"role": "tool", "tool_call_id": "call_1", "content": "second result"},
    ]
    conversation = [
        {"role": "system", "content": "Be kind."},
        ASKED,
        said(CALLS["two"], content),
        *results,
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Again."},
    ]
    prompt = rendered(template_of(name), *conversation, asks=True)
    shown = ["Be kind.", "Do it.", "first result", "second result", "Done.", "Again."]
    if name not in LEAVES_OUT_TEXT:
        shown.append(content)
    assert [text for text in shown if text not in prompt] == []
    for tool in SCHEMAS:
        assert prompt.count(tool) >= 2, "in the description and in the history"


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("name", works(known=True))
def test_what_a_template_writes_for_calls_is_read_back(name: str, calls: str) -> None:
    template = template_of(name)
    if calls == "two" and name in ONE_CALL:
        pytest.skip("each message has one call")
    content = "" if name in LEAVES_OUT_TEXT else "Well."
    prompt, text = answer_in(template, said(CALLS[calls], content))
    answer = template.dialect.reading(prompt, SCHEMAS).read(text)
    expected = json.dumps(CALLS[calls])
    if name in LEAVES_OUT_NULLS:
        expected = expected.replace("null", '""')
    assert json.loads(json.dumps(decoded(answer))) == json.loads(expected)
    assert answer.text.strip() == content


@pytest.mark.parametrize("name", FORMS)
def test_a_template_opens_and_closes_reasoning_as_a_request_wishes(name: str) -> None:
    template = template_of(name)
    dialect = template.dialect
    mark, *states = REASONING.get(name, [None])
    assert (dialect.marks and dialect.marks.opening) == mark

    def state(**wish: Any) -> str:
        prompt = template.render([ASKED], **dialect.reasoning.values(**wish))
        reading = dialect.reading(prompt)
        return "opens" if reading.reasons else "leaves" if reading.marks else "closes"

    if states:
        assert [state(), state(enabled=True), state(enabled=False)] == states


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
@pytest.mark.parametrize("name", FORMS)
def test_no_effort_makes_a_template_refuse_a_request(name: str, effort: str) -> None:
    template = template_of(name)
    variables = template.dialect.reasoning.values(effort=effort, enabled=effort != "none")
    assert "Do it." in template.render([ASKED], **variables)


@pytest.mark.parametrize(
    "name", [one for one in REASONING if FORMS[one] != "generic" and one not in FAILS | FAULTY]
)
def test_the_reasoning_of_earlier_calls_is_written_as_the_model_wrote_it(name: str) -> None:
    template = template_of(name)
    message = said(CALLS["nested"]) | {"reasoning_content": "Let me think."}
    prompt, text = answer_in(template, message)
    answer = template.dialect.reading(prompt, SCHEMAS).read(text)
    assert answer.reasoning == ("" if name in LEAVES_OUT_REASONING else "Let me think.")
    assert [call.name for call in answer.calls] == ["edit"]


# --- what the model was taught to say ------------------------------------------------------------


@pytest.fixture
def patient_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection of garbage among many tests counts in a mask's time."""
    monkeypatch.setattr(matching, "MASK_SECONDS", 60.0)


SPOKEN = [name for name, form in FORMS.items() if form != "generic" and name not in FAILS | FAULTY]
SERVED = {
    "GLM-4.6": "two",
    "ibm-granite-granite-3.3-2B-Instruct": "two",
    "Kimi-K2-Thinking": "two",
    "Kimi-K3": "two",
    "LFM2.5-8B-A1B": "two",
    "mistralai-Ministral-3-14B-Reasoning-2512": "two",
    "openai-gpt-oss-120b": "strings",
    "Qwen3.5-4B": "two",
}
"""Templates of some forms, and the calls that a model says over a socket."""


def spoken(template: ChatTemplate, calls: str) -> str:
    """The calls that the template writes, without the marks of reasoning before them."""
    _, text = answer_in(template, said(CALLS[calls]))
    marks = template.dialect.marks
    for mark in marks or ():
        text = text.strip().removeprefix(mark)
    return text.strip().removesuffix("<|tool_response>")  # with which Gemma 4 waits for a result


@pytest.mark.usefixtures("patient_masks")
@pytest.mark.parametrize("calls", ["strings", "empty", "two"])
@pytest.mark.parametrize("name", SPOKEN)
def test_grammars_allow_the_calls_that_the_template_writes(name: str, calls: str) -> None:
    template, tokenizer = template_of(name), LetterTokenizer()
    if calls == "two" and name in (*ONE_CALL, "openai-gpt-oss-120b"):
        pytest.skip("an answer has one call")
    if calls == "strings" and name == "LFM2.5-8B-A1B":
        pytest.skip("the template escapes no quotes, which no grammar can allow")
    prompt = rendered(template, ASKED, asks=True)
    reading = template.dialect.reading(prompt, SCHEMAS)
    assert reading.form is not None
    text = spoken(template, calls)
    try:
        tokenizer.encode(text)
    except ValueError:
        pytest.skip("the tokenizer of tests has no tokens for these marks")
    callees = [Callee(function, schema) for function, schema in SCHEMAS.items()]
    late = calls_grammar(reading.form, callees, tokenizer.control_id)
    assert refused_at(Grammar(LARK, late, beginning=reading), text) is None
    enforced = Grammar.lark(answer_grammar(reading, callees, tokenizer.control_id))
    if reading.marks:
        opening = "" if reading.reasons else reading.marks.opening
        text = f"{opening}Hm.\n{reading.marks.closing}" + ("" if reading.frames else "\n\n") + text
    assert refused_at(enforced, text) is None


@pytest.mark.usefixtures("patient_masks")
@pytest.mark.parametrize("name", SERVED)
def test_a_server_reads_what_the_template_writes(name: str) -> None:
    """Reasoning and calls: whole, streamed, and held to a grammar from the first token."""
    template, calls = template_of(name), SERVED[name]
    reading = template.dialect.reading(rendered(template, ASKED, asks=True), SCHEMAS)
    assert reading.marks
    opening = "" if reading.reasons else reading.marks.opening
    written = tuple((name, dict(given)) for name, given in CALLS[calls])
    with talking_server((FOLDER / f"{name}.jinja").read_text()) as server:
        server.says(f"{opening}Hm.\n{reading.marks.closing}{spoken(template, calls)}")
        body: Any = {"messages": [ASKED], "tools": TOOLS, "seed": 0, "max_tokens": 900}
        body["model"] = "fake"
        create = server.openai.chat.completions.create
        answers = [answered(create(**body)), streamed(create(**body, stream=True))]
        answers.append(answered(create(**body, tool_choice="required")))
    for answer in answers:
        assert (answer.text, answer.reasoning) == ("", "Hm.")
        assert decoded(answer) == written


def decoded(answer: ParsedAnswer) -> tuple[tuple[str, Any], ...]:
    return tuple((call.name, json.loads(call.arguments)) for call in answer.calls)

"""Transcripts of calls in each form: read whole, letter by letter, and over a socket.

`transcripts/NAME.toml` has a form's template, a call in a history, and what models said. A text
that is `free` leaves the form's grammar, so no server that constrains calls gets it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from heddle.grammars import LARK, Grammar
from heddle.text.chat.template import ChatTemplate
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.parts import Call, CallArguments, ParsedAnswer, parsed_answer
from talking_model import LetterTokenizer, answered, refused_at, streamed, talking_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from talking_model import Talking

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "number"},
        "force": {"type": "boolean"},
        "lines": {"type": "array"},
        "options": {"type": "object"},
        "maybe": {"type": ["string", "null"]},
    },
}
EMPTY = {"type": "object", "properties": {}}
SCHEMAS = {"edit": PARAMETERS, "clock": EMPTY}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ASKED: Any = [{"role": "user", "content": "Do it."}]
FORMS = {
    path.stem: tomllib.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "transcripts").glob("*.toml"))
}
SAID = [
    pytest.param(name, said, id=f"{name}: {said['it']}")
    for name, form in FORMS.items()
    for said in form["said"]
]
CONSTRAINED = [  # Llama's grammars have no marks, though its models write them at times
    pytest.param(name, said, id=f"{name}: {said['it']}")
    for name, form in FORMS.items()
    for said in form["said"]
    if not name.startswith("llama")
    and said.get("calls")
    and not (said.get("free") or said.get("cut") or said.get("prompt"))
]


def expected(said: Mapping[str, Any]) -> ParsedAnswer:
    calls = tuple(Call(name, arguments) for name, arguments in said.get("calls", ()))
    return ParsedAnswer(said.get("content", ""), said.get("reasoning", ""), calls)


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(FORMS[name]["template"], "", "")


@pytest.mark.parametrize(("name", "said"), SAID)
def test_a_transcript_is_read_in_pieces_as_it_is_read_whole(
    name: str, said: Mapping[str, Any]
) -> None:
    reading = template_of(name).dialect.reading(said.get("prompt", ""), SCHEMAS)
    cut = said.get("cut", False)
    assert reading.read(said["text"], cut=cut) == expected(said)
    reader = reading.reader()
    parts = [part for char in said["text"] for part in reader.feed(char)] + reader.finish(cut=cut)
    assert parsed_answer(parts) == expected(said)


@pytest.mark.parametrize("name", FORMS)
def test_every_beginning_of_a_transcript_is_read(name: str) -> None:
    """The token limit may come anywhere. What a client has seen by then stays as it is."""
    reading = template_of(name).dialect.reading("", SCHEMAS)
    text = FORMS[name]["said"][1]["text"]
    [whole] = reading.read(text).calls
    for end in range(len(text)):
        answer = reading.read(text[:end], cut=True)
        assert answer.text.strip() == ""
        for call in answer.calls:
            assert call.name == whole.name
            assert whole.arguments.startswith(call.arguments)


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize(("name", "said"), CONSTRAINED)
def test_grammars_allow_a_transcript_with_marks_as_control_tokens_or_as_text(
    name: str, said: Mapping[str, Any], controls: bool
) -> None:
    tokenizer = LetterTokenizer(controls=controls)
    reading = template_of(name).dialect.reading("", SCHEMAS)
    assert reading.form is not None
    callees = [Callee(function, schema) for function, schema in SCHEMAS.items()]
    late = calls_grammar(reading.form, callees, tokenizer.control_id)
    allowed = Grammar(LARK, late, beginning=reading)
    assert refused_at(allowed, said["text"], tokenizer) is None
    if not said.get("content") and not said.get("reasoning"):
        enforced = answer_grammar(reading, callees, tokenizer.control_id)
        assert refused_at(Grammar.lark(enforced), said["text"], tokenizer) is None


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[tuple[Talking, Mapping[str, Any]]]:
    with talking_server(FORMS[request.param]["template"]) as server:
        yield server, FORMS[request.param]


def ask(server: Talking, **fields: Any) -> Any:
    options: Any = {"model": "fake", "messages": ASKED, "seed": 0, "max_tokens": 900}
    return server.openai.chat.completions.create(**(options | fields))


def test_a_server_answers_the_same_with_and_without_streaming(form: Any) -> None:
    server, transcripts = form
    for said in transcripts["said"]:
        if said.get("free") or said.get("cut"):
            continue
        server.says(said["text"])
        assert answered(ask(server, tools=TOOLS)) == expected(said), said["it"]
        assert streamed(ask(server, tools=TOOLS, stream=True)) == expected(said), said["it"]


def test_the_template_describes_the_tools_and_writes_the_calls(form: Any) -> None:
    server, transcripts = form
    arguments = '{"text": "a", "lines": [1]}'
    call = {"id": "call_1", "type": "function"}
    history = [
        *ASKED,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**call, "function": {"name": "edit", "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    server.says("Fine.")
    assert answered(ask(server, messages=history, tools=TOOLS)) == ParsedAnswer("Fine.")
    assert transcripts["history"] in server.prompt
    assert "clock" in server.prompt, "all functions are described"
    assert "# Functions" not in server.prompt, "no second description"
    broken = {**call, "function": {"name": "edit", "arguments": "[1"}}
    history[1]["tool_calls"] = [broken]
    assert answered(ask(server, messages=history, tools=TOOLS)) == ParsedAnswer("Fine.")
    assert "[1" in server.prompt


@pytest.mark.parametrize(
    "name", [name for name, form in FORMS.items() if form.get("streams_strings", True)]
)
def test_a_string_streams_as_it_is_written(name: str) -> None:
    reader = template_of(name).dialect.reading("", SCHEMAS).reader()
    text = FORMS[name]["said"][1]["text"]
    pieces = [part for char in text for part in reader.feed(char)]
    assert sum(isinstance(piece, CallArguments) for piece in pieces) > 15

# ruff: noqa: RUF001  the marks have wide bars
"""The forms of DeepSeek V3 and R1, and of V3.1.

V3 and R1 write the arguments in a code fence, V3.1 writes them as they are:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name
    ```json
    {...}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Every model's answer is read in both forms. DeepSeek's own templates describe no tools. For V3.1 a
system message describes them, in the words of its card, on which the model was trained. R1's
distilled models have R1's template and were not trained on calls, so templates with fences need to
describe tools themselves. Sources: llama.cpp's templates for V3.1, R1 and two distilled models,
vLLM's template for V3.1, and the description as ollama's renderer and ms-swift's tests quote it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import encodes_arguments, with_texts
from heddle.extensions.call_forms.sectioned import Sectioned
from heddle.text.chat.tool_prompt import with_instructions
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_FENCE, _FENCE_END = "```json", "```"
_LONGEST_NAME = 256
_INSTRUCTIONS = """\
## Tools
You have access to the following tools:

{tools}IMPORTANT: ALWAYS adhere to this exact format for tool use:
{example}

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""


@dataclass(frozen=True, slots=True)
class DeepSeek(Sectioned):
    """A name and arguments, between marks of calls in a section.

    Attributes:
        fences: whether the model was trained on arguments in a code fence.
        encodes: whether the template itself encodes arguments as JSON.
        describes_tools: whether the system message describes functions.
        joins: whether the template writes a message's text and its calls.
    """

    fences: bool = False
    encodes: bool = False
    describes_tools: bool = False
    joins: bool = True

    section: ClassVar = "<｜tool▁calls▁begin｜>"
    section_end: ClassVar = "<｜tool▁calls▁end｜>"
    call: ClassVar = "<｜tool▁call▁begin｜>"
    arguments: ClassVar = "<｜tool▁sep｜>"
    call_end: ClassVar = "<｜tool▁call▁end｜>"
    fence_end: ClassVar = _FENCE_END
    marks: ClassVar = (section, section_end, call, arguments, call_end)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages, with arguments as the template takes them.

        A template that writes the text of a message or its calls gets a message for each.
        """
        written: list[Mapping[str, Any]] = []
        for message in messages if self.encodes else with_texts(messages):
            if not self.joins and message.get("tool_calls") and message["content"]:
                written.append({key: message[key] for key in message if key != "tool_calls"})
                written.append({**message, "content": ""})
            else:
                written.append(message)
        return written

    def offered(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]:
        if not tools or not self.describes_tools:
            return messages, tools or None
        call = f"{self.call}tool_call_name{self.arguments}tool_call_arguments{self.call_end}"
        example = f"{self.section}{call}{{additional_tool_calls}}{self.section_end}"
        described = "".join(_description(tool["function"]) for tool in tools)
        text = _INSTRUCTIONS.format(tools=described, example=example)
        return with_instructions(messages, text), None

    def _name(self, source: AnswerReader, header: str) -> Steps[str]:
        char = yield from source.after_space()
        source.put_back(char)
        if char == "{" or header != "function":
            return "" if not header or any(map(str.isspace, header)) else header
        name = ""
        while (char := (yield from source.next())) not in (END, "\n"):
            name += char
            if len(name) > _LONGEST_NAME:
                return ""
        if char != END:
            yield from source.skip(_FENCE)
        return "" if any(map(str.isspace, name.strip())) or char == END else name.strip()

    def _header(self, name: str, mark: Mark) -> str:
        if self.fences:
            named = json.dumps(name + "\n" + _FENCE)
            return f'"function" {mark(self.arguments)} {named}'
        return f"{json.dumps(name)} {mark(self.arguments)}"

    def _end(self, mark: Mark) -> str:
        fence = f'"{_FENCE_END}" ' if self.fences else ""
        return f"{fence}{mark(self.call_end)}"


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    if DeepSeek.section not in template or DeepSeek.arguments not in template:
        return None
    fences, takes_tools = _FENCE in template, re.search(r"\btools\b", template)
    joins = not fences or f"+ '{DeepSeek.section}" in template
    return DeepSeek(fences, encodes_arguments(template), not fences and not takes_tools, joins)


def _description(function: Mapping[str, Any]) -> str:
    schema = json.dumps(function.get("parameters", {}), ensure_ascii=False)
    told = f"Description: {function.get('description', '')}\n\nParameters: {schema}"
    return f"### {function['name']}\n{told}\n\n"

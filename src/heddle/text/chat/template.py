"""Chat templates: from messages to the text a model was trained on.

A model file brings its template as Jinja source. The template runs in Jinja's sandbox, where it can
neither reach Python's internals nor change its arguments. It gets the same variables as with
Hugging Face's `apply_chat_template`. `bounded_sandbox.py` bounds its work.
"""

from __future__ import annotations

import json
import re
import secrets
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension

from heddle.errors import InvalidRequestError, ModelFileError
from heddle.text.chat.bounded_sandbox import BoundedSandbox
from heddle.text.chat.budget import check_length, render
from heddle.text.chat.dialect import Dialect
from heddle.text.chat.illustrations import parts_of
from heddle.text.chat.thinking import taken_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.parser import Parser

_MOST_SOURCE = 128 * 1024
"""Most characters of a template. Known templates have up to 20,000."""

_DATES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y %H:%M:%S"}
"""Variables with the date of today, and their formats."""

_NAMES_IMAGES = re.compile(r"""['"]image['"]""")
"""In the source of templates that read parts of contents."""

_MOST_REASON = 1000
"""Most characters of an error's message: a template may raise an error with any text."""


class ChatTemplate:
    """A model's chat template. Safe to share between threads.

    Attributes:
        source: the template's source in the model file.
        dialect: how the model writes calls and reasoning, as the template shows.
    """

    def __init__(
        self,
        source: str,
        bos_token: str,
        eos_token: str,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Parse `source`.

        Args:
            source: the template.
            bos_token: text of BOS.
            eos_token: text of EOS.
            variables: defaults of variables. Variables of a request override them.

        Raises:
            ModelFileError: the template does not parse, or is too long.
        """
        if len(source) > _MOST_SOURCE:
            raise ModelFileError(
                f"the chat template has {len(source):,} characters; the limit is {_MOST_SOURCE:,}",
                field="tokenizer.chat_template",
            )
        environment = BoundedSandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        environment.add_filter("tojson", _to_json)
        # Jinja's own `safe` makes markup, which escapes text for HTML that is joined to it.
        environment.add_filter("safe", str)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(environment.bounded(source))
            tree = environment.parse(source)
            taken = taken_values(tree)  # first: the other search folds constants
            read = meta.find_undeclared_variables(tree)
        except Exception as error:  # Jinja's errors; Python's if Jinja's output does not compile
            raise ModelFileError(
                f"the chat template does not parse: {_reason(error)}",
                field="tokenizer.chat_template",
            ) from error
        self._dates = {name: format for name, format in _DATES.items() if name in read}
        self.source = source
        self._reads_parts = _NAMES_IMAGES.search(source) is not None
        self.dialect = Dialect.of(source, read, taken)
        self._defaults = {
            "bos_token": bos_token,
            "eos_token": eos_token,
            "tools": None,
            "functions": "",  # Firefunction's tools as text; `tool_prompt` describes them instead
            "documents": None,
            "enable_thinking": True,
            **(variables or {}),
        }

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        stand_ins: Sequence[str] = (),
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, each with at least `role` and `content`.

        Args:
            messages: the conversation so far; contents are strings.
            stand_ins: texts in the contents that stand for pictures (`illustrations.py`).
            add_generation_prompt: end with the beginning of the assistant's answer.
            variables: more variables for the template, such as `tools`. They override the defaults,
                which are those of llama.cpp: `enable_thinking` is true, and `date_string` and
                `datetime` are today.

        Raises:
            InvalidRequestError: the template refuses these messages, or fails on them.
        """
        dates = {name: _strftime_now(format) for name, format in self._dates.items()}
        names = dates | self._defaults | variables
        names |= {
            "messages": self._with_parts(messages, stand_ins) if self._reads_parts else messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return render(self._template, names)
        except Exception as error:  # a template can raise any error that a Python expression can
            return self._rendered_otherwise(names, error)

    def _with_parts(
        self, messages: Sequence[Mapping[str, Any]], stand_ins: Sequence[str]
    ) -> Sequence[Mapping[str, Any]]:
        """The messages, with parts as contents where the template reads parts."""
        if not (stand_ins or self._needs_parts):
            return messages
        return [
            {**one, "content": parts_of(one["content"], stand_ins)}
            if self._needs_parts or any(text in one["content"] for text in stand_ins)
            else one
            for one in messages
        ]

    @cached_property
    def _needs_parts(self) -> bool:
        """Whether the template shows no content that is a text. SmolVLM's is an example."""
        probe = secrets.token_hex(16)

        def shows(content: str | list[dict[str, str]]) -> bool:
            messages = [{"role": "user", "content": content}]
            names = {**self._defaults, "messages": messages, "add_generation_prompt": True}
            try:
                return probe in render(self._template, names)
            except Exception:
                return False

        return not shows(probe) and shows(parts_of(probe, ()))

    def _rendered_otherwise(self, names: Mapping[str, Any], error: Exception) -> str:
        """The text of a template that takes only tools, or no system message.

        Raises:
            InvalidRequestError: the template does not take these messages, either.
        """
        try:
            if isinstance(error, TypeError) and names["tools"] is None:
                # It loops over `tools` and does not ask whether there are any.
                return render(self._template, {**names, "tools": []})
            merged = _without_system(names["messages"])
            if isinstance(error, _RefusalError) and merged is not None:
                return render(self._template, {**names, "messages": merged})
        except Exception as second:
            error = second
        raise InvalidRequestError(
            f"the model's chat template cannot take these messages: {_reason(error)}",
            param="messages",
        ) from error


def _without_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """The messages, with the system message at the start of the user's first message.

    None if the conversation does not begin with both.
    """
    if [one["role"] for one in messages[:2]] != ["system", "user"]:
        return None
    first, second, *rest = messages
    content = first["content"], second["content"]
    if any(isinstance(one, list) for one in content):
        parts = [one if isinstance(one, list) else parts_of(one, ()) for one in content]
        return [{**second, "content": [*parts[0], *parts_of("\n\n", ()), *parts[1]]}, *rest]
    return [{**second, "content": "\n\n".join(content)}, *rest]


def _reason(error: Exception) -> str:
    """The message of an error; for an error without a message, the name of its class."""
    return str(error)[:_MOST_REASON] or type(error).__name__


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training. Rendering ignores the tag."""

    tags = {"generation"}  # noqa: RUF012  Jinja declares it mutable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _RefusalError(TemplateError):
    """The template itself refuses the messages."""


def _raise_exception(message: str) -> NoReturn:
    raise _RefusalError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON in the form of training data. Jinja's own `tojson` escapes for HTML and sorts keys."""
    if separators is not None:
        check_length(len(str(separators)) << 20)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    # Each line is indented by its depth, so a body of 8 MB could become 3 GB.
    parts, length = [], 0
    for part in encoder.iterencode(value):
        parts.append(part)
        length += len(part)
        check_length(length)
    return "".join(parts)

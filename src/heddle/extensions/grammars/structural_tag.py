"""Translates structural tags to llguidance's Lark: free text with parts that a grammar constrains.

The forms are those of xgrammar, which vLLM and SGLang take: the older one with `structures` and
`triggers`, and the newer one with a `format`
(https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html). The tags are text: a control token of
the model never is a tag.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.extensions.grammars.gbnf.lark import lark
from heddle.extensions.grammars.gbnf.syntax import is_gbnf
from heddle.text.constrained.lark_regex import lark_regex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.extensions.grammars.gbnf.lark import Tokens

Json = dict[str, Any]

_TEXT = "(?s:.*)"


@dataclass(frozen=True, slots=True)
class _Part:
    """Lark for one format.

    Attributes:
        lark: an expression.
        is_open: whether its text has no end of its own. Nothing can follow it.
    """

    lark: str
    is_open: bool = False


def structural_tag_source(text: str, options: Mapping[str, Any], tokens: Tokens) -> str:
    """The grammar of a structural tag, as llguidance reads it: JSON of several Lark grammars.

    Args:
        text: the tag, as JSON.
        options: llguidance's options for all JSON schemas.
        tokens: the model's tokens.

    Raises:
        ValueError: the tag is wrong, or has a form that Heddle does not support. Says its path.
    """
    tag = json.loads(text)
    if not isinstance(tag, dict) or tag.get("type", "structural_tag") != "structural_tag":
        raise ValueError("it must be an object of type 'structural_tag'")
    writer = _Writer(options, tokens)
    if "format" in tag:
        _check_names(tag, "the tag", "type format")
        part = writer.part(tag["format"], "format")
    else:
        part = writer.part(_newer(tag), "")
    writer.lines.insert(0, f"start: {part.lark}")
    main = {"name": "tag", "lark_grammar": "\n".join(writer.lines)}
    return json.dumps({"grammars": [main, *writer.grammars]})


def _newer(tag: Json) -> Json:
    """A tag of the older form as a format of the newer one."""
    _check_names(tag, "the tag", "type structures triggers at_least_one")
    structures = _list(tag, "structures", "the tag")
    for place, one in enumerate(structures):
        _check_names(one, f"structures[{place}]", "begin schema end")
    return {
        "type": "triggered_tags",
        "triggers": tag.get("triggers"),
        "at_least_one": tag.get("at_least_one", False),
        "tags": [
            {
                "type": "tag",
                "begin": one.get("begin"),
                "content": {"type": "json_schema", "json_schema": one.get("schema") or {}},
                "end": one.get("end"),
            }
            for one in structures
        ],
    }


class _Writer:
    """Writes rules for formats.

    Attributes:
        lines: the rules.
        grammars: further grammars that the rules refer to, as llguidance reads them.
    """

    def __init__(self, options: Mapping[str, Any], tokens: Tokens) -> None:
        self.lines: list[str] = []
        self.grammars: list[Json] = []
        self._options = dict(options)
        self._tokens = tokens

    def part(self, form: object, path: str) -> _Part:
        """Lark for the format at `path`.

        Raises:
            ValueError: it is wrong, or not supported.
        """
        if not isinstance(form, dict):
            raise ValueError(f"{path} must be an object, got {form!r:.50}")
        writers = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
            "optional": self._optional,
            "star": self._star,
            "plus": self._plus,
        }
        kind = form.get("type")
        if kind not in writers:
            raise ValueError(
                f"{path} of type {kind!r} is not supported; use one of {', '.join(writers)}"
            )
        return writers[kind](form, path)

    def _const_string(self, form: Json, path: str) -> _Part:
        _check_names(form, path, "type value")
        return _Part(json.dumps(_string(form, "value", path)))

    def _json_schema(self, form: Json, path: str) -> _Part:
        _check_names(form, path, "type json_schema style")
        schema = form.get("json_schema")
        if form.get("style", "json") != "json" or not isinstance(schema, dict | bool):
            raise ValueError(f"{path} must have a schema and no style except 'json'")
        if schema is False:
            raise ValueError(f"{path}.json_schema can match nothing")
        members = schema if isinstance(schema, dict) else {}
        return self._rule(f"%json {json.dumps({**members, 'x-guidance': self._options})}")

    def _regex(self, form: Json, path: str) -> _Part:
        _check_names(form, path, "type pattern")
        return self._rule(lark_regex(_string(form, "pattern", path)))

    def _grammar(self, form: Json, path: str) -> _Part:
        _check_names(form, path, "type grammar")
        text = _string(form, "grammar", path)
        name = f"grammar{len(self.grammars)}"
        source = lark(text, self._tokens) if is_gbnf(text) else text
        self.grammars.append({"name": name, "lark_grammar": source})
        return _Part(f"@{name}")

    def _any_text(self, form: Json, path: str) -> _Part:
        _check_names(form, path, "type")
        return _Part(self._rule(f"/{_TEXT}/").lark, is_open=True)

    def _sequence(self, form: Json, path: str) -> _Part:
        _check_names(form, path, "type elements")
        parts = self._parts(form, "elements", path)
        for part in parts[:-1]:
            self._check_closed(part, f"{path}.elements")
        return _Part(f"({' '.join(part.lark for part in parts)})", parts[-1].is_open)

    def _or(self, form: Json, path: str) -> _Part:
        _check_names(form, path, "type elements")
        parts = self._parts(form, "elements", path)
        choice = " | ".join(part.lark for part in parts)
        return _Part(f"({choice})", any(part.is_open for part in parts))

    def _tag(self, form: Json, path: str) -> _Part:
        return _Part(f"({self._after(form, '', path)})")

    def _after(self, tag: object, trigger: str, path: str) -> str:
        """Lark for the text of a tag that follows `trigger`, which is the start of its `begin`."""
        if not isinstance(tag, dict):
            raise ValueError(f"{path} must be a tag")
        _check_names(tag, path, "type begin content end")
        begin = _string(tag, "begin", path)
        ends = tag["end"] if isinstance(tag.get("end"), list) else [tag.get("end")]
        if not ends or not all(isinstance(end, str) for end in ends):
            raise ValueError(f"{path}.end must be a string or a list of strings")
        content = tag.get("content")
        rest = json.dumps(begin[len(trigger) :])
        if isinstance(content, dict) and content.get("type") == "any_text" and all(ends):
            texts = [self._rule(f"/{_TEXT}/ {json.dumps(end)}", "[lazy]").lark for end in ends]
            return f"{rest} ({' | '.join(texts)})"
        part = self.part(content, f"{path}.content")
        self._check_closed(part, f"{path}.content")
        return f"{rest} {part.lark} ({' | '.join(map(json.dumps, ends))})"

    def _triggered_tags(self, form: Json, path: str) -> _Part:
        _check_names(form, path, "type triggers tags at_least_one stop_after_first excludes")
        if form.get("excludes"):
            raise ValueError(f"{path}.excludes is not supported; leave it out")
        triggers, tags = _list(form, "triggers", path), _list(form, "tags", path)
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise ValueError(f"{path}.triggers must be strings that are not empty")
        bodies: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for place, tag in enumerate(tags):
            begin = str(tag.get("begin")) if isinstance(tag, dict) else ""
            matching = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(matching) != 1:
                raise ValueError(
                    f"{path}.tags[{place}].begin must start with exactly one trigger, got {begin!r}"
                )
            bodies[matching[0]].append(self._after(tag, matching[0], f"{path}.tags[{place}]"))
        calls = []
        for trigger, texts in bodies.items():
            until = self._rule(f"/{_TEXT}/ {json.dumps(trigger)}", "[lazy]").lark
            calls.append(f"{until} ({' | '.join(texts)})" if texts else until)
        call = self._rule(" | ".join(calls)).lark
        rest = self._rule(f"/{_TEXT}/").lark
        required, once = form.get("at_least_one"), form.get("stop_after_first")
        if once:
            return _Part(call if required else f"({call} | {rest})", is_open=True)
        return _Part(f"({call}{'+' if required else '*'} {rest})", is_open=True)

    def _tags_with_separator(self, form: Json, path: str) -> _Part:
        _check_names(form, path, "type tags separator at_least_one stop_after_first")
        tags = _list(form, "tags", path)
        texts = [self._after(tag, "", f"{path}.tags[{place}]") for place, tag in enumerate(tags)]
        one = self._rule(" | ".join(texts)).lark
        more = "" if form.get("stop_after_first") else self._more(form, one, path)
        return _Part(f"({one}{more}){'' if form.get('at_least_one') else '?'}")

    def _more(self, form: Json, one: str, path: str) -> str:
        return f" ({json.dumps(_string(form, 'separator', path))} {one})*"

    def _optional(self, form: Json, path: str) -> _Part:
        return self._repeated(form, path, "?")

    def _star(self, form: Json, path: str) -> _Part:
        return self._repeated(form, path, "*")

    def _plus(self, form: Json, path: str) -> _Part:
        return self._repeated(form, path, "+")

    def _repeated(self, form: Json, path: str, times: str) -> _Part:
        _check_names(form, path, "type content")
        part = self.part(form.get("content"), f"{path}.content")
        self._check_closed(part, f"{path}.content")
        return _Part(f"({part.lark}){times}")

    def _parts(self, form: Json, name: str, path: str) -> list[_Part]:
        elements = _list(form, name, path)
        return [self.part(one, f"{path}.{name}[{place}]") for place, one in enumerate(elements)]

    def _check_closed(self, part: _Part, path: str) -> None:
        if part.is_open:
            raise ValueError(
                f"{path} has free text before other parts, where its end is unknown; make the text"
                " the content of a tag, or the last part"
            )

    def _rule(self, expression: str, attributes: str = "") -> _Part:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {expression}")
        return _Part(name)


def _check_names(form: object, path: str, names: str) -> None:
    if not isinstance(form, dict):
        raise ValueError(f"{path} must be an object")
    for name in form.keys() - names.split():
        raise ValueError(f"{path}.{name} is not supported; leave it out")


def _string(form: Json, name: str, path: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{path}.{name} must be a string, got {value!r:.50}")
    return value


def _list(form: Json, name: str, path: str) -> Sequence[Any]:
    value = form.get(name)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{path}.{name} must be a list that is not empty, got {value!r:.50}")
    return value

"""Pictures in messages, on their way through a chat template.

The content of a message with pictures is a list of parts: `{"type": "text", "text": ...}` and
`{"type": "image", "image": ...}`. Call forms and templates take contents that are texts. So each
picture gets a stand-in, a random text. Templates that know parts get parts again just before they
run (`ChatTemplate.render`), and write the model's own mark. In the text of other templates, the
mark replaces the stand-ins.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.errors import InvalidRequestError
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Illustrations:
    """Messages whose contents are texts.

    Attributes:
        messages: the messages, with a stand-in in the place of each picture.
        stand_ins: the stand-ins, in the order of the pictures.
    """

    messages: Sequence[Json]
    stand_ins: Sequence[str] = ()

    @classmethod
    def of(cls, messages: Sequence[Json]) -> Illustrations:
        """Messages whose contents are texts or lists of parts.

        Raises:
            InvalidRequestError: a part is neither a text nor an image.
        """
        if all(isinstance(one.get("content"), str) for one in messages):
            return cls(messages)
        for place, message in enumerate(messages):
            _check_parts(message.get("content"), f"messages[{place}].content")
        stand_ins: list[str] = []
        texts = [_with_stand_ins(one, stand_ins) for one in messages]
        return cls(texts, stand_ins)

    def finish(self, text: str, mark: str) -> str:
        """The text of a template, with the model's mark once for each picture.

        Raises:
            InvalidRequestError: a message has the mark in its own text, or the template does not
                show each picture once.
        """
        for place, message in enumerate(self.messages):
            if mark in (message.get("content") or ""):
                raise InvalidRequestError(
                    f"messages[{place}].content has the text {mark!r}, which stands for a picture"
                    " of this request. Write it in another way",
                    param=f"messages[{place}].content",
                )
        for stand_in in self.stand_ins:
            text = text.replace(stand_in, mark)
        shown = text.count(mark)
        if shown != len(self.stand_ins):
            raise InvalidRequestError(
                f"the model's chat template shows {counted(shown, 'picture')} of"
                f" {len(self.stand_ins)}. Send the pictures in messages of the user, and write"
                f" {mark!r} in no text",
                param="messages",
            )
        return text


def pictures_in(messages: Sequence[Json]) -> list[Any]:
    """The pictures in the contents of messages, in order."""
    contents = [one.get("content") for one in messages]
    lists = [content for content in contents if isinstance(content, list)]
    return [part["image"] for parts in lists for part in parts if part["type"] == "image"]


def text_in(content: str | Sequence[Json]) -> str:
    """The text of a content, without its pictures."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def parts_of(content: str, stand_ins: Sequence[str]) -> list[dict[str, str]]:
    """A content as parts: its texts, and a part of type image for each stand-in."""
    pieces = [content]
    if stand_ins:
        pieces = re.split("(" + "|".join(map(re.escape, stand_ins)) + ")", content)
    parts = [
        {"type": "image"} if piece in stand_ins else {"type": "text", "text": piece}
        for piece in pieces
        if piece
    ]
    return parts or [{"type": "text", "text": ""}]


def _check_parts(content: object, path: str) -> None:
    """Check the parts that a program gives.

    Raises:
        InvalidRequestError: a part is neither a text nor an image.
    """
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "image") or kind not in part:
            raise InvalidRequestError(
                f"{path}[{number}] must be {{'type': 'text', 'text': ...}} or {{'type': 'image',"
                " 'image': ...}",
                param=f"{path}[{number}]",
            )


def _with_stand_ins(message: Json, stand_ins: list[str]) -> Json:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    pieces = []
    for part in content:
        if part["type"] == "image":
            stand_ins.append(f"<{secrets.token_hex(16)}>")
            pieces.append(stand_ins[-1])
        else:
            pieces.append(part["text"])
    return {**message, "content": "".join(pieces)}

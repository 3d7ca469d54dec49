"""What the ingress reads of a request for the router: client, model, and hashes of the prompt.

It reads no more than the names of a body's fields. A body that is no JSON has no key, and the
replica refuses it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from heddle.extensions.ray.routing.blocks import key_of_bytes, pack, root

if TYPE_CHECKING:
    from heddle.extensions.ray.exchange import Exchange

_NONE = msgspec.Raw(b"")
_LONGEST_NAME = 256
"""Most characters of a model's name that the router hears of."""
_KEYS = (b"authorization", b"x-api-key")


class _Body(msgspec.Struct):
    """The fields of all APIs that begin a prompt, in the order in which templates write them."""

    model: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    system: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    cache_salt: msgspec.Raw = _NONE


_DECODER = msgspec.json.Decoder(_Body)


def read(body: bytes, tenant: str) -> tuple[str, bytes]:
    """The model that a body names, and its packed key; both empty if they are not there.

    Requests of different `tenant`s share no prefixes.
    """
    if not body:
        return "", b""
    try:
        fields = _DECODER.decode(body)
        model = _text(fields.model)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", b""
    prompt = (
        fields.tools,
        fields.system,
        fields.instructions,
        fields.messages,
        fields.prompt,
        fields.input,
    )
    pieces = [bytes(one) for one in prompt if bytes(one)]
    if not pieces:
        return model, b""
    salt = root(model, tenant=tenant + bytes(fields.cache_salt).decode(errors="replace"))
    return model, pack(key_of_bytes(salt, pieces))


def _text(raw: msgspec.Raw) -> str:
    """The text of a field; empty if it is none."""
    value = msgspec.json.decode(raw) if bytes(raw)[:1] == b'"' else ""
    return value if isinstance(value, str) and len(value) <= _LONGEST_NAME else ""


def sender_of(exchange: Exchange) -> str:
    """What tells the client of a request apart: a digest of its key, else its address."""
    keys = [value for name, value in exchange.headers if name in _KEYS]
    if not keys:
        return exchange.client
    return blake2b(b"\n".join(keys), digest_size=8).hexdigest()

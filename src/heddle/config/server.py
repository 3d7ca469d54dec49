"""Settings of the HTTP server."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heddle.config.extended import ExtensionSettings
from heddle.defaults import checked
from heddle.errors import ConfigError
from heddle.extended import Extended, canonical
from heddle.settings import setting, validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_MODEL_NAME = 256
"""Most characters of a model's name in a request. Each event of a stream repeats the name."""

_KEY = re.compile(r"(?:[A-Za-z0-9_.@-]{1,64}:[ \t]+)?[\x21-\x7e]+")
"""A key, or a name and a key: `NAME: KEY`. A key without a space before it may hold colons."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.:\[\]-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(ExtensionSettings):
    """Settings of an extension for the HTTP server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Extended):
    """How the HTTP server listens."""

    host: str = setting("127.0.0.1", "network", "address to listen on")
    port: int = setting(8080, "network", "port to listen on; 0 = a free port", low=0, high=65_535)
    max_body: int = setting(
        32 * 1024**2, "network", "largest request body; a larger body is a 413", low=1024, size=True
    )
    body_timeout: int = setting(
        30,
        "network",
        "longest time, in s, for a request body to arrive; then 408",
        low=1,
        high=86_400,
    )
    backlog: int = setting(
        256 * 1024**2,
        "network",
        "most bytes of unread answers in memory; above, the server ends the largest answer",
        low=64 * 1024,
        size=True,
    )
    send_timeout: int = setting(
        60,
        "network",
        "seconds before the server disconnects a client that does not read its answer",
        low=1,
        high=86_400,
    )
    stream_ping: float = setting(
        10.0,
        "network",
        "seconds between comments in a stream of events that waits for its first token; 0 = none",
        low=0,
        high=86_400,
    )
    drain: int = setting(
        5,
        "network",
        "most seconds that a stopping server waits for running requests",
        low=0,
        high=86_400,
    )

    tls_cert: str = setting(
        "",
        "network",
        "PEM file with the server's certificate, then its issuers; empty = plain HTTP",
    )
    tls_key: str = setting("", "network", "PEM file with the private key of --tls-cert")
    log_level: str = setting(
        "warning",
        "logging",
        "lowest level of lines in the log; info = also the start and the end of each request",
        choices=("debug", "info", "warning", "error"),
        live=True,
    )
    log_format: str = setting(
        "text",
        "logging",
        "form of lines in the log: text, or json = one object a line",
        choices=("text", "json"),
    )

    api_key: tuple[str, ...] = setting(
        (),
        "keys",
        "API keys, separated by commas, each KEY or `NAME: KEY`; each request must send a key;"
        " repeatable",
        secret=True,
        live=True,
    )
    api_key_file: str = setting("", "keys", "file with API keys, one per line", live=True)
    admin_key: tuple[str, ...] = setting(
        (),
        "keys",
        "keys, as in --api-key, for routes that load and unload models or change the prefix cache",
        secret=True,
        live=True,
    )
    admin_key_file: str = setting("", "keys", "file with admin keys, one per line", live=True)
    prefix_cache_per_key: bool = setting(
        False, "keys", "share prefixes only between requests with the same API key"
    )
    trusted_proxy: tuple[str, ...] = setting(
        (),
        "network",
        "addresses or networks of proxies whose X-Forwarded-For names the client, separated by"
        " commas; repeatable; empty = the header is ignored",
    )
    cors: tuple[str, ...] = setting(
        (),
        "network",
        "origins whose web pages may use the server, separated by commas; localhost = this"
        " machine's, on any port; * = all; repeatable",
    )
    alias: tuple[str, ...] = setting(
        (), "requests", "further names of the model in requests, separated by commas; repeatable"
    )
    tags: tuple[str, ...] = setting(
        (),
        "requests",
        "labels of the model in /v1/models, for clients, separated by commas; repeatable",
    )
    any_model: bool = setting(
        False, "requests", "accept any model name in a request; by default an unknown name is a 404"
    )
    lenient: bool = setting(
        False,
        "requests",
        "ignore fields of a body that are unknown or not supported, unless they constrain the"
        " answer, and name them in headers; by default they are a 400",
    )

    open_schemas: bool = setting(
        False,
        "requests",
        "allow members that an object's JSON schema does not name; by default only schemas that set"
        " additionalProperties allow them",
    )

    sampling: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={
            "group": "sampling",
            "doc": "defaults of sampling parameters, by name",
            "parameters": True,
        },
    )

    extensions: tuple[ServerSettings, ...] = field(
        default=(), metadata={"extensions": ServerSettings}
    )

    def __post_init__(self) -> None:
        validate(self)
        extensions = canonical(self.extensions, ServerSettings, ConfigError)
        object.__setattr__(self, "extensions", extensions)  # the class is frozen
        object.__setattr__(self, "sampling", checked(self.sampling))  # the class is frozen
        check_keys(self.api_key, "api_key")
        check_keys(self.admin_key, "admin_key")
        _check_networks(self.trusted_proxy)
        _check_origins(self.cors)
        _check_aliases(self.alias)
        if self.prefix_cache_per_key and not (self.api_key or self.api_key_file):
            raise ConfigError(
                "prefix_cache_per_key needs API keys; set api_key or api_key_file",
                param="prefix_cache_per_key",
            )


def check_keys(keys: Sequence[str], param: str) -> None:
    """Refuse API keys that no header can carry. The message gives a key's number, never the key.

    Raises:
        ConfigError: a key is empty or has characters other than visible ASCII.
    """
    for number, key in enumerate(keys, 1):
        if not _KEY.fullmatch(key):
            raise ConfigError(
                f"{param}: key {number} of {len(keys)} must be visible ASCII"
                " characters, at least one, without spaces; before it may stand a name, as in"
                " `NAME: KEY`",
                param=param,
            )


def _check_networks(networks: Sequence[str]) -> None:
    for text in networks:
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            raise ConfigError(
                f"trusted_proxy must be an address or a network such as 10.0.0.0/8, got {text!r}:"
                f" {error}",
                param="trusted_proxy",
            ) from None


def _check_origins(origins: Sequence[str]) -> None:
    for origin in origins:
        if origin not in ("*", "localhost") and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                "cors must be *, localhost or an origin such as https://example.org:8443, got"
                f" {origin!r}",
                param="cors",
            )


def _check_aliases(names: Sequence[str]) -> None:
    for name in names:
        if not 0 < len(name) <= MAX_MODEL_NAME:
            raise ConfigError(
                f"alias must be a name of 1 to {MAX_MODEL_NAME} characters, got {len(name)}:"
                f" {name[:20]!r}",
                param="alias",
            )

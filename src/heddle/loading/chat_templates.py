"""Makes the chat template of a model, from the settings or from its files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from heddle.errors import ConfigError, HeddleError, ModelFileError
from heddle.folders import user_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.config import EngineConfig
    from heddle.text.chat.template import ChatTemplate
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.sources import Found


def chat_template_of(
    checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig
) -> ChatTemplate | None:
    """The chat template of the settings, else of the checkpoint; None if there is none.

    Raises:
        ConfigError: the settings name a file that cannot be read, or no template, or variables that
            are not a JSON object.
        ModelFileError: the checkpoint's template does not parse.
    """
    from heddle.text.chat.template import ChatTemplate

    variables = _variables(config.chat_template_kwargs)
    path = config.chat_template
    source = _source(path) if path else checkpoint.chat_template
    if source is None:
        return None
    bos, eos = (
        "" if token is None else tokenizer.token_text(token)
        for token in (tokenizer.bos_id, tokenizer.eos_id)
    )
    try:
        return ChatTemplate(source, bos, eos, variables)
    except ModelFileError as error:
        if not path:
            raise
        raise ConfigError(f"--chat-template {path}: {error}", param="chat_template") from None


def answers_of(found: Found) -> Mapping[str, str]:
    """How the model writes calls and reasoning, in words, as `Dialect.described` says it."""
    from heddle.text.chat.template import ChatTemplate
    from heddle.weights.formats import open_checkpoint

    try:
        with open_checkpoint(found.path, found.base) as checkpoint:
            source = checkpoint.chat_template
        if source is None:
            return {"calls": "no chat template"}
        return ChatTemplate(source, "", "").dialect.described()
    except HeddleError as error:
        return {"calls": f"unknown: {error}"}


def _source(path: str) -> str:
    try:
        return user_path(path, "--chat-template").read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--chat-template: cannot read {path!r}: {error}", param="chat_template"
        ) from error


def _variables(text: str) -> dict[str, Any]:
    try:
        variables = json.loads(text or "{}")
    except ValueError:
        variables = None
    if not isinstance(variables, dict):
        raise ConfigError(
            f"--chat-template-kwargs must be a JSON object, got {text!r}",
            param="chat_template_kwargs",
        )
    return variables

"""Fingerprints of everything that determines the pages of a model, and its answers."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from importlib.metadata import version
from typing import TYPE_CHECKING

from heddle.loading.digests import digest_of_files
from heddle.weights.files import FileStamp

if TYPE_CHECKING:
    from heddle.config import EngineConfig
    from heddle.loading.loaded_model import LoadedModel


def pages_fingerprint(model: LoadedModel) -> bytes:
    """32 bytes that are equal only if the same tokens give the same pages, bit for bit.

    They cover all bytes of the model's files, because a finetune may have the name, size and time
    of its parent. The page format covers the program, so the fingerprint covers the program too.

    Raises:
        ModelFileError: a file has changed since it was loaded, so its digest says nothing about the
            weights in memory.
        OSError: a file cannot be read.
    """
    stamps = dict(model.info.stamps)
    if not stamps:
        path = model.info.path
        stamps = {path: FileStamp.of(path.stat())}
    weights = digest_of_files(stamps)
    return hashlib.sha256(f"{weights} {model.executor.page_format}".encode()).digest()


def answers_fingerprint(model: LoadedModel, config: EngineConfig) -> bytes:
    """32 bytes that are equal only if the same request with a seed gets the same tokens.

    They cover what :func:`pages_fingerprint` covers, the version of Heddle, and all settings of the
    engine that change an answer. Engram tables count by name and path, and not by their content.

    Raises: see :func:`pages_fingerprint`.
    """
    settings = (
        version("heddle"),
        (model.shape.context, model.executor.memory.pages, config.max_output_tokens),
        (None if model.template is None else model.template.source, config.chat_template_kwargs),
        sorted(model.sampling_defaults.items()),
        None if model.pooling is None else model.pooling.value,
        [
            (item.name, getattr(one, item.name))
            for one in config.extensions
            for item in fields(one)
            if item.metadata.get("changes_answers") and getattr(one, item.name) != item.default
        ],
    )
    return hashlib.sha256(pages_fingerprint(model) + repr(settings).encode()).digest()

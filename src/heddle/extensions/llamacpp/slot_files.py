"""Saves the prefix of a slot to a file, and brings it back.

Slots own no keys and values: the prefix cache does. So the prefix of a slot is what the cache holds
of the last sequence in the slot. A restore is a request without output: the disk tier finds its
pages in the file, the steps compute the other tokens, and the cache holds all of them afterwards.
Damaged pages cost time and never change an answer.

The engine thread copies a few pages between two steps, and the caller's thread writes them.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from heddle.disk.directory import private_directory
from heddle.disk.page_file import PageFileError, Prefix, scope_of
from heddle.disk.tier import DiskTier
from heddle.errors import (
    EngineClosedError,
    InvalidRequestError,
    ModelPoisonedError,
    SlotFileError,
)
from heddle.extensions.llamacpp.slot_file import SlotFile
from heddle.folders import user_path
from heddle.loading.fingerprint import pages_fingerprint
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS, TokenArray

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from heddle.engine import Engine
    from heddle.engine.loop import EngineLoop
    from heddle.loading.loaded_model import LoadedModel

_PAGES = 4
"""Most pages to copy between two steps. A copy takes at most 0.2 ms."""
_NAME = re.compile(r"[^./\\][^/\\]{0,63}")


def slot_directory(text: str) -> Path:
    """The directory of the setting `slot_save_path`. Makes it, if it is missing.

    Raises:
        ConfigError: it cannot be used, or other users may write to it.
    """
    path = user_path(text, "slot_save_path")
    with private_directory(path, "slot_save_path"):
        return path


def slot_path(directory: Path, name: str) -> Path:
    """The path of a slot file.

    Raises:
        InvalidRequestError: the name is not that of a file in the directory.
    """
    if not (_NAME.fullmatch(name) and name.isprintable()):
        raise InvalidRequestError(
            f"filename must have 1 to 64 printable characters, no slash, and no dot at the"
            f" beginning, got {name[:80]!r}",
            param="filename",
        )
    return directory / name


def save_slot(engine: Engine, slot: int, path: Path, salt: str | None = None) -> tuple[int, int]:
    """Save the prefix of a slot. Returns the number of tokens, and of bytes of the file.

    Raises:
        SlotFileError: the file cannot be written.
        EngineClosedError, ModelPoisonedError: the engine is no longer running.
    """
    model = engine.model
    prefix = _prefix(model, salt)
    try:
        tokens, whole = engine.thread.call(lambda loop: loop.scheduler.prefixes.latest(slot, salt))
        prefix.tokens.extend(tokens)
        with ExitStack() as stack:
            file = SlotFile.create(path.parent, prefix)
            stack.callback(file.discard)
            tier = _tier(model, file)
            stack.callback(tier.close)
            _write_pages(engine, tier, salt, prefix.tokens[:whole])
            if (problem := tier.stats().reason) is not None:
                raise SlotFileError(f"the slot cannot be saved: {problem}")
            file.finish(path)
    except OSError as error:
        raise SlotFileError(f"{path.name} cannot be written: {error.strerror}") from error
    return len(tokens), file.bytes


def _write_pages(engine: Engine, tier: DiskTier, salt: str | None, tokens: TokenArray[int]) -> None:
    """Save the pages of `tokens`, up to the first that has left the cache meanwhile."""
    for first in range(0, len(tokens) // PAGE_TOKENS, _PAGES):

        def copy(loop: EngineLoop, first: int = first) -> int:
            return loop.cache.disk.copy(tier, salt, tokens, first, _PAGES)

        copied = engine.thread.call(copy)
        while tier.work():
            pass
        if copied < _PAGES or tier.stats().reason is not None:
            return


def restore_slot(engine: Engine, slot: int, path: Path, salt: str | None = None) -> tuple[int, int]:
    """Bring the prefix in a file to the cache. Returns the number of its tokens and bytes.

    A request for its tokens runs in the slot.

    Raises:
        InvalidRequestError: the file cannot be read, is damaged, or does not fit this model.
        HeddleError: the engine refuses the request; see `Engine.submit`.
    """
    model = engine.model
    memory = model.executor.memory
    sizes = memory.token_page_bytes, memory.snapshot_bytes
    expected = _prefix(model, salt)
    try:
        file = SlotFile.open(path, expected, model.shape.context, *sizes)
    except (OSError, PageFileError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise _refusal(path, problem) from error
    tokens, size = list(file.prefix.tokens), file.bytes
    with ExitStack() as stack:
        tier = _tier(model, file, engine.thread.wake)
        stack.callback(tier.close)
        engine.thread.call(lambda loop: loop.cache.disk.lend(tier))
        stack.callback(_take_back, engine, tier)
        if tokens:
            engine.complete(tokens, SamplingParams(max_tokens=0, cache_salt=salt, id_slot=slot))
    if tier.stats().errors:
        raise _refusal(path, "a page is damaged; its tokens were computed")
    return len(tokens), size


def _take_back(engine: Engine, tier: DiskTier) -> None:
    # An engine that has ended uses no pages. Perhaps another one has gone on with the request.
    with suppress(EngineClosedError, ModelPoisonedError):
        engine.thread.call(lambda loop: loop.cache.disk.take_back(tier))


def erase_slot(engine: Engine, slot: int, salt: str | None = None) -> int:
    """Drop what only the cache holds of the last request in a slot. Returns how many tokens.

    Raises:
        EngineClosedError, ModelPoisonedError: the engine is no longer running.
    """
    return engine.thread.call(lambda loop: loop.scheduler.prefixes.erase(slot, salt))


def _tier(model: LoadedModel, file: SlotFile, *on_read: Callable[[], None]) -> DiskTier:
    """A disk tier of one file. With `on_read`, its own thread reads pages."""
    memory = model.executor.memory
    return DiskTier(
        file,
        model.executor,
        memory.token_page_bytes,
        file.prefix.fingerprint,
        *on_read,
        threaded=bool(on_read),
        snapshot_bytes=memory.snapshot_bytes,
    )


def _prefix(model: LoadedModel, salt: str | None) -> Prefix:
    """The empty prefix of a model and a salt."""
    try:
        return Prefix(pages_fingerprint(model), scope_of(salt), TokenArray("i"))
    except OSError as error:
        raise SlotFileError(f"the model's file cannot be read: {error.strerror}") from error


def _refusal(path: Path, problem: object) -> InvalidRequestError:
    return InvalidRequestError(f"{path.name} cannot be restored: {problem}", param="filename")

"""Asks the hub what a repository holds, and says in plain words why it refuses."""

from __future__ import annotations

import json
import re
import reprlib
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from heddle.errors import ModelSourceError
from heddle.weights.hub.snapshot import COMMIT, is_commit
from heddle.weights.hub.transfer import HubFile, RefusedError, answer_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from heddle.hub_place import HubPlace
    from heddle.weights.hub.names import HubName

_LARGEST_ANSWER = 16 << 20
"""Most bytes of a list. An entry takes about 300 bytes."""
_LONGEST_ANSWER = 120
"""Most seconds that a list may take to arrive."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, ends of lines, and surrogates, which no file name can have."""
_LONGEST_NAME = 1024
_LOG_IN = "set HF_TOKEN to a token of an account that has access, or run `hf auth login`"


class UnreachableError(ModelSourceError):
    """The hub cannot be reached or fails. What is in the cache is still good."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of one commit of a repository.

    Attributes:
        commit: its 40 hexadecimal digits.
        files: by name.
    """

    commit: str
    files: Mapping[str, HubFile]


def list_files(name: HubName, place: HubPlace) -> Listing:
    """The files of the commit that the revision of `name` is now.

    Raises:
        UnreachableError: the hub cannot be reached or fails.
        ModelSourceError: there is no such repository or revision, no access to it, or the hub's
            answer is not a sound list.
    """
    revision = quote(name.revision, safe="")
    url = f"{place.endpoint}/api/models/{name.repository}/revision/{revision}?blobs=true"
    answer = _Answer(name, place)
    with plain_errors(name, place), answer_of(url) as response:
        raw = answer.read(response)
    return answer.listing(raw)


class _Answer:
    """The hub's answer to a question for a list. Nothing in it is believed until it is checked.

    Commit, digests and names become paths in the cache.
    """

    def __init__(self, name: HubName, place: HubPlace) -> None:
        self._name, self._place = name, place

    def read(self, response: httpx2.Response) -> bytes:
        raw, deadline = bytearray(), time.monotonic() + _LONGEST_ANSWER
        for part in response.iter_raw():
            raw += part
            size, most = len(raw), _LARGEST_ANSWER
            self._check(size <= most, "the answer", size, f"at most {most:,} bytes long")
            if time.monotonic() > deadline:
                raise httpx2.ReadTimeout(f"the list takes longer than {_LONGEST_ANSWER} s")
        return bytes(raw)

    def listing(self, raw: bytes) -> Listing:
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = raw
        self._check(isinstance(answer, dict), "the answer", answer, "a JSON object")
        commit = answer.get("sha")
        self._match(COMMIT, commit, "sha", "a commit of 40 hexadecimal digits")
        revision = self._name.revision
        told = not is_commit(revision) or commit == revision
        self._check(told, "sha", commit, f"the commit that was asked for, {revision}")
        siblings = answer.get("siblings")
        self._check(isinstance(siblings, list), "siblings", siblings, "a list")
        files = [self._file(f"siblings[{i}]", entry) for i, entry in enumerate(siblings)]
        return Listing(commit, {file.name: file for file in files})

    def _file(self, field: str, entry: Any) -> HubFile:
        self._check(isinstance(entry, dict), field, entry, "an object")
        name, size, large = entry.get("rfilename"), entry.get("size"), entry.get("lfs")
        expected = "a relative path without '..' and control characters"
        self._check(_is_path(name), f"{field}.rfilename", name, expected)
        fits = type(size) is int and 0 <= size < 1 << 63
        self._check(fits, f"{field}.size", size, "a number of bytes")
        if large is None:
            digest = entry.get("blobId")
            self._match(COMMIT, digest, f"{field}.blobId", "40 hexadecimal digits")
        else:
            self._check(isinstance(large, dict), f"{field}.lfs", large, "an object")
            digest = large.get("sha256")
            self._match(_SHA256, digest, f"{field}.lfs.sha256", "64 hexadecimal digits")
        return HubFile(name, size, digest)

    def _match(self, pattern: re.Pattern[str], value: Any, field: str, expected: str) -> None:
        matches = isinstance(value, str) and pattern.fullmatch(value) is not None
        self._check(matches, field, value, expected)

    def _check(self, holds: bool, field: str, value: object, expected: str) -> None:
        if not holds:
            raise ModelSourceError(
                f"{self._place.endpoint} gave no sound list of {self._name.repository}'s files:"
                f" {field} must be {expected}, got {reprlib.repr(value)}; check HF_ENDPOINT, or"
                " fetch the model elsewhere and name its path",
                param="model",
            )


def _is_path(name: object) -> bool:
    """Whether a name is a path below the folder of a snapshot."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or _UNPRINTED.search(name):
        return False
    return {"", ".", ".."}.isdisjoint(name.split("/"))


@contextmanager
def plain_errors(name: HubName, place: HubPlace) -> Iterator[None]:
    """Turn errors of the hub's client into errors that say what to do.

    Raises:
        UnreachableError: the hub cannot be reached or fails.
        ModelSourceError: there is no such repository or revision, or no access to it.
    """
    try:
        yield
    except RefusedError as error:
        raise _refusal(error, name, place) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise UnreachableError(
            f"cannot fetch {name.served}: {place.endpoint} cannot be reached"
            f" ({error or type(error).__name__}); check the network, or use a model that is in the"
            " cache (`heddle list`)",
            param="model",
        ) from error


def _refusal(error: RefusedError, name: HubName, place: HubPlace) -> ModelSourceError:
    status, page = error.response.status_code, f"{place.endpoint}/{name.repository}"
    match error.response.headers.get("X-Error-Code"):
        case "GatedRepo":
            problem = f"{page} is gated; ask for access on that page, then {_LOG_IN}"
        case "RevisionNotFound":
            problem = f"{page} has no revision {name.revision!r}; leave it out for the newest"
        case "RepoNotFound":
            problem = f"{page} does not exist, or is private; check the name, or {_LOG_IN}"
        case _ if status in (401, 403):
            problem = f"{page} refuses access (status {status}); {_LOG_IN}"
        case _ if status == httpx2.codes.NOT_FOUND:
            problem = f"{error.response.url} does not exist; check the name and the revision"
        case _:
            return UnreachableError(_failure(error, name, place), param="model")
    return ModelSourceError(f"cannot fetch {name.served}: {problem}", param="model")


def _failure(error: RefusedError, name: HubName, place: HubPlace) -> str:
    status = error.response.status_code
    if status != httpx2.codes.TOO_MANY_REQUESTS:
        return f"cannot fetch {name.served}: {place.endpoint} fails with {status}; try again later"
    wait = error.response.headers.get("Retry-After", "")
    when = f"in {wait} s" if wait.isdecimal() else "later"
    return (
        f"cannot fetch {name.served}: {place.endpoint} gets too many requests from here (429); try"
        f" again {when}, or log in, which raises the limit"
    )

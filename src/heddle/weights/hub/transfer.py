"""Fetches one file of the hub into the cache: resumed where it stopped, and checked.

`huggingface_hub` begins a broken download of an earlier process again. Here a part of a file stays
in the cache as `DIGEST.heddle` and is continued, by this process or a later one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import httpx2
from huggingface_hub import constants, get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers

from heddle.errors import ChecksumError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from threading import Event

    CheckHead: TypeAlias = Callable[[bytes], None]

# The library would ask the hub for a list of agents, and describe this machine in each request.
constants.HF_HUB_DISABLE_TELEMETRY = True

_PAUSES = (1, 2, 4, 8, 16)
"""Seconds before each further attempt. Any byte that arrives begins the count again."""

_LONGEST_PAUSE = 60
_TIMEOUT = 30
_PIECE = 1 << 20
_HEAD = 1 << 16
"""How many of a file's first bytes are checked before the rest arrives."""
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_MOST_REDIRECTS = 10


class StoppedError(Exception):
    """Another file has failed, so this one was given up."""


class RefusedError(Exception):
    """The hub has answered with another status than success. `response` has no body."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(f"{response.url} answers with status {response.status_code}")
        self.response = response


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of one commit.

    Attributes:
        name: path in the repository.
        size: bytes.
        digest: the name of its blob in the cache: the SHA-256 of a large file, the git hash (SHA-1)
            of a small one.
    """

    name: str
    size: int
    digest: str


@contextmanager
def answer_of(url: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx2.Response]:
    """The hub's answer to a GET, after redirects. Its body is not read yet.

    The library would read the body of a redirect or of a refusal, however long, and decompress it.
    Here the bytes are those of the connection, and no other body is read than that of the answer.

    Raises:
        RefusedError: the status is not a success.
        httpx2.HTTPError: the hub cannot be reached, or redirects too often or out of TLS.
    """
    sent = {**build_hf_headers(library_name="heddle"), **(headers or {})}
    sent["Accept-Encoding"] = "identity"  # lengths and ranges are of the file itself
    client = get_session()
    request = client.build_request("GET", url, headers=sent, timeout=_TIMEOUT)
    for _ in range(_MOST_REDIRECTS + 1):
        response = client.send(request, stream=True, follow_redirects=False)
        with closing(response):
            if response.is_success:
                yield response
                return
            if response.next_request is None:
                raise RefusedError(response)
            if request.url.scheme == "https" != response.next_request.url.scheme:
                raise httpx2.RequestError(f"{request.url} redirects out of TLS")
            request = response.next_request
    raise httpx2.TooManyRedirects(f"{url} redirects more than {_MOST_REDIRECTS} times")


def fetch(
    file: HubFile,
    blob: Path,
    source: tuple[str, str, str],
    report: Callable[[int], None],
    stop: Event,
    check_head: CheckHead | None = None,
) -> None:
    """Fetch the file to `blob`, unless it is there.

    Args:
        file: the file to fetch.
        blob: its place in the cache.
        source: the hub's URL, the repository, the commit.
        report: called with the bytes that are there.
        stop: set from elsewhere to end the download.
        check_head: called with the first bytes as soon as they are there. If it raises, the
            download ends, and nothing is kept.

    Raises:
        RefusedError, httpx2.HTTPError: the hub refused, or failed several times in a row.
        ChecksumError: the bytes are not the ones that the hub has promised.
        StoppedError: `stop` was set.
        OSError: the file cannot be stored.
    """
    endpoint, repository, commit = source
    url = hf_hub_url(repository, file.name, revision=commit, endpoint=endpoint)
    with _lock(blob):
        if not blob.exists():
            part = blob.with_name(f"{blob.name}.heddle")
            _Download(file, url, part, report, stop, check_head).run()
            part.replace(blob)
    report(file.size)


@contextmanager
def _lock(blob: Path) -> Iterator[None]:
    """Hold the lock that `huggingface_hub` takes for this blob."""
    folder = blob.parent.parent
    path = folder.parent / ".locks" / folder.name / f"{blob.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:  # closing the file releases the lock
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Download:
    def __init__(
        self,
        file: HubFile,
        url: str,
        part: Path,
        report: Callable[[int], None],
        stop: Event,
        check_head: CheckHead | None,
    ) -> None:
        self._file, self._url, self._part = file, url, part
        self._report, self._stop, self._check_head = report, stop, check_head
        self._digest = self._new_digest()

    def run(self) -> None:
        failures = 0
        with self._part.open("a+b") as out:
            self._take_in(out)
            while out.tell() < self._file.size:
                before = out.tell()
                try:
                    self._receive(out)
                except (RefusedError, httpx2.TransportError) as error:
                    failures = 1 if out.tell() > before else failures + 1
                    self._pause(error, failures)
            out.flush()
            os.fsync(out.fileno())
            self._check(out)

    def _new_digest(self) -> Any:
        if len(self._file.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self._file.size, usedforsecurity=False)

    def _take_in(self, out: BinaryIO) -> None:
        """Begin with the bytes that an earlier process has left."""
        if out.seek(0, os.SEEK_END) > self._file.size:
            out.truncate(0)
        out.seek(0)
        while piece := out.read(_PIECE):
            self._digest.update(piece)
        self._report(out.tell())
        self._look(out)

    def _look(self, out: BinaryIO) -> None:
        """Check the first bytes, once, as soon as they are there."""
        here = out.tell()
        if self._check_head is None or here < min(_HEAD, self._file.size):
            return
        check, self._check_head = self._check_head, None
        out.seek(0)
        head = out.read(_HEAD)
        out.seek(here)
        try:
            check(head)
        except BaseException:
            self._part.unlink()
            raise

    def _receive(self, out: BinaryIO) -> None:
        """Append what is missing."""
        start = out.tell()
        with answer_of(self._url, {"Range": f"bytes={start}-"} if start else None) as response:
            if response.status_code == httpx2.codes.PARTIAL_CONTENT:
                _check_range(response, start)
            elif start:
                out.seek(0)  # the server ignores ranges
                out.truncate()
                self._digest = self._new_digest()
            for piece in response.iter_raw():  # as they arrive: a cut loses none
                if self._stop.is_set():
                    raise StoppedError
                out.write(piece)
                self._digest.update(piece)
                if out.tell() > self._file.size:
                    return  # `_check` refuses it
                self._report(out.tell())
                self._look(out)
        if out.tell() < self._file.size:
            raise httpx2.ReadError(f"the connection ended at byte {out.tell():,}")

    def _pause(self, error: Exception, failures: int) -> None:
        """Wait before the next attempt. Raises `error` if there is none."""
        seconds = 0.0
        if isinstance(error, RefusedError):
            if error.response.status_code not in _TRANSIENT:
                raise error
            asked = error.response.headers.get("Retry-After", "")
            seconds = float(asked) if asked.isdecimal() else 0.0
        if failures > len(_PAUSES) or seconds > _LONGEST_PAUSE:
            raise error
        if self._stop.wait(max(seconds, _PAUSES[failures - 1])):
            raise StoppedError

    def _check(self, out: BinaryIO) -> None:
        found = self._digest.hexdigest()
        if out.tell() != self._file.size or found != self._file.digest:
            self._part.unlink()
            raise ChecksumError(
                f"{self._url}: {out.tell():,} bytes with the digest {found} arrived, not"
                f" {self._file.size:,} bytes with {self._file.digest}; they were deleted, try"
                " again",
                param="model",
            )


def _check_range(response: httpx2.Response, start: int) -> None:
    """
    Raises:
        httpx2.RemoteProtocolError: the answer holds another part of the file than its rest.
    """
    told = response.headers.get("Content-Range", "")
    if not told.startswith(f"bytes {start}-"):
        raise httpx2.RemoteProtocolError(
            f"the answer has Content-Range {told[:80]!r}, and was asked for bytes from {start:,}"
        )

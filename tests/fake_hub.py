"""A small hub on loopback, in the shape of huggingface.co, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import huggingface_hub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LARGE = 1 << 10
"""Files from this size on are stored by their SHA-256, as large files are on the hub."""


@dataclass
class Repository:
    """One repository: files by commit, and what its branches are."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    card: dict[str, object] = field(default_factory=dict)
    needs_token: str | None = None
    is_gated: bool = False

    @classmethod
    def of(cls, files: Mapping[str, bytes], **more: Any) -> Repository:
        """A repository of one commit."""
        return cls({commit("1"): dict(files)}, {"main": commit("1")}, **more)


@dataclass
class Reply:
    """A fault: a status, wrong headers, another body, or a connection cut after `cut` bytes."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    body: Callable[[bytes], bytes] = bytes


@dataclass
class FakeHub:
    """Repositories, faults, and the requests so far.

    Attributes:
        faults: replies by the end of a path; each is given once, in order.
        requests: method, path and Range header of each.
        before: called with each path before it is answered.
        described: what the answer to a question for a list says, by what is true.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: dict[str, list[Reply]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str], None] = lambda path: None
    ranges: bool = True
    described: Callable[[dict[str, Any]], object] = lambda true: true

    def fault(self, path: str) -> Reply | None:
        for end, replies in self.faults.items():
            if path.endswith(end) and replies:
                return replies.pop(0)
        return None

    def fetched(self) -> list[str]:
        """Names of the files that were asked for, in order."""
        return [path.split("/", 5)[5] for path, _ in self.requests if "/resolve/" in path]


def commit(digit: str) -> str:
    """A commit's digits."""
    return digit * 40


def blob_of(content: bytes) -> str:
    """The digest that names a file."""
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub that serves until the end of the block."""
    hub = FakeHub()

    class Handler(_Handler):
        state = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield hub
        finally:
            huggingface_hub.close_session()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: FakeHub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.state.requests.append((path, self.headers.get("Range", "")))
        self.state.before(path)
        fault = self.state.fault(path)
        if fault is not None and fault.status is not None:
            return self._answer(fault.status, fault.body(b""), fault.headers)
        if path.startswith("/api/models/"):
            return self._describe(path)
        assert "/resolve/" in path, path
        return self._send_file(path, fault)

    def _repository(self, name: str) -> Repository | None:
        """The repository, if the request may know of it. Answers if not."""
        found = self.state.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if found is None or (found.needs_token is not None and token != found.needs_token):
            status = 404 if token else 401
            self._answer(status, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        return found

    def _describe(self, path: str) -> None:
        name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        found = self._repository(name)
        if found is None:
            return
        at = found.branches.get(revision or "main", revision)
        if at not in found.commits:
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [_sibling(file, content) for file, content in found.commits[at].items()]
        described = {"id": name, "sha": at, "siblings": siblings, "cardData": found.card}
        told = self.state.described(described)
        self._answer(200, told if isinstance(told, bytes) else json.dumps(told).encode())

    def _send_file(self, path: str, fault: Reply | None) -> None:
        _, organisation, short, _, at, file = path.split("/", 5)
        found = self._repository(f"{organisation}/{short}")
        if found is None:
            return
        if found.is_gated:
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
            return
        content = found.commits[at].get(file)
        if content is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        start = 0
        if self.state.ranges and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        content = fault.body(content) if fault else content
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        headers = (headers if start else {}) | (fault.headers if fault else {})
        self._answer(206 if start else 200, content[start:], headers, fault.cut if fault else None)

    def _answer(
        self, status: int, body: bytes, headers: Mapping[str, str] = {}, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])

    def log_message(self, *args: object) -> None:
        """Write nothing."""


def _sibling(name: str, content: bytes) -> dict[str, object]:
    digest = blob_of(content)
    entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": digest[:40]}
    if len(content) >= LARGE:
        entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
    return entry

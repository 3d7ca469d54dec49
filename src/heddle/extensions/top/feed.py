"""The events of a server: a thread reads them, and connects again if the server goes away."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from http.client import HTTPException
from queue import Queue
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from heddle.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SILENCE_SECONDS = 10.0
"""A server sends something each second."""
_PAUSE_SECONDS = 1.0
_QUEUED = 1000


@dataclass(frozen=True, slots=True)
class Loss:
    """The connection ended. `reason` says why, in a sentence."""

    reason: str


Event = tuple[str, Any] | Loss


class Feed:
    """The events of one server.

    Attributes:
        events: those that nobody has taken yet.
    """

    def __init__(self, url: str, key: str | None) -> None:
        """Connect.

        Raises:
            PeerError: no server answers there, or it refuses.
        """
        self._url, self._key = url, key
        self.events: Queue[Event] = Queue(_QUEUED)
        self._ended = threading.Event()
        first = self._connect()
        threading.Thread(target=self._read, args=(first,), name="heddle-top", daemon=True).start()

    def close(self) -> None:
        """Let the thread end. It does not connect again."""
        self._ended.set()

    def _connect(self) -> Any:
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            request = Request(f"{self._url}/v1/engine/events", headers=headers)
            return urlopen(request, timeout=_SILENCE_SECONDS)
        except HTTPError as error:
            raise PeerError(_refusal(self._url, error)) from error
        except (OSError, HTTPException, ValueError) as error:
            cause = getattr(error, "reason", error)
            reason = getattr(cause, "strerror", None) or cause
            raise PeerError(
                f"no server answers at {self._url}: {reason}. Start one with `heddle serve`,"
                " or name its URL"
            ) from error

    def _read(self, response: Any) -> None:
        while not self._ended.is_set():
            reason = "the server ended the events"
            try:
                if response is None:
                    response = self._connect()
                with response:
                    self._pass_on(response)
            except PeerError as error:
                reason = error.message
            except (OSError, HTTPException, ValueError) as error:
                reason = f"the connection failed: {error}"
            response = None
            self.events.put(Loss(reason))
            self._ended.wait(_PAUSE_SECONDS)

    def _pass_on(self, response: Any) -> None:
        for event in _events(response):
            self.events.put(event)
            if self._ended.is_set():
                return


def _events(lines: Any) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        if line.startswith(b"event: "):
            name = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


def _refusal(url: str, error: HTTPError) -> str:
    try:
        says = json.loads(error.read())["error"]["message"]
    except (OSError, ValueError, TypeError, KeyError):
        says = error.reason
    if error.code in (401, 403):
        return f"{url} refuses: {says}. Name a key with --key or HEDDLE_PEER_KEY."
    if error.code == 404:
        return f"{url} has no route /v1/engine/events. `heddle top` needs a server of Heddle."
    return f"{url} refuses ({error.code}): {says}"

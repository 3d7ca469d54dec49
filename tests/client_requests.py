"""Requests of programs, which are committed as data with the outcome that they have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from heddle.server.http.hints import HEADER

if TYPE_CHECKING:
    from pathlib import Path

    import httpx


def clients_in(folder: Path) -> list[dict[str, Any]]:
    """The programs of a folder's files, in the order of the files' names."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


def requests_of(clients: list[dict[str, Any]]) -> list[Any]:
    """The requests of all programs, as parameters of a test."""
    return [
        pytest.param(request, id=f"{client['client']} {request['what']}")
        for client in clients
        for request in client["requests"]
    ]


def ignored_in(response: httpx.Response) -> list[str]:
    """The fields that an answer names as ignored, sorted."""
    told = response.headers.get(HEADER)
    return sorted(told.split(", ") if told else [])

"""Fixtures of the tests on the default model."""

from __future__ import annotations

import pytest

from heddle.scheduler.pace import Pace


@pytest.fixture
def costless_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pace say that guesses cost nothing, so that steps compute all of them."""
    monkeypatch.setattr(Pace, "guess_seconds", lambda *_: 1.0)

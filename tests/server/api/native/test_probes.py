"""The health routes for supervisors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle.engine import Engine
from heddle.engine.health import Health, HealthState, Poison

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

POISON = Poison("step 3 failed: no device")


@pytest.mark.parametrize("spelling", ["", "/v1"])
@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (Health(HealthState.OK), 200, 200),
        (Health(HealthState.POISONED, POISON), 200, 503),
        (Health(HealthState.STUCK), 200, 503),
        (Health(HealthState.STUCK, live=False), 503, 503),
        (Health(HealthState.CLOSED), 200, 503),
    ],
)
def test_probes_need_no_key_and_tell_the_state(
    serve: Callable[..., Running], monkeypatch, spelling: str, health: Health, live, ready
) -> None:
    server = serve(api_key=("secret",))
    monkeypatch.setattr(Engine, "health", property(lambda engine: health))
    for path, status in (("live", live), ("ready", ready)):
        assert server.get(f"{spelling}/health/{path}").status_code == status
    assert server.get("/health/ready").json() == {"status": health.state.value}


def test_a_real_failure_turns_ready_off_but_not_live(serve: Callable[..., Running]) -> None:
    server = serve()
    assert server.get("/health/ready").json() == {"status": "ok"}

    def fail(step: int) -> None:
        raise RuntimeError("boom")

    server.executor.before_step = fail
    assert server.post("/v1/completions", {"prompt": "hello"}).status_code == 500
    assert server.get("/health/ready").json() == {"status": "poisoned"}
    assert server.get("/health/live").json() == {"status": "ok"}

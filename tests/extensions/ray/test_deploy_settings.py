"""Settings of a deployment, and the log of its processes."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from heddle.errors import ConfigError
from heddle.extensions.ray.app import scale
from heddle.extensions.ray.config import DeployConfig
from heddle.extensions.ray.logs import log_as_serve


@pytest.mark.parametrize(
    ("settings", "param", "text"),
    [
        ({"replicas": 0}, "most_replicas", "Set most_replicas"),
        ({"replicas": 3, "most_replicas": 2}, "most_replicas", "most_replicas is 2, and replicas"),
        ({"replicas": 0, "most_replicas": 2, "waiting": 0}, "waiting", "Raise waiting"),
    ],
)
def test_settings_that_do_not_fit_together(settings: Any, param: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        DeployConfig(**settings)
    assert error.value.param == param


def test_a_fixed_number_of_replicas() -> None:
    assert scale(DeployConfig(replicas=3)) == {"num_replicas": 3}


def test_bounds_of_the_number_of_replicas() -> None:
    settings = {"queue_seconds": 3.0, "shrink_seconds": 40.0, "idle_seconds": 50.0}
    config = scale(DeployConfig(replicas=2, most_replicas=5, **settings))["autoscaling_config"]
    assert (config["min_replicas"], config["max_replicas"]) == (2, 5)
    assert config["initial_replicas"] is None
    assert (config["upscale_delay_s"], config["downscale_delay_s"]) == (3.0, 40.0)
    assert config["policy"]["policy_kwargs"] == {"queue_seconds": 3.0, "idle_seconds": 50.0}


def test_the_first_replica_loads_the_models_even_if_none_is_needed() -> None:
    config = scale(DeployConfig(replicas=0, most_replicas=1))["autoscaling_config"]
    assert (config["min_replicas"], config["initial_replicas"]) == (0, 1)


def test_lines_go_where_serve_writes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    lines: list[str] = []
    own, serves = logging.getLogger("heddle"), logging.getLogger("ray.serve")
    monkeypatch.setattr(serves, "handlers", [Kept()])
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(own, name, getattr(own, name))
    level = own.level
    try:
        log_as_serve("warning")
        logging.getLogger("heddle.extensions.ray").info("not this")
        logging.getLogger("heddle.extensions.ray").warning("but this")
    finally:
        own.setLevel(level)
    assert lines == ["but this"]

"""The files of deploy/, as their tests read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
END_SECONDS = 4
"""Seconds in which a server ends what is left after --drain (server/http/process.py)."""


def objects(name: str) -> dict[tuple[str, str], Any]:
    """The objects of a manifest by kind and name."""
    text = (DEPLOY / "kubernetes" / name).read_text("utf-8")
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def container() -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of the servers, and its container."""
    pod = objects("deployment.yaml")["Deployment", "heddle"]["spec"]["template"]["spec"]
    [server] = pod["containers"]
    return pod, server


def compose() -> dict[str, Any]:
    """The services of the compose file by name."""
    content = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text("utf-8"))
    services: dict[str, Any] = content["services"]
    return services

"""The files of deploy/ agree with the program and with one another."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest
import yaml

from configs import server_config
from deployed import DEPLOY, END_SECONDS, compose, container, objects
from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError
from heddle.server.http.listener import bind
from heddle.settings import settings
from heddle.state import PAGE_TOKENS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fake_server import Running


def options() -> dict[str, str]:
    """The options of the server in the Deployment."""
    given = (arg.partition("=") for arg in container()[1]["args"] if arg.startswith("--"))
    return {name: value for name, _, value in given}


def test_options_are_those_of_heddle_serve() -> None:
    known = {
        one.option: one
        for config in (EngineConfig, RegistryConfig, ServerConfig)
        for one in settings(config)
    }
    for name, text in options().items():
        known[name].parse(text, name)
    config = server_config(metric_names=options()["--metric-names"])
    with pytest.raises(ConfigError, match="metric_names must be one of"):
        server_config(metric_names=options()["--metric-names"] + "s")
    assert config
    command = compose()["heddle-1"]["command"]
    assert {one for one in command if one.startswith("--")} <= known.keys()


def test_a_server_is_not_killed_while_it_drains() -> None:
    pod, server = container()
    waits = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = int(options()["--drain"])
    assert pod["terminationGracePeriodSeconds"] > waits + drain + END_SECONDS
    service = compose()["heddle-2"]
    drain = int(service["command"][service["command"].index("--drain") + 1])
    assert int(service["stop_grace_period"].removesuffix("s")) > drain + END_SECONDS


def test_probes_are_routes(shared: Running) -> None:
    server = container()[1]
    paths = {
        server[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")
    }
    assert paths == {"/health/ready", "/health/live"}
    assert all(shared.get(path).status_code == 200 for path in paths)


def test_ports_agree() -> None:
    ports = {one["name"]: one["containerPort"] for one in container()[1]["ports"]}
    given = options()
    assert ports == {
        "http": int(given["--port"]),
        "kv-events": int(given["--kv-events"].rpartition(":")[2]),
        "kv-replay": int(given["--kv-events-replay"].rpartition(":")[2]),
    }
    pool = objects("inference-pool.yaml")
    spec = pool["InferencePool", "heddle"]["spec"]
    assert spec["targetPorts"] == [{"number": ports["http"]}]
    labels = objects("deployment.yaml")["Deployment", "heddle"]["spec"]["template"]["metadata"][
        "labels"
    ]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    picker = pool["Service", spec["endpointPickerRef"]["name"]]
    assert spec["endpointPickerRef"]["port"]["number"] in {
        one["port"] for one in picker["spec"]["ports"]
    }
    config = yaml.safe_load(pool["ConfigMap", "heddle-epp"]["data"]["config.yaml"])
    plugins = {one["type"]: one.get("parameters") for one in config["plugins"]}
    precise = plugins["precise-prefix-cache-producer"]
    assert precise["tokenProcessorConfig"]["blockSizeTokens"] == PAGE_TOKENS
    discovery = precise["kvEventsConfig"]["podDiscoveryConfig"]
    assert discovery["socketPort"] == ports["kv-events"]
    assert discovery["replaySocketPort"] == ports["kv-replay"]
    used = {one["pluginRef"] for one in config["schedulingProfiles"][0]["plugins"]}
    assert used <= plugins.keys()


def test_the_manifest_of_ray_runs_the_application() -> None:
    spec = objects("kuberay.yaml")["RayService", "heddle"]["spec"]
    [app] = yaml.safe_load(spec["serveConfigV2"])["applications"]
    assert app["import_path"] == "heddle.deploy:app"
    assert {"model", "replicas"} <= app["args"].keys()


# --- nginx ---------------------------------------------------------------------------------------

NGINX = shutil.which("nginx")


@pytest.fixture
def nginx(serve: Callable[..., Running], tmp_path: Path) -> Iterator[tuple[str, list[Running]]]:
    """nginx with the settings of deploy/compose before two servers: its URL, and the servers."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    servers = [serve(drain=60) for _ in range(2)]
    with bind(ServerConfig(port=0)) as free:
        port = free.getsockname()[1]
    text = (DEPLOY / "compose" / "nginx.conf").read_text("utf-8")
    for number, server in enumerate(servers, 1):
        text = text.replace(f"heddle-{number}:8080", f"127.0.0.1:{server.address[1]}")
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    own = f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; daemon off; master_process off;\n"
    text = own + re.sub(
        r"^http \{", f"http {{\n access_log {tmp_path}/access.log;", text, flags=re.M
    )
    for place in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
        text = text.replace("http {\n", f"http {{\n {place}_temp_path {tmp_path}/{place};\n", 1)
    (tmp_path / "nginx.conf").write_text(text)
    command = [NGINX, "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path)]
    tested = subprocess.run(
        [*command, "-t"], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert tested.returncode == 0, tested.stderr
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([*command, "-e", str(tmp_path / "error.log")]) as process:
        try:
            servers[0].until(lambda: answers(url))
            yield url, servers
        finally:
            process.terminate()
            process.wait(PATIENCE)


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/health/ready", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


BODY = {"prompt": "abc", "max_tokens": 6, "ignore_eos": True, "stream": True, "seed": 1}


def test_nginx_passes_tokens_at_once_and_keeps_a_session_at_its_server(
    nginx: tuple[str, list[Running]],
) -> None:
    url, servers = nginx
    counts = []
    for session in "aaabbb":
        with httpx.stream(
            "POST", url + "/v1/completions", json=BODY, headers={"x-session-id": session}
        ) as answer:
            assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
        counts.append(tuple(sum(one.engine.snapshot().finished.values()) for one in servers))
    assert {
        counts[2],
        tuple(after - before for after, before in zip(counts[5], counts[2], strict=True)),
    } <= {
        (3, 0),
        (0, 3),
    }


def test_a_token_does_not_wait_in_nginx(nginx: tuple[str, list[Running]]) -> None:
    url, servers = nginx
    steps = []

    def stop(step: int) -> None:
        steps.append(step)
        if step == 2:
            for one in servers:
                one.executor.gate.clear()

    for one in servers:
        one.executor.before_step = stop
    with httpx.stream("POST", url + "/v1/completions", json=BODY, timeout=PATIENCE) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert next(lines).startswith("data: {")  # while the server still computes
        for one in servers:
            one.executor.gate.set()
        assert [*lines][-1] == "data: [DONE]"


def test_a_request_to_a_server_that_stops_goes_to_the_other(
    nginx: tuple[str, list[Running]],
) -> None:
    url, (one, _) = nginx
    session = next(name for name in map(str, range(99)) if goes_to(url, one, name))
    one.executor.gate.clear()
    with httpx.stream("POST", one.url + "/v1/completions", json=BODY, timeout=PATIENCE) as running:
        one.server.handle_exit(15, None)
        one.until(lambda: one.get("/health/ready").status_code == 503)
        answer = httpx.post(
            url + "/v1/completions",
            json=BODY | {"stream": False},
            headers={"x-session-id": session},
            timeout=PATIENCE,
        )
        assert answer.status_code == 200
        one.executor.gate.set()
        assert "[DONE]" in running.read().decode()


def goes_to(url: str, server: Running, session: str) -> bool:
    before = sum(server.engine.snapshot().finished.values())
    body = BODY | {"stream": False}
    httpx.post(url + "/v1/completions", json=body, headers={"x-session-id": session})
    return sum(server.engine.snapshot().finished.values()) > before


def test_routes_that_change_one_server_are_closed(nginx: tuple[str, list[Running]]) -> None:
    url, _ = nginx
    for path in ("/models/load", "/models/unload", "/v1/prefix_cache", "/slots/0"):
        assert httpx.post(url + path, json={}).status_code == 403

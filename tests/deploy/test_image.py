"""The Dockerfiles: how they are read, and what their images must have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deployed import DEPLOY, END_SECONDS, compose, container
from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.settings import settings
from run_image import Builder, Stage, size_mb, stages_of

if TYPE_CHECKING:
    from fake_server import Running

ROOT = DEPLOY.parent
FILES = ("Dockerfile", "Dockerfile.cuda")

TEXT = r"""
# A comment.
FROM debian:trixie-slim AS build
RUN one \
    # a comment inside
    && two
FROM debian:trixie-slim
ENV A=1 B='2 3' \
    C=4
ENV D=5
COPY --from=build /opt /opt
ENTRYPOINT ["heddle"]
CMD ["serve", "--port=1"]
HEALTHCHECK --interval=5s CMD ["true", "x"]
"""


@pytest.fixture(params=FILES)
def stages(request: pytest.FixtureRequest) -> list[Stage]:
    return stages_of((DEPLOY / request.param).read_text("utf-8"))


def test_how_a_dockerfile_is_read() -> None:
    build, last = stages_of(TEXT)
    assert (build.base, build.name, build.steps) == (
        "debian:trixie-slim",
        "build",
        [("RUN", "one && two")],
    )
    assert last.environment() == {"A": "1", "B": "2 3", "C": "4", "D": "5"}
    assert last.command() == ["heddle", "serve", "--port=1"]
    assert last.health_check() == ["true", "x"]
    assert last.last("USER") is None
    with pytest.raises(ValueError, match="RUN stands before FROM"):
        stages_of("RUN one")


def test_an_image_is_not_root_and_has_a_volume(stages: list[Stage]) -> None:
    build, last = stages
    assert build.name == "build"
    assert last.last("USER") == "1000"
    assert last.last("VOLUME") == "/models"
    assert last.environment()["HEDDLE_HOME"] == "/models"
    assert last.environment()["PYTHONDONTWRITEBYTECODE"] == "1"
    assert last.command() == ["heddle", "serve"]  # no shell, which would keep SIGTERM


def test_settings_of_an_image_exist(stages: list[Stage]) -> None:
    known = {
        one.variable: one
        for config in (EngineConfig, RegistryConfig, ServerConfig)
        for one in settings(config)
    }
    for name, text in stages[-1].environment().items():
        if name.startswith("HEDDLE_") and name != "HEDDLE_HOME":
            known[name].parse(text, name)


def test_the_health_check_of_an_image_is_a_route(
    stages: list[Stage], shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_PORT", str(shared.address[1]))
    program, option, code = stages[-1].health_check()
    assert (program, option) == ("python", "-c")
    exec(code, {})
    monkeypatch.setenv("HEDDLE_PORT", "1")
    with pytest.raises(OSError, match="refused"):
        exec(code, {})


def test_who_runs_the_image_gives_it_a_place_to_write() -> None:
    pod, server = container()
    confined = server["securityContext"]
    assert confined["readOnlyRootFilesystem"] and not confined["allowPrivilegeEscalation"]
    assert {one["mountPath"] for one in server["volumeMounts"]} == {"/models", "/tmp"}
    assert pod["securityContext"]["runAsUser"] == 1000
    services = {name: one for name, one in compose().items() if name != "nginx"}
    assert set(services) == {"models", "heddle-1", "heddle-2"}
    for service in services.values():
        assert service["read_only"]
        assert (service["tmpfs"], service["volumes"]) == (["/tmp"], ["models:/models"])
    pulled, served = services["models"]["command"], services["heddle-1"]["command"]
    assert (pulled[0], served[0], pulled[1]) == ("pull", "serve", served[1])
    waits = services["heddle-1"]["depends_on"]["models"]["condition"]
    assert waits == "service_completed_successfully"
    stop = int(services["heddle-1"]["stop_grace_period"].removesuffix("s"))
    [build, last] = stages_of((DEPLOY / "Dockerfile").read_text("utf-8"))
    assert stop > int(last.environment()["HEDDLE_DRAIN"]) + END_SECONDS
    assert build.base == last.base


def test_the_context_of_a_build_is_what_the_package_is_made_of() -> None:
    files = {str(file.relative_to(ROOT)) for file in Builder(Path(), ROOT).context()}
    assert files >= {
        "pyproject.toml",
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "native/bindings.cpp",
        "src/heddle/__init__.py",
    }
    assert not [file for file in files if file.endswith((".so", ".pyc")) or "tests" in file]


def test_the_size_of_an_image_counts_a_file_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(3_000_000))
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to("a")
    assert size_mb(tmp_path) == pytest.approx(3.0, abs=0.01)

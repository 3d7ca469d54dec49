"""The files that GitHub and pre-commit read: they parse, and run the checks of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = [
    *sorted((ROOT / ".github").rglob("*.yml")),
    ROOT / ".pre-commit-config.yaml",
    ROOT / "mkdocs.yml",
]


def content(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_yaml(path: Path) -> None:
    assert isinstance(content(path), dict)


def test_the_workflow_runs_all_checks_last() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (job,) = yaml.safe_load(text)["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    named = re.findall(r"hashFiles\('(.+?)'\)|cache-dependency-path: (\S+)", text)
    assert named
    assert all((ROOT / (one or other)).is_file() for one, other in named)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_are_what_github_reads() -> None:
    pytest.importorskip("check_jsonschema")
    schema = ["--builtin-schema", "vendor.github-workflows"]
    command = [sys.executable, "-m", "check_jsonschema", *schema, *map(str, WORKFLOWS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_may_and_names(path: Path) -> None:
    """No rights but those that a job names, and no job after one that there is not."""
    found = content(path)
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        needs = job.get("needs", [])
        assert {needs} if isinstance(needs, str) else set(needs) <= found["jobs"].keys()
        assert job["timeout-minutes"] <= 360
        for step in job["steps"]:
            # A name of a branch or of a tag is a text of others: a shell gets it by a variable.
            assert "${{" not in step.get("run", "")
            scripts = re.findall(r"\b(?:scripts|benchmarks)/[\w.]+", step.get("run", ""))
            assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_only_the_tag_of_a_release_is_published() -> None:
    jobs = content(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    for name, job in jobs.items():
        publishes = name in {"pypi", "github", "image"}
        assert (job.get("if") == "github.event_name == 'push'") == publishes
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_has_distinct_ids(name: str) -> None:
    body = content(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml")["body"]
    ids = [part["id"] for part in body if part["type"] != "markdown"]
    assert ids
    assert len(set(ids)) == len(ids)


def test_pre_commit_runs_what_lint_runs() -> None:
    (repository,) = content(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = {hook["entry"] for hook in repository["hooks"]}
    script = (ROOT / "scripts" / "lint.sh").read_text("utf-8")
    checks = re.findall(r"^(?:mypy|python scripts/).*$", script, re.M)
    assert checks
    assert set(checks) <= hooks

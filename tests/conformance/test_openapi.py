"""The API agrees with its OpenAPI description: no 500, and no answer that is not described.

schemathesis makes good and bad requests from the description, for every route, and checks the
answers against it. To search longer, by hand, on any server:

    schemathesis --config-file tests/conformance/schemathesis.toml \\
        run http://127.0.0.1:8080/openapi.json --max-examples 1000
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from fake_server import run_server
from heddle.config import ServerConfig
from live_server import ELSEWHERE, KEYS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = Path(__file__).with_name("schemathesis.toml")
HEADERS = {"authorization": f"Bearer {KEYS[0]}"}
EXAMPLES = 2 if ELSEWHERE else 10
"""Random requests for each route, beside those for the edges of each field."""
WORKERS = 3 if ELSEWHERE else 1
"""Routes that are searched at once: several, where the search waits for a model."""


def without_long_lists(schema: Any) -> Any:
    """A description without bounds whose other side takes seconds to make and megabytes to send."""
    if isinstance(schema, dict):
        return {
            name: without_long_lists(value)
            for name, value in schema.items()
            if not (name == "maxItems" and value > 100)
        }
    return [without_long_lists(value) for value in schema] if isinstance(schema, list) else schema


def resolved(schema: Any, components: Any) -> Any:
    """A schema with its components in place of references to them, and without words."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return resolved(components[schema["$ref"].rpartition("/")[2]], components)
        words = ("title", "description")
        return {
            name: resolved(one, components)
            for name, one in schema.items()
            if not (name in words and isinstance(one, str))
        }
    return [resolved(one, components) for one in schema] if isinstance(schema, list) else schema


def without_repetitions(description: Any) -> Any:
    """A description in which each field is in one body only, the first that has it.

    150 fields of generation are the same in six routes, and one class validates them; so are
    messages and tools. The search would send the edges of each field to each route: 17,000
    requests. A field that a route requires stays there.
    """
    components = description["components"]["schemas"]
    operations = [one for path in description["paths"].values() for one in path.values()]
    bodies = [one["requestBody"]["content"] for one in operations if "requestBody" in one]
    objects = [("", body["application/json"]["schema"]) for body in bodies]
    objects += [(name.rpartition(".")[2], schema) for name, schema in components.items()]
    known, repeated = set(), []
    for owner, schema in objects:
        for name, field in schema.get("properties", {}).items():
            key = json.dumps([owner, name, resolved(field, components)])
            if key in known and name not in schema.get("required", ()):
                repeated.append((schema["properties"], name))
            known.add(key)
    for properties, name in repeated:
        del properties[name]
    return description


def without_options(description: Any) -> Any:
    """A description in which bodies have the fields that a route requires, and `stream`.

    It is for a deployment: that passes bodies on as they are, and a model computes each answer.
    """
    components = description["components"]["schemas"]
    operations = [one for path in description["paths"].values() for one in path.values()]
    bodies = [one["requestBody"]["content"] for one in operations if "requestBody" in one]
    for schema in [*components.values(), *(body["application/json"]["schema"] for body in bodies)]:
        kept = (*schema.get("required", ()), "stream")
        if "properties" in schema:
            fields = schema["properties"].items()
            schema["properties"] = {name: field for name, field in fields if name in kept}
    return description


@contextmanager
def served() -> Iterator[str]:
    """URL of a server with a fake model, or of the one that is there."""
    if ELSEWHERE:
        yield ELSEWHERE
        return
    server = ServerConfig(port=0, api_key=KEYS)
    # It never runs dry: a body may ask for 128 choices. And no answer is long.
    with run_server(server, slots=4, queue=500, context=64, bos_id=1) as running:
        yield running.url


def test_every_answer_is_described(tmp_path: Path) -> None:
    with served() as url:
        shown = httpx.get(f"{url}/openapi.json", headers=HEADERS, timeout=PATIENCE).json()
        searched = without_repetitions(without_long_lists(shown))
        description = tmp_path / "openapi.json"
        description.write_text(json.dumps(without_options(searched) if ELSEWHERE else searched))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", SETTINGS),
                *("run", description, "--url", url),
                *("--header", f"Authorization: {HEADERS['authorization']}"),
                *("--max-examples", str(EXAMPLES), "--workers", str(WORKERS)),
                *("--generation-deterministic", "--no-color"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,  # where it leaves its cache
        )
    assert done.returncode == 0, done.stdout + done.stderr

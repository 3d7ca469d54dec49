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
from pathlib import Path
from typing import Any

from fake_server import run_server
from heddle.config import ServerConfig

SETTINGS = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = 10
"""Random requests for each route, beside those for the edges of each field."""


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


def test_every_answer_is_described(tmp_path: Path) -> None:
    server = ServerConfig(port=0, api_key=("sk-1",))
    # It never runs dry: a body may ask for 128 choices. And no answer is long.
    with run_server(server, slots=4, queue=500, context=64, bos_id=1) as running:
        shown = running.get("/openapi.json", headers={"x-api-key": "sk-1"}).json()
        description = tmp_path / "openapi.json"
        description.write_text(json.dumps(without_repetitions(without_long_lists(shown))))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", SETTINGS),
                *(
                    "run",
                    description,
                    "--url",
                    running.url,
                    "--header",
                    "Authorization: Bearer sk-1",
                ),
                *("--max-examples", str(EXAMPLES), "--generation-deterministic", "--no-color"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,  # where it leaves its cache
        )
    assert done.returncode == 0, done.stdout + done.stderr

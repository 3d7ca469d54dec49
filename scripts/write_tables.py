"""Writes the tables in docs/ that are made from tables of the program.

    python scripts/write_tables.py [--check]

The sampling parameters go to docs/reference/sampling.md, the fields of vendors to fields.md beside
it, the settings to settings.md, the metrics to metrics.md, the models of the hub to models.md, and
the first sentence of each source file to files.md. With --check it writes nothing, and exits with 1
if a page is out of date.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import sys
from enum import Enum
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import served_models
from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.doors import extensions, refer
from heddle.extensions.metrics import table, vllm_names
from heddle.parameters import Api
from heddle.sampling_params import all_parameters
from heddle.server.generate.vendor_fields.row import Outcome
from heddle.server.generate.vendor_fields.table import VENDORS
from heddle.settings import GROUPS
from heddle.settings import settings as settings_of
from heddle.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from heddle.parameters import Parameter
    from heddle.server.generate.vendor_fields.row import Row
    from heddle.settings import Setting

TOP = Path(__file__).parent.parent
REFERENCE = TOP / "docs" / "reference"
CONFIGS = EngineConfig, RegistryConfig, ServerConfig

ROUTES = {
    Api.CHAT: "chat/completions",
    Api.COMPLETIONS: "completions",
    Api.RESPONSES: "responses",
    Api.LLAMACPP: "completion, infill",
    Api.MESSAGES: "messages",
    Api.COUNT: "count_tokens",
    Api.EMBEDDINGS: "embeddings",
    Api.EMBEDDING: "embedding",
    Api.RERANK: "rerank",
    Api.SCORE: "score",
    Api.CLASSIFY: "classify",
    Api.POOLING: "pooling",
    Api.COHERE_EMBED: "embed",
    Api.TOKENIZE: "tokenize",
    Api.DETOKENIZE: "detokenize",
    Api.APPLY_TEMPLATE: "apply-template",
    Api.OLLAMA_CHAT: "chat",
    Api.OLLAMA_GENERATE: "generate",
    Api.OLLAMA_EMBED: "embed",
    Api.OLLAMA_EMBEDDINGS: "api/embeddings",
    Api.OLLAMA_SHOW: "show",
    Api.OLLAMA_PULL: "pull",
    Api.OLLAMA_DELETE: "delete",
}
"""The routes of the APIs, as the tables name them."""


def written(page: str, name: str, lines: Sequence[str]) -> str:
    """The page with `lines` between the two comments of the table `name`."""
    begin = f"<!-- {name}, by scripts/write_tables.py -->\n"
    end = f"<!-- end of {name} -->\n"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(f"a page must have {begin.strip()} and {end.strip()}")
    return "".join([before, begin, *(f"{line}\n" for line in lines), end, after])


def pages() -> dict[Path, str]:
    """The pages with tables, as they should be."""
    names = ("sampling", "fields", "settings", "metrics", "models", "files")
    sampling, fields, settings, metrics, models, files = (
        REFERENCE / f"{name}.md" for name in names
    )
    return {
        sampling: written(sampling.read_text("utf-8"), "parameters", _parameters()),
        fields: written(fields.read_text("utf-8"), "fields", list(_fields())),
        settings: written(settings.read_text("utf-8"), "settings", list(_settings())),
        metrics: written(
            written(metrics.read_text("utf-8"), "metrics", _metrics(table.described())),
            "vllm metrics",
            _metrics(vllm_names.described()),
        ),
        models: written(models.read_text("utf-8"), "models", served_models.table()),
        files: written(files.read_text("utf-8"), "files", list(_files())),
    }


# --- settings ------------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    """The settings by group: those of the core, and those that extensions bring."""
    brought = {
        field.name: name
        for name, extension in extensions().items()
        for reference in extension.settings
        for field in dataclasses.fields(refer(reference))
    }
    rows = [one for config in CONFIGS for one in settings_of(config) if one.kind != "PARAMETER"]
    for group in GROUPS:
        if own := [one for one in rows if one.group == group]:
            yield from (f"## {group.capitalize()}", "")
            yield from (
                "| option | default | what it does | extension | SIGHUP |",
                "|---|---|---|---|---|",
            )
            for one in own:
                extension = f"`{brought[one.name]}`" if one.name in brought else ""
                option = (
                    one.option.replace("--", "--[no-]", 1) if one.kind == "SWITCH" else one.option
                )
                yield _cells(
                    f"`{option}`",
                    _default_of(one),
                    one.doc,
                    extension,
                    "yes" if one.is_live else "",
                )
            yield ""


def _default_of(setting: Setting) -> str:
    if setting.kind == "SWITCH":
        return "on" if setting.default else "off"
    if setting.kind == "SIZE":
        return format_size(int(setting.default))
    return "" if setting.default == "" else f"`{setting.default}`"


# --- fields of vendors ---------------------------------------------------------------------------


def _fields() -> Iterator[str]:
    for vendor, rows in VENDORS.items():
        yield from (f"## {vendor}", "", "Served:", "")
        for routes, names in _served(rows).items():
            yield from wrap(f"- {routes}: {', '.join(names)}", 104, subsequent_indent="  ")
        yield from ("", "| without effect | routes | why |", "|---|---|---|")
        for row in rows:
            if row.outcome is Outcome.IGNORED:
                yield _cells(f"`{row.path}`", _routes(row.apis), row.doc)
        columns = "| refused | accepted | `--lenient` | routes | why |"
        yield from ("", columns, "|---|---|---|---|---|")
        for row in rows:
            if row.outcome is Outcome.REFUSED:
                accepted = ", ".join(f"`{json.dumps(one)}`" for one in row.neutral)
                why = f"{row.doc}; {row.instead}" if row.instead else row.doc
                lenient = "" if row.constrains else "ignores it"
                yield _cells(f"`{row.path}`", accepted, lenient, _routes(row.apis), why)
        yield ""


def _served(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The served fields by their routes."""
    by_routes: dict[str, list[str]] = {}
    for row in rows:
        if row.outcome is Outcome.SERVED:
            name = f"`{row.path}` ({row.doc})" if row.doc else f"`{row.path}`"
            by_routes.setdefault(_routes(row.apis), []).append(name)
    return by_routes


def _routes(apis: Api) -> str:
    if apis == Api.GENERATION | Api.RESPONSES:
        return "all that generate, except messages"
    return ", ".join(route for api, route in ROUTES.items() if api in apis)


# --- metrics -------------------------------------------------------------------------------------


def _metrics(described: Iterable[tuple[str, str, str]]) -> list[str]:
    rows = [_cells(f"`{name}`", kind, text) for name, kind, text in described]
    return ["| metric | kind | meaning |", "|---|---|---|", *rows]


# --- files ---------------------------------------------------------------------------------------


def _files() -> Iterator[str]:
    """The files of the core, room by room, then those of the extensions and of the native core."""
    source = TOP / "src" / "heddle"
    paths = [path for path in source.rglob("*.py") if path.stat().st_size]
    paths.sort(key=lambda path: (path.parent, path.name))
    core = [path for path in paths if "extensions" not in path.relative_to(source).parts[:-1]]
    others = [path for path in paths if path not in core]
    native = [path for kind in ("h", "cpp") for path in (TOP / "native").glob(f"*.{kind}")]
    for folder, files in groupby((*core, *others, *sorted(native)), lambda path: path.parent):
        yield from (f"## {folder.relative_to(TOP)}", "", "| file | what it has |", "|---|---|")
        yield from (_cells(f"`{path.name}`", _first_line(path)) for path in files)
        yield ""


def _first_line(path: Path) -> str:
    """The first line of a source file's description; empty if it has none."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    first = text.partition("\n")[0]
    return first.removeprefix("// ") if first.startswith("//") else ""


# --- sampling parameters -------------------------------------------------------------------------


def _parameters() -> list[str]:
    table = [_row(row) for row in all_parameters() if row.apis]
    messages = [name for row in all_parameters() for name in row.names(Api.MESSAGES)]
    library = [row.name for row in all_parameters() if not row.apis]
    return [
        "| parameter | default | range | definition | source |",
        "|---|---|---|---|---|",
        *table,
        "",
        *wrap(f"`/v1/messages` takes {_listed(messages)}.", 100),
        "",
        *wrap(
            f"{_listed(library)} are fields of `SamplingParams` only, not of HTTP requests.",
            100,
        ),
        "",
    ]


def _row(row: Parameter) -> str:
    return _cells(
        ", ".join(f"`{name}`" for name in (row.name, *row.aliases)),
        _default(row.default),
        row.kind.words,
        row.doc,
        row.source,
    )


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(value: Any) -> str:
    if value is True or value is False:
        return str(value).lower()
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{_item(one)}`" for one in value)
    return f"{value:g}"


def _item(one: Any) -> str:
    return str(one.value) if isinstance(one, Enum) else json.dumps(one)


def _listed(names: list[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="Compare, write nothing.")
    only_check = parser.parse_args().check
    for path, page in pages().items():
        if not only_check:
            path.write_text(page, "utf-8")
        elif page != path.read_text("utf-8"):
            sys.exit(f"{path.name} differs from its table in the program; run write_tables.py")


if __name__ == "__main__":
    main()

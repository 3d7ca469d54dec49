"""Shows what an engram table of Heddle's own documentation does to a small model.

    python benchmarks/engram_demo.py [MODEL] [--alpha A ...] [--show A]

The script builds a table from README.md and the pages of docs/, without the page that shows the
result. Then the model continues prompts that end before the name of an option, greedily: without
the table, and with the table at each strength. The script counts the continuations that begin with
an option that Heddle has, and those that begin with an option that answers the prompt. It prints
the options without the table and those at the strength of `--show` side by side, in Markdown, and
two continuations of a sentence.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from heddle import LLM, SamplingParams
from heddle.cli import app, run
from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.extensions.engrams.settings import EngramSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
NAME = "heddle"
SHOWN_ON = "engrams.md"
TOKENS = 12
PROMPTS = {
    "To limit the memory of the KV cache of heddle serve, use the option `--": {
        "kv-cache",
        "memory",
    },
    "The most tokens that an answer of heddle serve may have: the option `--": {
        "max-output-tokens",
        "max-tokens",
    },
    "The disk tier of the prefix cache is in the folder of the option `--": {"prefix-cache-dir"},
    "To bound the gaps of running streams, heddle serve has the option `--": {"max-gap-ms"},
    "A client may send only so many requests at once to heddle serve: the option `--": {
        "client-requests"
    },
    "Without the network, heddle serve takes models from the caches with the option `--": {
        "offline"
    },
    "Another name for the model of heddle serve is set by the option `--": {"alias"},
    "Clients of heddle serve need a key if the server has the option `--": {
        "api-key",
        "api-key-file",
    },
    "To quantise a model at load, heddle serve has the option `--": {"quantize"},
    "The server stops waiting for the body of a slow client: the option `--": {"body-timeout"},
    "A model that nobody uses is unloaded after the time of the option `--": {"keep-alive"},
    "The longest context of heddle serve in tokens is set by the option `--": {"context"},
}
"""Prompts, and the options that answer them."""

SENTENCE = "A heddle is the part of a"
"""A prompt that is continued as it is."""


def options(command: object) -> Iterator[str]:
    """The long options of a command and of its subcommands, without dashes."""
    for parameter in getattr(command, "params", ()):
        names = [*parameter.opts, *parameter.secondary_opts]
        yield from (name[2:] for name in names if name.startswith("--"))
    for part in getattr(command, "commands", {}).values():
        yield from options(part)


def first_name(text: str) -> str:
    """The name of the option that a continuation begins with."""
    match = re.match(r"[A-Za-z0-9_-]*", text)
    return match[0] if match else ""


def continuations(llm: LLM, alpha: float | None) -> list[str]:
    """The model's text after the prompts and the sentence; None: without the table."""
    table = {} if alpha is None else {"engram": NAME, "engram_alpha": alpha}
    params = SamplingParams.by_name(max_tokens=TOKENS, temperature=0, **table)
    return [output.text for output in llm.generate([*PROMPTS, SENTENCE], params)]


def side_by_side(plain: Sequence[str], biased: Sequence[str], known: frozenset[str]) -> str:
    """A Markdown table of prompts and the options that both continuations begin with."""

    def cell(prompt: str, text: str) -> str:
        name = first_name(text)
        says = (
            "right" if name in PROMPTS[prompt] else "exists" if name in known else "does not exist"
        )
        return f"`--{name}` ({says})"

    lines = ["| prompt | without the table | with the table |", "|---|---|---|"]
    for prompt, before, after in zip(PROMPTS, plain, biased, strict=True):
        shown = prompt.removesuffix(" `--")
        lines.append(f"| {shown} | {cell(prompt, before)} | {cell(prompt, after)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument(
        "--alpha", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2]
    )
    parser.add_argument("--show", type=float, default=0.6, help="strength of the printed table")
    given = parser.parse_args()
    known = frozenset(options(typer.main.get_command(app)))
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "heddle.engr"
        pages = sorted((ROOT / "docs").rglob("*.md"))
        texts = [str(page) for page in (*pages, ROOT / "README.md") if page.name != SHOWN_ON]
        if run(["engram", "build", *texts, "-o", str(table), "--model", given.model]):
            raise SystemExit(1)
        settings = EngramSettings(engram=(f"{NAME}={table}",))
        with LLM(given.model, EngineConfig(extensions=(settings,))) as llm:
            found = {alpha: continuations(llm, alpha) for alpha in (None, *given.alpha, given.show)}
    for alpha, written in found.items():
        names = list(map(first_name, written[:-1]))
        real = sum(name in known for name in names)
        right = sum(name in answers for name, answers in zip(names, PROMPTS.values(), strict=True))
        label = "without" if alpha is None else f"alpha {alpha:g}"
        print(f"{label}: {real} of {len(PROMPTS)} options exist, {right} are right")
    print()
    plain, biased = found[None], found[given.show]
    print(side_by_side(plain[:-1], biased[:-1], known))
    print(f"\n> {SENTENCE}\n\nwithout:{plain[-1]}\n\nwith:{biased[-1]}")


if __name__ == "__main__":
    main()

"""Shared parts of the comparisons with llama.cpp's server: options, servers, text, results."""

from __future__ import annotations

import argparse
import json
import random
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xllamacpp

from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.extensions.bench.machine import describe
from heddle.extensions.bench.servers import heddle_server
from heddle.extensions.lora.settings import LoraSettings
from heddle.folders import cache_home
from heddle.text.tokenizer.tokenizer import Tokenizer
from heddle.weights.catalog import ALIASES
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.sources import find
from llamacpp_server import llamacpp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heddle.extensions.bench.exchange import Server

RESULTS = Path(__file__).with_name("results")

COMMON_WORDS = """
the of and to in a is that it was for on are as with his they at be this from have or by one had
not but what all were when we there can an your which their said if do will each about how up
out them then she many some so these would other into has more her two like him see time could
no make than first been its who now people my made over did down only way find use may water
long little very after word called just where most know get through back much before go good new
write our used me man too any day same right look think also around another came come work three
must because does part even place well such here take why things help put years different away
again off went old number great tell men say small every found still between name should home
big give air line set own under read last never us left end along while might next sound below
"""

RARER_WORDS = """
shuttle weaver treadle selvedge bobbin spindle carding tapestry brocade damask linen flax hemp
indigo madder woad mordant kermes saffron cochineal fuller tenter teasel nap pile twill herringbone
houndstooth gingham calico muslin cambric gauze organza taffeta velveteen corduroy jacquard dobby
harness raddle temple breast beam ratchet pawl quill skein hank distaff whorl scutching retting
"""


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of all comparisons. It shows the description's first line."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument(
        "model", nargs="?", default=DEFAULT_MODEL, help="a model, as for heddle serve"
    )
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--threads", type=int, default=2, help="compute threads of each server")
    made.add_argument("--isa", default="auto", help="instruction level of Heddle's kernels")
    made.add_argument(
        "--out", type=Path, help="file for the result (default: in benchmarks/results)"
    )
    return made


def model_path(arguments: argparse.Namespace) -> Path:
    """The path of the model's file. Downloads the file if it is missing."""
    return find(arguments.model, cache_home()).path


@contextmanager
def heddle(arguments: argparse.Namespace, slots: int, context: int) -> Iterator[Server]:
    """Heddle's server with `context` tokens per slot."""
    adapter = getattr(arguments, "lora", None)
    adapters = (LoraSettings(lora=(f"measured={adapter}",)),) if adapter else ()
    config = EngineConfig(
        threads=arguments.threads,
        slots=slots,
        isa=arguments.isa,
        context=context,
        extensions=adapters,
    )
    with heddle_server(str(model_path(arguments)), config) as server:
        yield server


@contextmanager
def both(
    arguments: argparse.Namespace, slots: int, context: int, *, prompt_cache: bool = False
) -> Iterator[list[Server]]:
    """Heddle's server and llama.cpp's server. `prompt_cache` is an option of llama.cpp's server."""
    with (
        heddle(arguments, slots, context) as ours,
        llamacpp(
            model_path(arguments), arguments.threads, slots, context, prompt_cache=prompt_cache
        ) as theirs,
    ):
        yield [ours, theirs]


def note(text: str) -> None:
    """Print the current measurement to standard error."""
    print(text, file=sys.stderr)


def encoder(arguments: argparse.Namespace) -> Callable[[str], list[int]]:
    """The model's tokenizer, so that both servers get the same token ids."""
    tokenizer = Tokenizer.of(GGUFCheckpoint.open(model_path(arguments)).tokenizer())
    return tokenizer.encode


def text(words: int, seed: str) -> str:
    """Sentences without meaning, the same for the same seed.

    Every fourth word is a rarer one, so that a word is about 1.3 tokens, as in English prose.
    """
    chosen = random.Random(seed)
    common, rare = COMMON_WORDS.split(), RARER_WORDS.split()
    made = [chosen.choice(rare if index % 4 == 3 else common) for index in range(words)]
    sentences = [made[start : start + 12] for start in range(0, words, 12)]
    return " ".join(" ".join(each).capitalize() + "." for each in sentences)


def save(report: dict[str, Any], arguments: argparse.Namespace, kind: str = "") -> Path:
    """Write a report, with a description of the machine, to a file named after the model."""
    path = model_path(arguments)
    setting = {
        "model": path.name,
        "threads": arguments.threads,
        "isa": arguments.isa,
        "machine": describe("heddle", "xllamacpp"),
        "llama_cpp_build": xllamacpp.get_system_info().strip(),
    }
    name = arguments.model if arguments.model in ALIASES else path.stem
    level = "" if arguments.isa == "auto" else f"-{arguments.isa}"
    out: Path = arguments.out or RESULTS / f"{kind}{name}{level}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(setting | report, indent=2) + "\n")
    return out

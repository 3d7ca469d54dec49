"""Measures what guessing tokens gains, against the same engine without guesses.

    python benchmarks/speculation.py [MODEL] [--rounds 3] [--draft MODEL]

Four loads, each with and without guesses in alternating rounds:

* edit 1, edit 4: one and four streams repeat a source file of 200 lines with one name changed;
* chat 1, chat 8: one and eight streams answer questions, with nothing to copy.

The rate of a round is the number of tokens after the first one of each stream, divided by the time
from the first token of the first stream to the last token of the last one. Outputs with and without
guesses must be equal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx

import heddle
from heddle.cores import usable_cores
from heddle.extensions.drafters.settings import DrafterSettings
from heddle.loading.find import find_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.outputs import Usage

ROOM = Path(heddle.__file__).parent
FILES = [
    ("engine/wakeup.py", "Wakeup", "Doorbell"),
    ("scheduler/queue.py", "Queue", "WaitingLine"),
    ("scheduler/pace.py", "Pace", "Tempo"),
    ("engine/turns.py", "Turns", "Rounds"),
]
QUESTIONS = [
    "Explain how a hash table works, and when it becomes slow.",
    "Write a short story about a lighthouse keeper and a storm.",
    "What is the difference between a process and a thread?",
    "Give me a plan for a week of healthy dinners.",
    "How does photosynthesis work? Explain it to a child.",
    "Write a letter to a landlord about a broken heater.",
    "Compare Python and Rust for writing network servers.",
    "What should I see in Lisbon in two days?",
]


def edits(count: int) -> list[list[dict[str, str]]]:
    """Chats that ask for a file with one name changed. Files are cut to 200 lines."""
    chats = []
    for file, name, other in FILES[:count]:
        source = "\n".join((ROOM / file).read_text().splitlines()[:200])
        ask = f"Rename {name} to {other} in this file. Answer with the whole file and nothing else."
        chats.append([{"role": "user", "content": f"{ask}\n\n```python\n{source}\n```"}])
    return chats


def questions(count: int) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] for text in QUESTIONS[:count]]


def run(
    engine: heddle.Engine, chats: Sequence[list[dict[str, str]]], tokens: int, speculation: str
) -> tuple[float, list[str], int, int]:
    """Tokens per second, the texts, and the guesses and how many of them were right."""
    first: list[float] = []
    last: list[float] = []

    def one(chat: list[dict[str, str]]) -> tuple[str, Usage]:
        asked = heddle.SamplingParams(temperature=0, max_tokens=tokens, speculation=speculation)  # type: ignore[arg-type]
        text, usage = "", None
        for delta in engine.stream(engine.model.chat_prompt(chat), asked):
            if not text:
                first.append(time.perf_counter())
            text, usage = text + delta.text, delta.usage
        last.append(time.perf_counter())
        assert usage is not None, "the last delta has it"
        return text, usage

    with ThreadPoolExecutor(len(chats)) as pool:
        texts, usages = zip(*pool.map(one, chats), strict=True)
    made = sum(usage.completion_tokens - 1 for usage in usages)
    drafted = sum(usage.drafted_tokens for usage in usages)
    accepted = sum(usage.accepted_tokens for usage in usages)
    return made / (max(last) - min(first)), list(texts), drafted, accepted


def copied(chat: list[dict[str, str]], text: str) -> float:
    """Share of the lines of an answer that are lines of the question."""
    known = set(chat[0]["content"].splitlines())
    lines = text.splitlines()
    return sum(line in known for line in lines) / max(1, len(lines))


def compare(
    engine: heddle.Engine, chats: list[list[dict[str, str]]], tokens: int, rounds: int
) -> dict[str, Any]:
    run(engine, chats, 4, "off")  # fills the prefix cache, so that rounds have equal prompts
    rates: dict[str, list[float]] = {"off": [], "auto": []}
    for _ in range(rounds):
        texts = {}
        for mode, measured in rates.items():
            rate, texts[mode], drafted, accepted = run(engine, chats, tokens, mode)
            measured.append(rate)
        assert texts["off"] == texts["auto"], "guesses changed an output"
    off, auto = median(rates["off"]), median(rates["auto"])
    share = median(map(copied, chats, texts["auto"]))
    return {
        "off": off,
        "auto": auto,
        "ratio": auto / off,
        "ratios": [a / b for a, b in zip(rates["auto"], rates["off"], strict=True)],
        "drafted": drafted,
        "accepted": accepted,
        "copied": share,
    }


def llamacpp_rates(model: str, tokens: int, rounds: int) -> dict[str, float]:
    """Tokens per second of llama.cpp's server on "edit 1", without guesses and with its look-up."""
    from llamacpp_server import llamacpp

    path, (chat,) = find_model(model).path, edits(1)
    body = {"messages": chat, "temperature": 0, "max_tokens": tokens, "cache_prompt": True}
    rates: dict[str, list[float]] = {"off": [], "look-up": []}
    for _ in range(rounds):
        for mode, measured in rates.items():
            options = ["--look-up"] if mode == "look-up" else []
            with llamacpp(path, usable_cores(), 1, 8192, options, prompt_cache=True) as server:
                answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600)
            measured.append(answer.json()["timings"]["predicted_per_second"])
    return {mode: median(measured) for mode, measured in rates.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("model", nargs="?", default="qwen2.5-coder-1.5b")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--tokens", type=int, default=400, help="most tokens of an answer")
    options.add_argument("--draft", default="", help="small model that guesses")
    options.add_argument("--llamacpp", action="store_true", help="also measure llama.cpp on edit 1")
    options.add_argument("--loads", default="edit 1,edit 4,chat 1,chat 8")
    given = options.parse_args()
    config = heddle.EngineConfig(context=8192, extensions=(DrafterSettings(draft=given.draft),))
    results = {}
    with heddle.Engine.load(given.model, config) as engine:
        for name in given.loads.split(","):
            kind, count = name.split()
            chats = edits(int(count)) if kind == "edit" else questions(int(count))
            found = results[name] = compare(engine, chats, given.tokens, given.rounds)
            print(
                f"{name}: {found['off']:.1f} tokens/s without, {found['auto']:.1f} with guesses,"
                f" {found['ratio']:.2f} times; {found['accepted']} of {found['drafted']} guesses"
                f" right; {found['copied']:.0%} of the lines copied",
                flush=True,
            )
    if given.llamacpp:
        peer = results["llama.cpp, edit 1"] = llamacpp_rates(
            given.model, given.tokens, given.rounds
        )
        print(f"llama.cpp, edit 1: {peer['off']:.1f} without, {peer['look-up']:.1f} with look-up")
    json.dump({"model": given.model, "loads": results}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()

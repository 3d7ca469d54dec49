"""Compares the speed of two commits in alternating runs, and fails if the second is slower.

    python benchmarks/compare_commits.py BASE [HEAD] [--model MODEL] [--rounds 12] [--least 0.98]

Each commit gets a work tree of git. Its native core is built if it is another one than that of the
installed Heddle. A run is a process that measures decode and prefill, in tokens per second. A round
runs both commits one after the other, in turns begun by either, so that a slow phase of the machine
meets both; its ratios are HEAD's speed by BASE's. The median of the ratios has an interval that
holds the true median with 95% (order statistics; it assumes nothing of the noise).

The exit code is 1 if an interval is below `--least`, 0 if all are above, and 77 if one is on both
sides: the machine is too noisy to tell, and more rounds may help. Each comparison is a line of
`benchmarks/history.jsonl`, with the kind of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from heddle._native import isa_levels
from heddle.config import DEFAULT_MODEL
from heddle.extensions.bench.machine import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
HISTORY = Path(__file__).with_name("history.jsonl")
NATIVE = ("native", "CMakeLists.txt")
"""What the native core is made of."""
Round = tuple[dict[str, float], dict[str, float]]
"""The speeds of both commits, BASE's first, by measure."""
CONFIDENCE = 0.95
UNKNOWN = 77

RUN = """
import json, sys, time
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")]
import heddle
from heddle import LLM, EngineConfig, SamplingParams
assert heddle.__file__.startswith(sys.argv[1]), heddle.__file__
config = EngineConfig(slots=4, context=2048, speculation="off", generation_config="none")

def speed(llm, prompts, tokens, counted):
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    began = time.perf_counter()
    llm.generate(prompts, params)
    return counted / (time.perf_counter() - began)

with LLM(sys.argv[2], config) as llm:
    speed(llm, ["One, two,"], 8, 1)  # reads all weights
    words = "river stone lamp green seven cloud under north".split()
    text = " ".join(words[(7 * n * n + n // 8) % 8] for n in range(600))
    print(json.dumps({
        "decode": speed(llm, [f"{word} is" for word in words[:4]], 96, 4 * 96),
        "prefill": speed(llm, [text], 1, 600),
    }))
"""
"""A run: it uses public names alone, so that it measures old commits, too."""


def git(*words: str) -> str:
    """The output of a git command."""
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


@contextlib.contextmanager
def tree(commit: str, folder: Path) -> Iterator[Path]:
    """A work tree of a commit with a native core, removed after the block."""
    path = folder / commit
    git("worktree", "add", "--quiet", "--detach", str(path), commit)
    try:
        put_native(path)
        yield path
    finally:
        git("worktree", "remove", "--force", str(path))


def sources(path: Path) -> list[str]:
    """What a tree's native core is made of, by git's names of contents."""
    return [git("-C", str(path), "rev-parse", f"HEAD:{one}") for one in NATIVE]


def put_native(path: Path) -> None:
    """Give a tree its native core: the installed one if it is made of the same files."""
    installed = importlib.util.find_spec("heddle._native")
    assert installed is not None and installed.origin is not None
    place = path / "src" / "heddle"
    if all(
        git("rev-parse", f"HEAD:{one}") == git("-C", str(path), "rev-parse", f"HEAD:{one}")
        for one in NATIVE
    ):
        shutil.copy2(Path(installed.origin).resolve(), place / Path(installed.origin).name)
        return
    print(f"building the native core of {path.name[:12]}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as built:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", built]
        subprocess.run([*pip, str(path)], check=True)
        [core] = Path(built, "heddle").glob("_native*.so")
        shutil.copy2(core, place / core.name)


def run(path: Path, model: str) -> dict[str, float]:
    """What a run of a tree measures, in tokens per second."""
    command = [sys.executable, "-c", RUN, str(path), model]
    variables = os.environ | {"PYTHONPATH": str(path / "src")}
    found: dict[str, float] = json.loads(subprocess.check_output(command, env=variables))
    return found


def alternate(trees: Sequence[Path], rounds: int, model: str) -> list[Round]:
    """The speeds of both trees in each round."""
    found = []
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        speeds = {place: run(trees[place], model) for place in order}
        found.append((speeds[0], speeds[1]))
        ratios = {name: round(speeds[1][name] / speeds[0][name], 3) for name in speeds[0]}
        print(f"round {number + 1}: {ratios}", flush=True)
    return found


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The narrowest pair of ratios that holds the true median with `CONFIDENCE`.

    Fewer than six ratios hold it less surely; then it is all of them.
    """
    ordered, count = sorted(ratios), len(ratios)
    out = 0
    while 2 * sum(comb(count, k) for k in range(out + 2)) / 2**count <= 1 - CONFIDENCE:
        out += 1
    is_sure = 2 / 2**count <= 1 - CONFIDENCE
    return (ordered[out], ordered[-1 - out]) if is_sure else (ordered[0], ordered[-1])


def verdict(low: float, high: float, least: float, rounds: int) -> str:
    """`slower`, `as fast`, or `cannot tell`."""
    if 2 / 2**rounds > 1 - CONFIDENCE or low < least <= high:
        return "cannot tell"
    return "slower" if high < least else "as fast"


def compare(rounds: Sequence[Round], least: float) -> dict[str, dict[str, Any]]:
    """For each measure: both medians, the median ratio, its interval, and the verdict."""
    found = {}
    for name in rounds[0][0]:
        pairs = [(base[name], head[name]) for base, head in rounds]
        ratios = [head / base for base, head in pairs]
        low, high = interval(ratios)
        found[name] = {
            "base": round(median(base for base, _ in pairs), 1),
            "head": round(median(head for _, head in pairs), 1),
            "ratio": round(median(ratios), 4),
            "interval": [round(low, 4), round(high, 4)],
            "verdict": verdict(low, high, least, len(rounds)),
        }
    return found


def machine_kind() -> dict[str, Any]:
    """What makes speeds of two machines comparable."""
    machine = describe()
    gigabytes = round(machine["memory_bytes"] / 1e9)
    levels = isa_levels()
    return {"cpu": machine["cpu"], "cores": machine["cores"], "levels": levels, "gb": gigabytes}


def exit_code(verdicts: Sequence[str]) -> int:
    """1 if something is slower, 77 if nothing is but something cannot be told."""
    return 1 if "slower" in verdicts else UNKNOWN if "cannot tell" in verdicts else 0


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("base")
    options.add_argument("head", nargs="?", default="HEAD")
    options.add_argument("--model", default=DEFAULT_MODEL)
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--least", type=float, default=0.98)
    options.add_argument("--history", type=Path, default=HISTORY)
    given = options.parse_args()
    commits = [git("rev-parse", f"{one}^{{commit}}") for one in (given.base, given.head)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the trees are removed
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in commits]
        trees = [
            stack.enter_context(tree(commit, folder))
            for commit, folder in zip(commits, folders, strict=True)
        ]
        rounds = alternate(trees, given.rounds, given.model)
    found = compare(rounds, given.least)
    line = {
        "day": datetime.now(UTC).date().isoformat(),
        "machine": machine_kind(),
        "model": given.model,
        "commits": [commit[:12] for commit in commits],
        "rounds": given.rounds,
        "speeds": found,
    }
    with given.history.open("a") as history:
        history.write(json.dumps(line) + "\n")
    for name, one in found.items():
        print(f"{name}: {one['ratio']:.3f} {one['interval']}: {one['verdict']}")
    code = exit_code([one["verdict"] for one in found.values()])
    if code == UNKNOWN:
        print("The machine is too noisy to tell; take more rounds, or end what else runs.")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Shows whether loads and unloads of models leave memory behind, over HTTP.

    python benchmarks/soak.py [MODEL] [--other MODEL] [--loads 200] [--memory 300M]

Requests for one token name two models in turns. The server (`--autoload`) has memory for one model,
so each request unloads one and loads the other. The resident memory after a load varies by a fifth
with what the load has not given back yet, so medians of ten loads count. The program fails if the
median of the last ten is more than 5% above that of loads 6 to 15.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from statistics import median

from heddle.extensions.bench.servers import running
from heddle.loading.find import find_model

SETTLED = 5
"""Loads after which the libraries have made what they keep."""
TAKEN = 10
"""Loads of a median."""
TOLERANCE = 0.05


def main() -> None:
    """Load, measure, and print a table."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("model", nargs="?", default="smollm2-135m")
    options.add_argument("--other", help="default: the same file under another name")
    options.add_argument("--loads", type=int, default=200, help="loads, of both models together")
    options.add_argument("--memory", default="300M", help="memory for one of the models")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = ("one", "two")
        for name, model in zip(names, (given.model, given.other or given.model), strict=True):
            link = Path(folder, name).with_suffix(".gguf")
            link.symlink_to(find_model(model).path.resolve())
        sys.exit(soak(Path(folder), names, given.loads, given.memory))


def soak(folder: Path, names: tuple[str, ...], loads: int, memory: str) -> str | None:
    """Load the models in turns. Returns what is wrong, or None."""
    paths = [str(folder / f"{name}.gguf") for name in names]
    command = [sys.executable, "-m", "heddle", "serve", *paths, "--port", "0", "--autoload"]
    sizes: list[int] = []
    with running("heddle", [*command, "--memory", memory]) as (pid, url):
        print(" load   RSS MB   booked MB   threads   files")
        for load in range(1, loads + 1):
            ask(url, names[load % len(names)])
            sizes.append(resident(pid))
            if load in (1, 2, 5) or load % TAKEN == 0:
                threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
                files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                memory = f"{sizes[-1] / 1e6:9.1f}{booked(url) / 1e6:12.1f}"
                print(f"{load:5}{memory}{threads:10}{files:8}", flush=True)
    first, last = sizes[SETTLED : SETTLED + TAKEN], sizes[-TAKEN:]
    change = median(last) / median(first) - 1
    print(f"median of the last {TAKEN} loads and of loads 6 to 15: {change:+.1%}")
    return None if change <= TOLERANCE else f"it grew by more than {TOLERANCE:.0%}"


def ask(url: str, model: str) -> None:
    """Let the model compute one token."""
    body = json.dumps({"model": model, "prompt": "One", "max_tokens": 1}).encode()
    kind = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/completions", body, kind)) as said:
        said.read()


def resident(pid: int) -> int:
    """Bytes of the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def booked(url: str) -> int:
    """Bytes that the server says its models hold."""
    with urllib.request.urlopen(f"{url}/models") as said:
        models = json.load(said)["data"]
    return sum(model.get("memory_bytes", 0) for model in models)


if __name__ == "__main__":
    main()

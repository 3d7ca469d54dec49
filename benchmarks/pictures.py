"""Compares how soon Heddle and llama.cpp answer to a picture, over HTTP, with the same two files.

    pip install '.[bench]' && python benchmarks/pictures.py MODEL.gguf MMPROJ.gguf [--size 1024]

Each round asks both servers for one token after a new picture of random pixels, in turn, so neither
finds it in a cache, and then for one token after a picture that they have just seen. The time runs
until the answer is there: it has the decoding of the file, the eyes, and the prompt.
"""

from __future__ import annotations

import argparse
import base64
import io
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@contextmanager
def server(command: list[str]) -> Iterator[str]:
    """The address of a server, which ends with its standard input."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            ready = next(line for line in process.stdout if line.startswith("ready"))
            yield ready.split()[1].removesuffix("/v1").rstrip("/")
        finally:
            process.kill()


def picture(seed: int, size: int) -> str:
    """A data URL of random pixels, which no encoder of files makes small."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size, size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def seconds(url: str, image: str) -> tuple[float, int]:
    """Seconds until the answer of one token, and the tokens of the prompt."""
    parts = [
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "text", "text": "What is it?"},
    ]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    began = time.perf_counter()
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
    taken = time.perf_counter() - began
    answer.raise_for_status()
    return taken, answer.json()["usage"]["prompt_tokens"]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("model")
    options.add_argument("mmproj")
    options.add_argument("--size", type=int, default=1024, help="pixels of a side")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--isa", default="auto", help="instruction level of Heddle's kernels")
    given = options.parse_args()
    files = ["--mmproj", given.mmproj, "--threads", str(given.threads)]
    own = [sys.executable, "-m", "heddle", "serve", given.model, *files, "--port", "0"]
    own += ["--slots", "1", "--context", "8192", "--isa", given.isa]
    peer = [sys.executable, str(HERE / "llamacpp_server.py"), given.model, *files]
    peer += ["--slots", "1", "--context", "8192", "--prompt-cache"]
    taken: dict[str, list[float]] = {}
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(server(command))
            for name, command in (("heddle", own), ("llama.cpp", peer))
        }
        for name, url in urls.items():
            _, tokens = seconds(url, picture(0, 64))
            print(f"{name}: a small picture makes a prompt of {tokens} tokens", flush=True)
        for number in range(1, given.rounds + 1):
            image = picture(number, given.size)
            for name, url in urls.items():
                for kind in ("new", "seen"):
                    found, tokens = seconds(url, image)
                    taken.setdefault(f"{name} {kind}", []).append(found)
                    print(f"{name}, {kind}: {found:.2f} s, {tokens} tokens", flush=True)
    for kind in ("new", "seen"):
        pairs = zip(taken[f"llama.cpp {kind}"], taken[f"heddle {kind}"], strict=True)
        ratio = statistics.median(theirs / ours for theirs, ours in pairs)
        print(f"{kind}: Heddle answers in 1/{ratio:.2f} of llama.cpp's time")


if __name__ == "__main__":
    main()

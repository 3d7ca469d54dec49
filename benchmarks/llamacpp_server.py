"""Runs llama.cpp's own HTTP server from the xllamacpp wheel.

    python benchmarks/llamacpp_server.py MODEL.gguf --threads 2 --slots 8

The process prints `ready URL` when it serves, and ends when its standard input ends.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import xllamacpp

from heddle.extensions.bench.remote import connect
from heddle.extensions.bench.servers import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from heddle.extensions.bench.exchange import Server

CONTEXT = 1024


@contextmanager
def llamacpp(
    model: Path,
    threads: int,
    slots: int,
    context: int = CONTEXT,
    options: Sequence[str] = (),
    *,
    prompt_cache: bool = False,
) -> Iterator[Server]:
    """Run llama.cpp's server as a child, with `context` tokens per slot and continuous batching.

    With `prompt_cache`, the server keeps and reuses prompts, as it does by default. Without it,
    the server keeps no prompts.
    """
    command = [sys.executable, __file__, str(model), "--threads", str(threads)]
    command += ["--slots", str(slots), "--context", str(context), *options]
    command += ["--prompt-cache"] if prompt_cache else []
    with running("llama.cpp", command) as (pid, url):
        extras = {"ignore_eos": True, "cache_prompt": prompt_cache}
        yield replace(connect("llama.cpp", url, pid=pid), extras=extras)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0, help="port; 0 = a free port")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens per slot")
    parser.add_argument(
        "--whole-context", action="store_true", help="keep positions behind sliding windows"
    )
    parser.add_argument(
        "--prompt-cache", action="store_true", help="keep finished prompts for later requests"
    )
    parser.add_argument(
        "--kv-type", default="f16", help="ggml's name of the type of keys and values"
    )
    parser.add_argument("--lora", help="an adapter in a GGUF file, for all requests")
    parser.add_argument("--mmproj", help="the eyes of the model")
    parser.add_argument("--look-up", action="store_true", help="guess tokens from the prompt")
    arguments = parser.parse_args()

    params = xllamacpp.CommonParams()
    if arguments.look_up:
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    params.model.path = arguments.model
    if arguments.mmproj:
        params.mmproj.path = arguments.mmproj
        params.mmproj_use_gpu = False
    if arguments.lora:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(arguments.lora, 1.0)]
    params.port = arguments.port
    params.n_parallel = arguments.slots
    params.n_ctx = arguments.slots * arguments.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.swa_full = arguments.whole_context
    kv_type = xllamacpp.ggml_type.__members__[f"GGML_TYPE_{arguments.kv_type.upper()}"]
    params.cache_type_k = params.cache_type_v = kv_type
    if not arguments.prompt_cache:
        params.cache_ram_mib = 0
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print("ready", server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

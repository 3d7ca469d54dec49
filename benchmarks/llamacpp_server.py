"""llama.cpp's own HTTP server in this process, through the xllamacpp wheel, until stdin closes."""

from __future__ import annotations

import argparse
import sys

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens per slot")
    parser.add_argument("--whole-context", action="store_true", help="keep what windows passed")
    arguments = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.port = arguments.port
    params.n_parallel = arguments.slots
    params.n_ctx = arguments.slots * arguments.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.swa_full = arguments.whole_context
    params.cache_ram_mib = 0  # no copies of finished prompts
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""Measure the distance between llama.cpp's next-token distributions and the float32 reference.

Writes `tests/models/data/kl-MODEL.json`. `tests/models/test_kl.py` compares Heddle's executor with
this file:

    pip install '.[bench]' && python scripts/make_kl_reference.py MODEL [--positions N]

With `--kv-type`, llama.cpp keeps keys and values in another type, and the figures are only printed.

MODEL is an alias, such as smollm2-135m. The reference needs four bytes for each weight.

llama.cpp runs as its HTTP server, from the xllamacpp wheel, with its defaults: KV cache in f16, and
flash attention where it chooses to. There is one exception: it keeps positions behind sliding
windows, because otherwise it computes every prompt again. The script asks for the logprobs of the
complete vocabulary after each prefix of the text, in two ways. First, the prefix grows by one token
each time, over the server's prompt cache; this takes some minutes. Second, at every 16th position,
the server computes the prefix from the start in one batch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import xllamacpp

from heddle.extensions.reference.model import ReferenceModel
from heddle.folders import cache_home
from heddle.models.build import build
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.sources import find

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "models")]
from divergence import divergences  # noqa: E402

from llamacpp_server import llamacpp  # noqa: E402

DATA = ROOT / "tests" / "models" / "data"
SOME = slice(15, None, 16)


class Peer:
    """llama.cpp's server as a source of next-token distributions."""

    def __init__(self, url: str, vocabulary: int) -> None:
        self._client = httpx.Client(base_url=url, timeout=120)
        self._vocabulary = vocabulary

    def tokenize(self, text: str) -> list[int]:
        return self._post("/tokenize", content=text, add_special=True)["tokens"]

    def logprobs(self, prompt: list[int], cached: bool) -> np.ndarray:
        """Logprobs (vocabulary,) of the token after `prompt`."""
        answer = self._post(
            "/completion",
            prompt=prompt,
            n_predict=1,
            n_probs=self._vocabulary,
            temperature=0,
            id_slot=0,
            cache_prompt=cached,
        )
        expected = len(prompt) - 1 if cached else 0
        if answer["timings"]["cache_n"] != expected:
            raise SystemExit(f"{answer['timings']['cache_n']} tokens cached, not {expected}")
        result = np.full(self._vocabulary, np.nan, np.float32)
        for entry in answer["completion_probabilities"][0]["top_logprobs"]:
            result[entry["id"]] = entry["logprob"]
        if not (np.exp(result).sum() > 0.999 and result.min() > -1000):
            raise SystemExit("a logprob is missing or underflowed")
        return result

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self._client.post(path, json=body).raise_for_status().json()
        assert isinstance(answer, dict)
        return answer


def summary(reference: np.ndarray, logprobs: np.ndarray) -> dict[str, Any]:
    """Statistics of KL(reference || logprobs) over positions, in nats."""
    kl = divergences(reference, logprobs)
    return {
        "positions": len(kl),
        "kl_mean": kl.mean(),
        "kl_median": np.median(kl),
        "kl_p99": np.quantile(kl, 0.99),
        "kl_max": kl.max(),
        "same_top_token": (reference.argmax(-1) == logprobs.argmax(-1)).mean(),
    }


def measure(
    path: Path, text: str, positions: int, kv_type: str
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """The text's tokens, and logprobs after each prefix, in both ways (see the module
    docstring)."""
    vocabulary = build(GGUFCheckpoint.open(path)).shape.vocabulary
    options = ["--whole-context", "--kv-type", kv_type]
    with llamacpp(path, threads=2, slots=1, options=options) as server:
        peer = Peer(server.url, vocabulary)
        tokens = peer.tokenize(text)[:positions]
        if len(tokens) < positions:
            raise SystemExit(f"the text has {len(tokens)} tokens; --positions needs {positions}")
        lengths = range(1, positions + 1)
        grown = np.stack([peer.logprobs(tokens[:n], cached=True) for n in lengths])
        anew = np.stack([peer.logprobs(tokens[:n], cached=False) for n in lengths[SOME]])
    return tokens, grown, anew


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="an alias")
    parser.add_argument("--positions", type=int, default=512)
    parser.add_argument("--kv-type", default="f16", help="ggml's name of the type")
    arguments = parser.parse_args()

    path = find(arguments.model, cache_home()).path
    text = (DATA / "text.txt").read_bytes()
    tokens, grown, anew = measure(path, text.decode(), arguments.positions, arguments.kv_type)
    reference = ReferenceModel(GGUFCheckpoint.open(path)).logits(tokens)
    result = {
        "command": f"python scripts/make_kl_reference.py {' '.join(sys.argv[1:])}",
        "model": {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
        "text": {"file": "text.txt", "sha256": hashlib.sha256(text).hexdigest()},
        "positions": len(tokens),
        "llama_cpp": {
            "package": f"xllamacpp {metadata.version('xllamacpp')}",
            "system": xllamacpp.get_system_info().strip(),
            "kv": arguments.kv_type,
            "flash_attention": "auto",
            "token_by_token": summary(reference, grown),
            "one_batch": summary(reference[SOME], anew),
            "token_by_token_at_the_positions_of_one_batch": summary(reference[SOME], grown[SOME]),
        },
        "tokens": tokens,
    }
    if arguments.kv_type == "f16":
        (DATA / f"kl-{arguments.model}.json").write_text(_dump(result))
    print(json.dumps(result["llama_cpp"], indent=2))


def _dump(result: dict[str, Any]) -> str:
    """Indented JSON with the token ids on one line."""
    tokens = json.dumps(result["tokens"])
    return json.dumps(result | {"tokens": "@"}, indent=2).replace('"@"', tokens) + "\n"


if __name__ == "__main__":
    main()

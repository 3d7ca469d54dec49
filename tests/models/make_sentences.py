"""Compute `data/sentences.json`: what sentence-transformers says of the tiny folders, in float32.

pip install sentence-transformers
PYTHONPATH=tests:src python tests/models/make_sentences.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import sentence_transformers

from models.worded_sentences import (
    DATA_FILE,
    DIMENSIONS,
    FOLDERS,
    PROMPTS,
    TEXTS,
    TRUNCATED,
    Sentences,
)


def vectors_of(folder: Sentences) -> dict[str, list[list[float]]]:
    """Vectors of length 1, by the name of the prompt. Each text is computed alone."""
    with tempfile.TemporaryDirectory() as place:
        path = str(folder.write(Path(place) / "m"))
        model = sentence_transformers.SentenceTransformer(path, device="cpu")
        found: dict[str, list[list[float]]] = {}
        for name in ("", *PROMPTS, TRUNCATED):
            options: dict[str, Any] = {"prompt_name": name or None}
            if name == TRUNCATED:
                options = {"truncate_dim": DIMENSIONS}
            for text in TEXTS:
                vector = model.encode(text, normalize_embeddings=True, **options)
                found.setdefault(name, []).append([float(f"{x:.8g}") for x in vector.tolist()])
        return found


def main() -> None:
    made_with = f"sentence-transformers {sentence_transformers.__version__}"
    data = {"made_with": made_with} | {one.name: vectors_of(one) for one in FOLDERS}
    DATA_FILE.write_text(json.dumps(data).replace(']], "', ']],\n"') + "\n")


if __name__ == "__main__":
    main()

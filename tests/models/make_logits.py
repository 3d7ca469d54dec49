"""Compute `data/*_logits.json`: the tiny models' logits by `transformers`, in float32.

pip install -e '.[test,logits]'
PYTHONPATH=tests:src python tests/models/make_logits.py FAMILY...

A family is the name of a file in tiny/. Without names, the logits of all families are computed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from models.tiny import FAMILIES, FOLDERS
from models.tiny.base import TOKENS
from models.tiny.base_images import TinySeeing

if TYPE_CHECKING:
    from models.tiny.base import TinyModel


def logits(model: TinyModel) -> list[list[float]]:
    """Load the model's folder into a network; return logits (tokens, vocabulary)."""
    kind: Any = transformers.AutoModelForCausalLM
    options: dict[str, object] = {"pad_token_id": None}
    if isinstance(model, TinySeeing):
        kind, options = transformers.AutoModelForImageTextToText, {}
    with tempfile.TemporaryDirectory() as folder:
        network, report = kind.from_pretrained(
            model.write_folder(Path(folder)),
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
            **options,
        )
    if isinstance(model, TinySeeing):
        report["missing_keys"] = [
            name for name in report["missing_keys"] if not name.startswith(model.eyes)
        ]
    wrong = {name: found for name, found in report.items() if found}
    assert not wrong, wrong
    network.eval()
    with torch.no_grad():
        rows = network(torch.tensor([TOKENS])).logits[0].tolist()
    return [[float(f"{x:.7g}") for x in row] for row in rows]


def _own_file(model: TinyModel) -> str:
    """The file of models that `transformers` knows under their own name."""
    return f"{model.architecture}_logits.json"


def main() -> None:
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    for family in sys.argv[1:] or FAMILIES | FOLDERS:
        models = FAMILIES.get(family, ()) + FOLDERS.get(family, ())
        models = tuple(one for one in models if one.logits_file.name == _own_file(one))
        for file in {model.logits_file for model in models}:
            found = {one.name: logits(one) for one in models if one.logits_file == file}
            text = json.dumps({"made_with": made_with} | found)
            file.write_text(text.replace("], [", "],\n[").replace(', "', ',\n"') + "\n")


if __name__ == "__main__":
    main()

"""Compute `data/*.json`: rows and logits of the tiny models with eyes by `transformers`.

pip install -e '.[test,logits]'
PYTHONPATH=tests:src:tests/extensions/vision python tests/extensions/vision/make_pictures.py NAME...

Without names, the values of all models are computed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tiny_eyes import DATA, MODELS

if TYPE_CHECKING:
    from tiny_eyes import TinyEyes


def inputs(model: TinyEyes) -> dict[str, Any]:
    """What the network takes for the picture."""
    pixels = torch.tensor(model.pixels()).permute(2, 0, 1)[None]
    if model.name == "idefics3":
        return {"pixel_values": pixels[None]}
    return {"pixel_values": pixels}


def values(model: TinyEyes) -> dict[str, list[Any]]:
    """Load the model's folder into a network; return rows and logits."""
    with tempfile.TemporaryDirectory() as folder:
        network, report = transformers.AutoModelForImageTextToText.from_pretrained(
            model.write_folder(Path(folder)),
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
    wrong = {name: found for name, found in report.items() if found}
    assert not wrong, wrong
    network.eval()
    given = inputs(model)
    with torch.no_grad():
        seen = network.model.get_image_features(**given)
        rows = seen.pooler_output
        rows = torch.cat(list(rows)) if isinstance(rows, list | tuple) else rows
        rows = rows.reshape(-1, rows.shape[-1])
        assert len(rows) == model.rows, rows.shape
        logits = network(torch.tensor([model.prompt()]), **given).logits[0, -1]
    return {"rows": _short(rows), "logits": _short(logits)}


def _short(found: torch.Tensor) -> list[Any]:
    if found.dim() > 1:
        return [_short(row) for row in found]
    return [float(f"{x:.7g}") for x in found.tolist()]


def main() -> None:
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    for model in MODELS:
        if not sys.argv[1:] or model.name in sys.argv[1:]:
            text = json.dumps({"made_with": made_with} | values(model))
            text = text.replace("], [", "],\n[").replace(', "', ',\n"')
            (DATA / f"{model.name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

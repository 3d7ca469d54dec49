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

import numpy as np
import torch
import transformers
from tiny_eyes import MODELS, PATCH
from tiny_eyes_base import DATA, IMAGE

if TYPE_CHECKING:
    from tiny_eyes_base import TinyEyes


def inputs(model: TinyEyes) -> dict[str, Any]:
    """What the network takes for the picture."""
    tiles = torch.tensor(np.stack(model.each_tile())).permute(0, 3, 1, 2)
    height, width = model.size
    if model.name == "idefics3":
        return {"pixel_values": tiles[None]}
    if model.name == "llava_next":
        return {"pixel_values": tiles[None], "image_sizes": torch.tensor([[16, 32]])}
    if model.name in ("pixtral", "mistral3"):
        return {"pixel_values": tiles, "image_sizes": torch.tensor([[height, width]])}
    down, across = height // PATCH, width // PATCH
    if model.name == "lfm2_vl":
        patches = tiles[0].reshape(3, down, PATCH, across, PATCH).permute(1, 3, 2, 4, 0)
        return {
            "pixel_values": patches.reshape(1, down * across, -1),
            "spatial_shapes": torch.tensor([[down, across]]),
            "pixel_attention_mask": torch.ones(1, down * across, dtype=torch.long),
        }
    if model.name == "gemma4":
        patches = tiles[0].reshape(3, down, PATCH, across, PATCH).permute(1, 3, 2, 4, 0)
        places = torch.tensor([[x, y] for y in range(down) for x in range(across)])
        return {
            "pixel_values": patches.reshape(1, down * across, -1) / 2 + 0.5,
            "image_position_ids": places[None],
        }
    if model.name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"):
        # Patches of one merged square follow one another; both frames are the picture.
        patches = tiles[0].reshape(3, down // 2, 2, PATCH, across // 2, 2, PATCH)
        patches = patches.permute(1, 4, 2, 5, 0, 3, 6)[..., None, :, :].expand(
            -1, -1, -1, -1, -1, 2, -1, -1
        )
        return {
            "pixel_values": patches.reshape(down * across, -1),
            "image_grid_thw": torch.tensor([[1, down, across]]),
        }
    return {"pixel_values": tiles}


def kinds_of_tokens(model: TinyEyes) -> dict[str, Any]:
    """What some networks want to know of each token: whether it stands for a row."""
    kinds = torch.tensor([[int(token == IMAGE) for token in model.prompt()]])
    if model.name == "gemma3":
        return {"token_type_ids": kinds}
    return {"mm_token_type_ids": kinds} if model.name.startswith(("qwen", "glm", "gemma4")) else {}


def rows_of(network: Any, model: TinyEyes, given: dict[str, Any]) -> torch.Tensor:
    """The rows of the picture."""
    seen = getattr(network, "model", network).get_image_features(**given)
    if model.name == "llama4":
        rows = network.multi_modal_projector(seen.last_hidden_state)
        return rows.reshape(-1, rows.shape[-1])
    rows = seen.pooler_output
    rows = torch.cat(list(rows)) if isinstance(rows, list | tuple) else rows
    return rows.reshape(-1, rows.shape[-1])


def deeper_of(network: Any, given: dict[str, Any]) -> list[torch.Tensor]:
    """The rows for each of the first layers of the text model, of networks that have them."""
    found = network.model.get_image_features(**given) if hasattr(network, "model") else None
    return [torch.cat(list(one)) for one in getattr(found, "deepstack_features", None) or []]


def logits_of(
    network: Any, model: TinyEyes, given: dict[str, Any], rows: torch.Tensor
) -> torch.Tensor:
    """The logits after the prompt."""
    tokens = torch.tensor([model.prompt()])
    if model.name == "llama4":  # the whole network fails on what its text model returns
        states = network.get_input_embeddings()(tokens)
        states[tokens == IMAGE] = rows
        return network.language_model(inputs_embeds=states).logits[0, -1]
    logits = network(tokens, **given, **kinds_of_tokens(model)).logits[0, -1]
    # LLaVA-NeXT leaves out what Granite alone divides its logits by.
    return logits / getattr(network.config.text_config, "logits_scaling", 1.0)


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
        rows = rows_of(network, model, given)
        assert len(rows) == model.rows, rows.shape
        logits = logits_of(network, model, given, rows)
        rows = torch.cat([rows, *deeper_of(network, given)], dim=1)
    return {"rows": _short(rows), "logits": _short(logits)}


def _short(found: torch.Tensor) -> list[Any]:
    if found.dim() > 1:
        return [_short(row) for row in found]
    return [float(f"{x:.7g}") for x in found.tolist()]


def main() -> None:
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    for model in MODELS:
        if not sys.argv[1:] or str(model) in sys.argv[1:]:
            text = json.dumps({"made_with": made_with} | values(model))
            text = text.replace("], [", "],\n[").replace(', "', ',\n"')
            (DATA / f"{model}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

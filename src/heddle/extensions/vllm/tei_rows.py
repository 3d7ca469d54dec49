"""The fields of Hugging Face's Text Embeddings Inference for documents to rank."""

from __future__ import annotations

from typing import Any

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import ignored, served

_TOO_LONG = "a too long document is an error"

ROWS = (
    *served(Api.RERANK, "texts return_text raw_scores"),
    *ignored(Api.RERANK, "truncate", bool, _TOO_LONG, False),
    *ignored(Api.RERANK, "truncation_direction", Any, _TOO_LONG, "Right", "right"),
)

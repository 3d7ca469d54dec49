"""The fields of Hugging Face's Text Embeddings Inference for documents to rank."""

from __future__ import annotations

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import refused, served

ROWS = (
    *served(Api.RERANK, "texts return_text raw_scores truncate"),
    *refused(Api.RERANK, "truncation_direction", "texts lose their end", "Right", "right"),
)

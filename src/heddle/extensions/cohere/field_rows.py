"""The fields of Cohere's `/v2/embed`."""

from __future__ import annotations

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import refused, served

ROWS = (
    *served(Api.COHERE_EMBED, "model input_type texts inputs max_tokens output_dimension"),
    *served(Api.COHERE_EMBED, "embedding_types truncate priority"),
    *refused(Api.COHERE_EMBED, "images", "are pictures", instead="send `texts`"),
)

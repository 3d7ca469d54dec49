"""vLLM's API: converts text to token ids and back; ranks, scores, classifies and pools texts."""

from heddle.doors import Extension

EXTENSION = Extension(
    apis=("heddle.extensions.vllm.api:API",),
    fields={
        "vLLM": "heddle.extensions.vllm.field_rows:ROWS",
        "SGLang": "heddle.extensions.vllm.sglang_rows:ROWS",
        "DashScope": "heddle.extensions.vllm.dashscope_rows:ROWS",
        "Text Embeddings Inference": "heddle.extensions.vllm.tei_rows:ROWS",
    },
)

"""Models that judge how well documents answer a query."""

from heddle.doors import Extension

EXTENSION = Extension(
    judges=(
        "heddle.extensions.judges.cross_encoder:judge_of",
        "heddle.extensions.judges.qwen3_reranker:judge_of",
    )
)

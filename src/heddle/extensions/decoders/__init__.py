"""Families that are made of the core's blocks alone."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.decoders.bailing_moe:FAMILY",
        "heddle.extensions.decoders.bailing_moe_v2:FAMILY",
        "heddle.extensions.decoders.ernie4_5_moe:FAMILY",
        "heddle.extensions.decoders.exaone_moe:FAMILY",
        "heddle.extensions.decoders.gemma:FAMILY",
        "heddle.extensions.decoders.gemma2:FAMILY",
        "heddle.extensions.decoders.glm4:FAMILY",
        "heddle.extensions.decoders.glm4_moe:FAMILY",
        "heddle.extensions.decoders.granite:FAMILY",
        "heddle.extensions.decoders.internlm:FAMILY",
        "heddle.extensions.decoders.llama4:FAMILY",
        "heddle.extensions.decoders.mimo:FAMILY",
        "heddle.extensions.decoders.minicpm:FAMILY",
        "heddle.extensions.decoders.minimax_m2:FAMILY",
        "heddle.extensions.decoders.minimax_m3:FAMILY",
        "heddle.extensions.decoders.nemotron_nas:FAMILY",
        "heddle.extensions.decoders.qwen2_moe:FAMILY",
        "heddle.extensions.decoders.qwen2_vl:FAMILY",
        "heddle.extensions.decoders.qwen3_vl:FAMILY",
        "heddle.extensions.decoders.smollm3:FAMILY",
    )
)

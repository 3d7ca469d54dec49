"""DeepSeek-V2 to V4, Kimi K2, GLM, Mistral 4, Sarvam, MiniCPM3: latents, compressed keys."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.deepseek.deepseek:FAMILY",
        "heddle.extensions.deepseek.minicpm3:FAMILY",
        "heddle.extensions.deepseek.deepseek_v4:FAMILY",
    )
)

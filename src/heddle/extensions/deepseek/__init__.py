"""DeepSeek-V2 to V3.2, Kimi K2, GLM, Mistral 4, Sarvam, MiniCPM3: latent attention."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.deepseek.deepseek:FAMILY",
        "heddle.extensions.deepseek.minicpm3:FAMILY",
    )
)

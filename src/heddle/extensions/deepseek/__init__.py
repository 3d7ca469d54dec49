"""DeepSeek-V2 to V3.2, Kimi K2, GLM-4.7-Flash and GLM-5: families with latent attention."""

from heddle.doors import Extension

EXTENSION = Extension(families=("heddle.extensions.deepseek.deepseek:FAMILY",))

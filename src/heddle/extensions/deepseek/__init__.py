"""DeepSeek-V2 and V3, GLM-4.7-Flash: families with latent attention."""

from heddle.doors import Extension

EXTENSION = Extension(families=("heddle.extensions.deepseek.deepseek:FAMILY",))

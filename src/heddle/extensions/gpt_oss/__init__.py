"""GPT-OSS: attention with sinks, and experts with a clamped activation."""

from heddle.doors import Extension

EXTENSION = Extension(families=("heddle.extensions.gpt_oss.gpt_oss:FAMILY",))

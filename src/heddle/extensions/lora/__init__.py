"""Adapters of low rank (LoRA): read from their files, served, and merged into matrices."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.lora.settings:LoraSettings",),
    parameters=("heddle.extensions.lora.parameters:LoraParams",),
    apis=("heddle.extensions.lora.routes:API", "heddle.extensions.lora.scales:API"),
    commands={"merge": "heddle.extensions.lora.command:merge"},
    adapters="heddle.extensions.lora.library:AdapterLibrary",
)

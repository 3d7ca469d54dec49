"""Adapters of low rank (LoRA): read from their files, and merged into a model's matrices."""

from heddle.doors import Extension

EXTENSION = Extension()

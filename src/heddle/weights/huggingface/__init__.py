"""Reads the folders that `transformers` writes: config.json, safetensors, tokenizer.json."""

"""GGUF: reading its files, and its names of what a checkpoint has."""

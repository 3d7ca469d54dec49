"""GGUF: reads its files, and maps its names to the canonical names of a checkpoint."""

"""vLLM's API: text to token ids and back."""

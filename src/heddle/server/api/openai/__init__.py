"""OpenAI's API: chat and text completions, responses, embeddings."""

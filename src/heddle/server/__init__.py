"""The HTTP room: the APIs of OpenAI and Anthropic, some of llama.cpp's, and what a server says of
itself, over one engine."""

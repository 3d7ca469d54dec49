"""The HTTP room: OpenAI's API over one engine, and what a server says about itself."""

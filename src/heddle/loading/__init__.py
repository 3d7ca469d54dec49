"""The way from a name to a model that can run: files, tokenizer, chat template, executor."""

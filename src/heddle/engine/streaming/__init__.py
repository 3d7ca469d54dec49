"""The way from the tokens of a step to the deltas that callers read."""

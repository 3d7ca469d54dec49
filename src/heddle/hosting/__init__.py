"""The models of one process: loaded, found by name, fetched, unloaded. Each has an engine."""

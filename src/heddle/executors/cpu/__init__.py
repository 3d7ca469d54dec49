"""The CPU executor: weights packed for the native core, plans run by it."""

"""Executors: they run steps on a device. All of them run the same recorded graph."""

"""Test oracles: definitions in NumPy for tests of the native core. Not for serving."""

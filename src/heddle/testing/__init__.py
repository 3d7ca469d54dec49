"""Test oracles: definitions in NumPy that the native core is tested against, not for serving."""

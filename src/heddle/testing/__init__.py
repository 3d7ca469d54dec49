"""Oracles: NumPy definitions that the native core is tested against. Nothing serves from here."""

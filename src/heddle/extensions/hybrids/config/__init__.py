"""Readers of what only hybrids' config.json has."""

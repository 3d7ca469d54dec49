"""Grammars that outputs follow."""

"""Engram tables: which tokens followed which n-grams in some texts, in files."""

"""Decides which tokens of which sequences the next step computes.

Works on integers only: no arrays, no text.
"""

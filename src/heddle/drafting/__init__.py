"""Drafters: they guess the next tokens of a sequence, for steps that check many at a time.

`scheduler/speculation.py` has their protocol, and decides which guesses a step computes.
"""

"""Drafters: they guess the next tokens of a sequence, for steps that check many at a time.

`scheduler/guessing.py` has their protocol, `scheduler/speculation.py` decides which guesses a step
computes, and `engine/drafters.py` finds the drafters of extensions.
"""

"""Ranks: processes that compute a model together (tensor parallelism).

Rank 0 is in the process of the engine. It starts the others as children (`group.py`), here or on
other machines. They run `child.py`, and rank 0 sends them each step as integers (`plans.py`) over a
socket (`channel.py`). During a step, the device's executor connects the ranks.
"""

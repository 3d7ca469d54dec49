"""Ranks: processes that compute a model together (tensor parallelism).

Rank 0 is in the process of the engine. It starts the others as children (`group.py`), which run
`child.py`, and sends them each step as integers (`plans.py`) over a socket (`channel.py`). What the
ranks tell one another during a step is the matter of the device's executor.
"""

"""Child processes of devices: messages, handshake, signs of life, and how they end.

`process.py` is the parent's side, and `program.py` the child's. `ranks/` and `process/` use both.
"""

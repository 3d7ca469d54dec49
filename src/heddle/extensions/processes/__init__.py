"""The executor of a device in a process of its own.

`load.py` starts the process, which runs `child.py`. `executor.py` is the executor that the engine
sees. Both ends are the same program, and nobody else has the socket between them. So messages are
pickled. `plans.py` and `rules.py` make them small. Grammars stay in the engine's process
(`edits.py`).
"""

from heddle.doors import Extension

EXTENSION = Extension()

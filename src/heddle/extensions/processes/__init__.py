"""The executor of a device in a process of its own.

`load.py` starts the process, which runs `child.py`. `executor.py` is the executor that the engine
sees. `messages.py`, `plans.py` and `rules.py` have the messages between them. Grammars stay in the
engine's process (`edits.py`).
"""

from heddle.doors import Extension

EXTENSION = Extension(settings=("heddle.extensions.processes.settings:ProcessSettings",))

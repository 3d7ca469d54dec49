"""The `heddle` command, and `python -m heddle`.

Its imports take a third of a second, and Python would show a traceback if an interrupt came in
between. So during the imports, and after the command has ended, SIGINT ends the process silently.
"""

import atexit
import os
import signal
import sys
import threading
from typing import NoReturn


def main() -> None:
    """Run the command line. After an interrupt the exit code is 130, or SIGINT ends the process."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not with nohup
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from heddle.cli import run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run(sys.argv[1:])
    if interruptible:  # a second interrupt does not wait for the end of the interpreter
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _end(code)


def _end(code: int) -> NoReturn:
    """End the process, and do not wait for threads that still work.

    They work for clients of a server that has stopped. A large body takes seconds, a grammar up to
    half a minute, and nothing can interrupt either.
    """
    if threading.active_count() > 1:
        atexit._run_exitfuncs()  # ends child processes, for one
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # as after `>&-`
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()

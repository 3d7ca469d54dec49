"""The `heddle` command, and `python -m heddle`.

Its imports take a third of a second, and Python would show a traceback if an interrupt came in
between. So during the imports, and after the command has ended, SIGINT ends the process silently.
"""

import signal
import sys


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
    sys.exit(code)


if __name__ == "__main__":
    main()

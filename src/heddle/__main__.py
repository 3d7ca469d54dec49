"""The `heddle` command, and `python -m heddle`.

Its imports take a third of a second, and Python shows the traceback of an interrupt amid them.
Until they are done, and once the command has ended, SIGINT ends the process without a word.
"""

import signal
import sys


def main() -> None:
    """Run the command line; the exit code is 130 after an interrupt, or the signal itself."""
    ordinary = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not under nohup
    if ordinary:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from heddle.cli import run

    if ordinary:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run(sys.argv[1:])
    if ordinary:  # a second one waits for nothing that the interpreter does at its end
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    main()

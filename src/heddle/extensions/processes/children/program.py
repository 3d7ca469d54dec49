"""The life of a child process, in the child.

It ends when its parent closes the channel, or ends itself. It ignores signals that ask it to end. A
service manager sends them to all processes, and the parent finishes its requests first.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

from heddle.extensions.processes.children.channel import Channel, ChannelClosedError, Life
from heddle.extensions.processes.children.versions import program_version

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT_SECONDS = 0.5
"""Time between two signs of life."""


def serve_parent(descriptor: int, serve: Callable[[Channel], None]) -> None:
    """Run `serve` with the channel to the parent. Its errors end the process with a reason."""
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor))
    threading.Thread(target=_beat, args=(channel,), name="heddle-beat", daemon=True).start()
    try:
        channel.send(Life.HELLO, json.dumps(program_version()).encode())
        serve(channel)
    except ChannelClosedError:
        pass  # the parent has ended
    except Exception as error:
        channel.send(Life.FAILED, str(error).encode())
        raise SystemExit(1) from error


def _beat(channel: Channel) -> None:
    """Tell the parent that this process lives. End the process when the parent has ended.

    The main thread may compute for a minute then, or wait for a rank that has ended too.
    """
    while True:
        time.sleep(BEAT_SECONDS)
        try:
            channel.send(Life.BEAT)
        except ChannelClosedError:
            os._exit(1)

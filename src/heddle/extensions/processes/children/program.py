"""The life of a child process, in the child.

It ends when its parent closes the channel, or ends itself. It ignores signals that ask it to end. A
service manager sends them to all processes, and the parent finishes its requests first.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from heddle.extensions.processes.children.channel import Channel, ChannelClosedError
from heddle.extensions.processes.children.messages import Beat, Close, Failed, Hello
from heddle.extensions.processes.children.versions import program_version

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT_SECONDS = 0.5
"""Time between two signs of life."""


def serve_parent(descriptor: int, received: Any, serve: Callable[[Channel[Any]], None]) -> None:
    """Run `serve` with the channel to the parent. Its errors end the process with a reason.

    `received` is the union of the parent's messages, except those about the child's life.
    """
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.SIG_IGN)
    channel: Channel[Any] = Channel(socket.socket(fileno=descriptor), Close | received)
    threading.Thread(target=_beat, args=(channel,), name="heddle-beat", daemon=True).start()
    try:
        channel.send(Hello(program_version()))
        serve(channel)
    except ChannelClosedError:
        pass  # the parent has ended
    except Exception as error:
        channel.send(Failed(str(error)))
        raise SystemExit(1) from error


def _beat(channel: Channel[Any]) -> None:
    """Tell the parent that this process lives. End the process when the parent has ended.

    The main thread may compute for a minute then, or wait for a rank that has ended too.
    """
    while True:
        time.sleep(BEAT_SECONDS)
        try:
            channel.send(Beat())
        except ChannelClosedError:
            os._exit(1)

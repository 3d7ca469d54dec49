"""`heddle top`: engines at work, in a terminal."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from heddle.extensions.top.feed import Feed
    from heddle.extensions.top.seen import Seen

_FRAME_SECONDS = 0.1


def top(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="Address of a server of Heddle.")
    ] = "http://127.0.0.1:8080",
    *,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="HEDDLE_PEER_KEY",
            help="API key for the server. Set the variable to keep it out of process lists.",
        ),
    ] = None,
) -> None:
    """Show what the engines of a server do: slots, steps, rates, memory. q ends it.

    Without a terminal, it prints one picture.
    """
    from rich.console import Console

    from heddle.extensions.top.feed import Feed
    from heddle.extensions.top.keys import pressed_keys

    address = _address(url)
    feed = Feed(address, key)
    try:
        console = Console(highlight=False)
        if not console.is_terminal:
            show_once(feed, address, console)
            return
        with pressed_keys() as pressed:
            show(feed, address, console, pressed)
    finally:
        feed.close()


def show_once(feed: Feed, url: str, console: Console) -> None:
    """Print one picture, as soon as each model has shown its state."""
    from heddle.extensions.top.picture import picture
    from heddle.extensions.top.seen import Seen

    seen = Seen()
    while not (seen.is_complete or seen.trouble):
        seen.take(feed.events.get())
    plain = console.options.ascii_only
    console.print(picture(seen, url, console.width, 1000, plain=plain))


def show(feed: Feed, url: str, console: Console, pressed: Callable[[], str]) -> None:
    """Draw until the user presses q or Ctrl-C."""
    from rich.live import Live

    from heddle.extensions.top.picture import picture
    from heddle.extensions.top.seen import Seen

    seen = Seen()
    plain = console.options.ascii_only
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while "q" not in pressed().lower():
            _take_all(feed, seen)
            width, height = console.size
            live.update(picture(seen, url, width, height, plain=plain), refresh=True)


def _take_all(feed: Feed, seen: Seen) -> None:
    """Take what has come, and wait a moment for the first of it."""
    with suppress(Empty):
        seen.take(feed.events.get(timeout=_FRAME_SECONDS))
        while True:
            seen.take(feed.events.get_nowait())


def _address(url: str) -> str:
    full = url if "://" in url else f"http://{url}"
    return full.rstrip("/").removesuffix("/v1")

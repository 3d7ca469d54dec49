"""`heddle serve`: the HTTP server."""

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.loading import load
from heddle.cli.newcomer import chosen
from heddle.cli.options import ModelOrDefault, with_settings
from heddle.config import EngineConfig, ServerConfig

if TYPE_CHECKING:
    import socket

    from heddle.engine import Engine


@with_settings
def serve(
    model: ModelOrDefault = None,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log one line per request.")
    ] = False,
    server: ServerConfig,
    engine: EngineConfig,
) -> None:
    """Serve a model over HTTP with OpenAI's and Anthropic's APIs."""
    from heddle.server.app import create_app
    from heddle.server.http.keys import keys_of
    from heddle.server.http.process import bind
    from heddle.server.http.process import serve as run

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    log = logging.getLogger("heddle")
    if log.level != logging.DEBUG:  # --debug has set it
        log.setLevel(logging.INFO if verbose else logging.WARNING)
    keys_of(server)  # report bad keys before loading a model
    with bind(server) as listener, load(chosen(model, engine), engine) as loaded:
        run(
            create_app(loaded, server),
            loaded,
            server,
            listener,
            on_ready=lambda: _announce(loaded, listener),
        )


def _announce(engine: "Engine", listener: "socket.socket") -> None:
    from heddle.server.http.process import url

    info, config = engine.model.info, engine.config
    print(f"model     {info.id} ({info.parameters / 1e6:,.0f}M {info.quantisation}, {info.path})")
    print(f"runs on   {engine.model.executor.summary}")
    print(f"slots     {config.slots} of {info.context:,} tokens, queue {config.queue}")
    print(f"ready     {url(listener)}/v1", flush=True)

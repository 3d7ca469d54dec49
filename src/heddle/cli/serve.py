"""`heddle serve`: the HTTP server."""

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.loading import load
from heddle.cli.newcomer import chosen
from heddle.cli.options import ModelOrDefault, with_settings
from heddle.config import EngineConfig, ServerConfig

if TYPE_CHECKING:
    from heddle.engine import Engine


@with_settings
def serve(
    model: ModelOrDefault = None,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log one line per request, at its end.")
    ] = False,
    server: ServerConfig,
    engine: EngineConfig,
) -> None:
    """Serve a model over HTTP with OpenAI's and Anthropic's APIs."""
    from heddle.cli.logs import logging_to_stderr
    from heddle.server.app import create_app
    from heddle.server.http.access import is_loopback
    from heddle.server.http.keys import keys_of
    from heddle.server.http.process import bind, url
    from heddle.server.http.process import serve as run
    from heddle.server.http.tls import tls_of

    tls_of(server)  # report bad files before loading a model
    keys = keys_of(server)
    with (
        logging_to_stderr(server.log_level, server.log_format, verbose=verbose),
        bind(server) as listener,
    ):
        if keys.admits_all and not is_loopback(server.host):
            logging.getLogger("heddle").warning(
                "%s is reachable from other machines, and without API keys everyone who reaches it"
                " may use the server; set --api-key-file, or --host 127.0.0.1",
                server.host,
            )
        with load(chosen(model, engine), engine) as loaded:
            run(
                create_app(loaded, server),
                loaded,
                server,
                listener,
                on_ready=lambda: _announce(loaded, url(listener, server)),
            )


def _announce(engine: "Engine", address: str) -> None:
    info, config = engine.model.info, engine.config
    print(f"model     {info.id} ({info.parameters / 1e6:,.0f}M {info.quantisation}, {info.path})")
    print(f"runs on   {engine.model.executor.summary}")
    print(f"slots     {config.slots} of {info.context:,} tokens, queue {config.queue}")
    print(f"ready     {address}/v1", flush=True)

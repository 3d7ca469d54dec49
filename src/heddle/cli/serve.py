"""`heddle serve`: the HTTP server."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.newcomer import chosen
from heddle.cli.options import MODEL_HELP, Sources, with_settings
from heddle.cli.settings_file import NAME, FiledModel
from heddle.config import DEFAULT_MODEL, EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError
from heddle.sizes import counted

if TYPE_CHECKING:
    from fastapi import FastAPI

    from heddle.engine import Engine
    from heddle.hosting.registry import Registry
    from heddle.server.http.keys import Keys

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODELS", help=MODEL_HELP, show_default=DEFAULT_MODEL),
]
Default = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Model for requests that name none, and for aliases.",
        show_default="the first",
    ),
]


@with_settings
def serve(
    models: Models = None,
    *,
    default: Default = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log one line per request, at its end.")
    ] = False,
    server: ServerConfig,
    registry: RegistryConfig,
    engine: EngineConfig,
    sources: Sources,
) -> None:
    """Serve models over HTTP, with OpenAI's API and those of extensions."""
    from heddle.cli.logs import logging_to_stderr
    from heddle.process_memory import frozen_start
    from heddle.server.http.keys import keys_of
    from heddle.server.http.listener import bind, url
    from heddle.server.http.tls import tls_of

    tls_of(server)  # report bad files before loading a model
    keys = keys_of(server)
    with ExitStack() as stack:
        logs = logging_to_stderr(server.log_level, server.log_format, verbose=verbose)
        set_level = stack.enter_context(logs)
        listener = stack.enter_context(bind(server))
        _warn_if_open(keys, server.host)
        _warn_of_files(sources)
        with frozen_start():
            from heddle.hosting.registry import Registry
            from heddle.weights.progress import on_console

            loaded = stack.enter_context(Registry(registry, engine, progress=on_console()))
            served = _served(models, sources)
            if not (served or registry.models_dir):
                served = [FiledModel(chosen(None))]
            added = [
                loaded.add(
                    one.source,
                    name=one.name,
                    config=sources.resolve(engine, one) if one.settings else None,
                )
                for one in served
            ]
            _set_default(loaded, default or sources.file.default)
            on_demand = [loaded.default] if loaded.default else []
            app = _load(loaded, on_demand if registry.autoload else added, server)
        loaded.check_libraries()
        address = url(listener, server)

        from heddle.cli.reload import Changeable, Reload, reload_at_hangup
        from heddle.server.app import use_keys
        from heddle.server.http.process import serve as run

        def change_keys(keys: "Keys") -> None:
            use_keys(app, keys)
            _warn_if_open(keys, server.host)

        reload = Reload(Changeable(loaded, change_keys, set_level), sources)
        stack.enter_context(reload_at_hangup(reload))
        place = _place(app, address)
        lines = [
            *_first_request(loaded, address, with_key=not keys.admits_all),
            f"ready     {place}",
        ]
        run(app, loaded, server, listener, on_ready=lambda: _announce(loaded, server, lines))


def _served(named: Sequence[str] | None, sources: Sources) -> Sequence[FiledModel]:
    """The models that the command line names, else those of the file.

    A name on the command line may be that of a table in the file.
    """
    tables = {one.name: one for one in sources.file.models}
    return [tables.get(one) or FiledModel(one) for one in named or ()] or sources.file.models


def _warn_if_open(keys: "Keys", host: str) -> None:
    from heddle.server.http.listener import is_loopback

    if keys.admits_all and not is_loopback(host):
        logging.getLogger("heddle").warning(
            "%s is reachable from other machines, and without API keys everyone who reaches it"
            " may use the server; set --api-key-file, or --host 127.0.0.1",
            host,
        )


def _warn_of_files(sources: Sources) -> None:
    log, file = logging.getLogger("heddle"), sources.file
    if file.shows_secrets:
        log.warning("other users can read the keys in %s; run chmod 600 %s", file.path, file.path)
    if file.path is None and Path(NAME).is_file():
        log.warning("%s of this folder is not read; --config %s reads it", NAME, NAME)


def _load(registry: "Registry", names: Sequence[str], config: ServerConfig) -> "FastAPI":
    """Load models, and make the application meanwhile: weights are packed without the GIL."""
    made = Event()

    def wait(_name: str, _engine: "Engine") -> None:
        made.wait()

    registry.on_loaded(wait)  # a load ends only when the application can hear of it
    loads = [registry.begin_known(name) for name in names]
    try:
        import heddle.server.http.process  # noqa: F401 - `serve` runs it when the models are loaded
        from heddle.server.app import create_app

        app = create_app(registry, config)
    finally:
        made.set()
    for load in loads:
        load.result()
    return app


def _set_default(registry: "Registry", name: str | None) -> None:
    if name is None:
        return
    if name not in registry:
        known = ", ".join(registry.names)
        raise ConfigError(f"default: {name!r} is not one of the models: {known}", param="default")
    registry.default = name


def _place(app: "FastAPI", address: str) -> str:
    """The API's address for the line `ready`, and that of the route `page` if there is one."""
    from starlette.routing import NoMatchFound

    try:
        page = app.url_path_for("page")
    except NoMatchFound:
        return f"{address}/v1"
    return f"{address}/v1 (page: {address}{page})"


def _first_request(registry: "Registry", address: str, *, with_key: bool) -> list[str]:
    """The line with a request to copy; none if the default model is not loaded."""
    engine = registry.engines.get(registry.default)
    if engine is None:
        return []
    route, body = "embeddings", '{"input": "Hello!"}'
    if engine.model.shape.causal:
        route, body = "chat/completions", '{"messages": [{"role": "user", "content": "Hello!"}]}'
    key = " -H 'authorization: Bearer KEY'" if with_key else ""
    head = f"-H 'content-type: application/json'{key}"
    return [f"try       curl {address}/v1/{route} {head} -d '{body}'"]


def _announce(registry: "Registry", server: ServerConfig, last: Sequence[str]) -> None:
    for engine in registry.engines.values():
        info, config = engine.model.info, engine.config
        print(
            f"model     {info.id} ({info.parameters / 1e6:,.0f}M {info.quantisation}, {info.path})"
        )
        print(f"runs on   {engine.model.executor.summary}")
        if engine.model.eyes is not None:
            print(f"sees      pictures ({engine.model.eyes.summary})")
        print(f"slots     {config.slots} of {counted(info.context, 'token')}, queue {config.queue}")
    waiting = [name for name in registry.names if name not in registry.engines]
    if waiting:
        print(f"on demand {', '.join(waiting)}")
    if len(registry.names) == 1 and not server.any_model:
        names = ", ".join((*registry.names, *server.alias))
        print(f"names     {names}; --any-model accepts every model name in a request")
    for line in last:
        print(line, flush=True)

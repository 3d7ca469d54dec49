"""The settings, as frozen classes. Every setting has a default, a group and a line of help."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heddle.defaults import checked
from heddle.errors import ConfigError
from heddle.settings import setting, validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_MODEL = "smollm2-135m"

MAX_MODEL_NAME = 256
"""Most characters of a model's name in a request. Each event of a stream repeats the name."""

_KEY = re.compile(r"(?:[A-Za-z0-9_.@-]{1,64}:[ \t]+)?[\x21-\x7e]+")
"""A key, or a name and a key: `NAME: KEY`. A key without a space before it may hold colons."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.:\[\]-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """Where models come from. :func:`heddle.hub_place.hub_place` adds the variables of the hub."""

    hub_cache: str = setting(
        "",
        "model",
        "folder for models of the Hugging Face hub; empty = HF_HUB_CACHE, else HF_HOME/hub, else"
        " ~/.cache/huggingface/hub",
    )
    offline: bool = setting(
        False,
        "model",
        "take models from the caches only, never from the network (also: HF_HUB_OFFLINE)",
    )

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(HubConfig):
    """How one model is loaded and run."""

    slots: int = setting(8, "scheduling", "most requests that run at once", low=1, high=1024)
    queue: int = setting(
        64, "scheduling", "most requests that wait for a slot", low=0, high=100_000
    )
    queue_timeout: int = setting(
        0,
        "scheduling",
        "longest time, in s, that a request waits for its first slot; then 503; 0 = no limit",
        low=0,
        high=86_400,
    )
    max_prompt_tokens: int = setting(
        0, "requests", "most tokens of a prompt; 0 = as many as the context holds", low=0
    )
    max_output_tokens: int = setting(
        0,
        "requests",
        "most tokens that a request generates; a larger max_tokens is lowered to it; 0 = no limit",
        low=0,
    )
    min_priority: int = setting(
        0,
        "scheduling",
        "lowest `priority` of requests from clients of a server; lower numbers run earlier",
        low=-(2**31) + 1,
        high=2**31 - 1,
    )
    client_requests: int = setting(
        0,
        "scheduling",
        "most requests of one client (API key, else address) that run or wait at once; each choice"
        " counts; 0 = no limit",
        low=0,
    )
    client_tokens: int = setting(
        0,
        "scheduling",
        "tokens per minute, prompt and output, that one client may use; 0 = no limit",
        low=0,
    )
    batch_tokens: int = setting(
        512, "scheduling", "most tokens computed in one step", low=1, high=65_536
    )
    max_gap_ms: int = setting(
        0,
        "scheduling",
        "longest step, in ms, while prefill runs beside decode; 0 = 2.6 decode steps",
        low=0,
        high=3_600_000,
    )
    prefer_decode: bool = setting(
        False,
        "scheduling",
        "while streams decode, let prompts have 4 tokens of a step, so that streams keep their pace"
        " and first tokens come later; --max-gap-ms then changes nothing",
    )
    batch_window_us: int = setting(
        200,
        "scheduling",
        "how long a step waits, in µs, so that callers who drive sequences token by token share a"
        " batch",
        low=0,
        high=1_000_000,
    )
    device: str = setting(
        "cpu",
        "devices",
        "device that computes: cpu; torch (torch on the processor) or cuda[:N] (a GPU), which need"
        " the extra of that name; reference (slow NumPy, to check results)",
    )
    tensor_parallel: int = setting(
        1,
        "devices",
        "processes that compute the model together, each with a part of the weights; on devices"
        " torch and cuda",
        low=1,
        high=64,
    )
    devices: str = setting(
        "",
        "devices",
        "numbers of the GPUs of --tensor-parallel, separated by commas; empty = the first ones",
    )
    rank_timeout: int = setting(
        60,
        "devices",
        "longest time, in s, that a process of --device cuda or of --tensor-parallel may be silent,"
        " or wait for the others; then the model fails",
        low=1,
        high=3600,
    )
    threads: int = setting(
        0,
        "devices",
        "compute threads; 0 = one per core that this process may use",
        low=0,
        high=1024,
    )
    context: int = setting(0, "model", "most tokens per sequence; 0 = the model's own limit", low=0)
    kv_cache: int = setting(
        0,
        "memory",
        "size of the KV cache; 0 = enough for full slots, at most half of the free memory",
        low=0,
        size=True,
    )
    gpu_memory: float = setting(
        0.9,
        "memory",
        "largest part of a GPU's memory in use, other programs included, once weights, KV cache and"
        " buffers are allocated",
        low=0.05,
        high=1.0,
    )
    cuda_graphs: bool = setting(
        True,
        "devices",
        "record decode steps as CUDA graphs at load, which then start in one launch; off = launch"
        " each kernel of each step",
    )
    min_free_memory: int = setting(
        512 * 1024**2,
        "memory",
        "memory to keep free: a load that leaves less is refused, and while less is free, new"
        " requests get 503; 0 = no check",
        low=0,
        size=True,
    )
    watchdog: int = setting(
        120,
        "logging",
        "time in s without progress after which a busy model is not ready (/health/ready) and the"
        " log shows where it stands; after 3 times as long it is not live; 0 = never",
        low=0,
        high=86_400,
    )
    prefix_cache: bool = setting(True, "memory", "reuse computed prefixes in later requests")
    prefix_cache_nodes: int = setting(
        0, "memory", "most nodes of the prefix cache; 0 = as many as the pages hold", low=0
    )
    state_every: int = setting(
        256,
        "memory",
        "tokens between two snapshots of a recurrent state, from which prefixes continue",
        low=32,
        high=1 << 20,
    )
    prefix_cache_dir: str = setting(
        "",
        "memory",
        "directory for evicted prefixes, and for all prefixes at a stop; empty = no disk tier",
    )
    prefix_cache_disk: int = setting(
        4 * 1024**3, "memory", "most bytes of files in --prefix-cache-dir", low=1, size=True
    )
    kv_type: str = setting(
        "f16",
        "memory",
        "storage of keys and values: f16; q8_0, which holds nearly twice as many tokens; or, on"
        " devices torch and cuda, fp8 (E4M3), which holds twice as many",
        choices=("f16", "q8_0", "fp8"),
    )
    quantize: str = setting(
        "none",
        "model",
        "type that matrices stored as floats get at load: q8_0, q6_k, q5_k, q4_k, q4_0, mxfp4;"
        " none = as stored",
        choices=("none", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "mxfp4"),
    )
    speculation: str = setting(
        "auto",
        "speculation",
        "whether steps guess tokens and check them: auto = where that is faster, off = only for"
        " requests that ask; the output is the same",
        choices=("auto", "off"),
    )
    draft: str = setting(
        "",
        "speculation",
        "small model with the same vocabulary that guesses tokens for the model; empty = none",
    )
    draft_required: bool = setting(
        True,
        "speculation",
        "whether a model whose vocabulary differs from the draft model's is refused; off = it runs"
        " without these guesses, as models beside the default one always do",
    )
    model_memory: int = setting(
        0,
        "memory",
        "most bytes of memory for weights, KV cache and buffers of one model; 0 = what the machine"
        " has",
        low=0,
        size=True,
    )
    pooling: str = setting(
        "auto",
        "requests",
        "default pooling of embeddings: mean of all tokens, last token, none = a vector for each"
        " token, or auto = the pooling that the model's file names, else mean",
        choices=("auto", "mean", "last", "none"),
    )
    generation_config: str = setting(
        "auto",
        "model",
        "defaults of sampling parameters: auto = recommended by the model's files, none = Heddle's"
        " defaults",
        choices=("auto", "none"),
    )
    engram: tuple[str, ...] = setting(
        (),
        "requests",
        "engram tables that requests may name, each NAME=PATH, separated by commas; repeatable",
    )
    engram_alpha: float = setting(
        0.2,
        "requests",
        "strength of engram tables in requests without `engram_alpha`",
        low=0,
        high=100,
    )
    engram_unchecked: bool = setting(
        False,
        "requests",
        "take engram tables of version 1, which do not say for which vocabulary they were built; by"
        " default they are refused",
    )
    chat_template: str = setting(
        "",
        "model",
        "file with a chat template in Jinja, in place of the model's; empty = the model's",
    )
    chat_template_kwargs: str = setting(
        "",
        "model",
        'JSON object with variables of chat templates, such as {"enable_thinking": false};'
        " requests may send others",
    )
    allow_nonfinite: bool = setting(
        False, "model", "load files with infinite or NaN weights; by default they are refused"
    )
    isa: str = setting(
        "auto",
        "devices",
        "instruction level of the kernels; auto = the highest level of this machine",
        choices=("auto", "portable", "avx2", "avxvnni", "avx512", "neon"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Which models a process holds, and for how long."""

    memory: int = setting(
        0,
        "memory",
        "most bytes of memory for all models; to load another model, idle models are unloaded, the"
        " least recently used first; 0 = no limit of this kind",
        low=0,
        size=True,
    )
    models_dir: str = setting(
        "",
        "model",
        "folder with models that requests may load by name; empty = requests load no file",
    )
    hub_models: bool = setting(
        False, "model", "let requests load models of the Hugging Face hub, and so fill the disk"
    )
    autoload: bool = setting(
        False,
        "model",
        "load a known model when a request names it; by default such a request is a 404",
    )
    keep_alive: int = setting(
        0,
        "model",
        "seconds without a request after which a model is unloaded; needs --autoload, so that the"
        " next request loads it again; 0 = never",
        low=0,
    )
    auto_recover: int = setting(
        0,
        "model",
        "how often a poisoned model is loaded again by itself, after 1, 2, 4, ... s; 0 = never",
        low=0,
        high=1000,
    )
    unload_seconds: int = setting(
        30, "model", "most seconds that accepted requests may take while their model unloads", low=0
    )

    def __post_init__(self) -> None:
        validate(self)
        if self.keep_alive and not self.autoload:
            raise ConfigError(
                f"keep_alive {self.keep_alive} unloads idle models, and no request would load them"
                " again; set autoload (--autoload) too",
                param="keep_alive",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the HTTP server listens."""

    host: str = setting("127.0.0.1", "network", "address to listen on")
    port: int = setting(8080, "network", "port to listen on; 0 = a free port", low=0, high=65_535)
    max_body: int = setting(
        8 * 1024**2, "network", "largest request body; a larger body is a 413", low=1024, size=True
    )
    body_timeout: int = setting(
        30,
        "network",
        "longest time, in s, for a request body to arrive; then 408",
        low=1,
        high=86_400,
    )
    backlog: int = setting(
        256 * 1024**2,
        "network",
        "most bytes of unread answers in memory; above, the server ends the largest answer",
        low=64 * 1024,
        size=True,
    )
    send_timeout: int = setting(
        60,
        "network",
        "seconds before the server disconnects a client that does not read its answer",
        low=1,
        high=86_400,
    )
    stream_ping: float = setting(
        10.0,
        "network",
        "seconds between comments in a stream of events that waits for its first token; 0 = none",
        low=0,
        high=86_400,
    )
    drain: int = setting(
        5,
        "network",
        "most seconds that a stopping server waits for running requests",
        low=0,
        high=86_400,
    )

    tls_cert: str = setting(
        "",
        "network",
        "PEM file with the server's certificate, then its issuers; empty = plain HTTP",
    )
    tls_key: str = setting("", "network", "PEM file with the private key of --tls-cert")
    log_level: str = setting(
        "warning",
        "logging",
        "lowest level of lines in the log; info = also the start and the end of each request",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = setting(
        "text",
        "logging",
        "form of lines in the log: text, or json = one object a line",
        choices=("text", "json"),
    )
    metric_names: str = setting(
        "heddle",
        "logging",
        "names of metrics: heddle, or llamacpp = also llama.cpp's, of the default model",
        choices=("heddle", "llamacpp"),
    )
    slot_save_path: str = setting(
        "",
        "memory",
        "directory for the files of POST /slots/{id}?action=save and restore; empty = 501",
    )
    metrics_route: bool = setting(True, "logging", "answer GET /metrics; off = 501")
    slots_route: bool = setting(True, "logging", "answer GET /slots; off = 501")
    otel_endpoint: str = setting(
        "",
        "logging",
        "URL of an OpenTelemetry collector (OTLP over HTTP) that gets a span of each request; needs"
        " heddle[otel]; empty = OTEL_EXPORTER_OTLP_ENDPOINT, else no spans",
    )

    api_key: tuple[str, ...] = setting(
        (),
        "keys",
        "API keys, separated by commas, each KEY or `NAME: KEY`; each request must send a key;"
        " repeatable",
        secret=True,
    )
    api_key_file: str = setting("", "keys", "file with API keys, one per line")
    admin_key: tuple[str, ...] = setting(
        (),
        "keys",
        "keys, as in --api-key, for routes that load and unload models or change the prefix cache",
        secret=True,
    )
    admin_key_file: str = setting("", "keys", "file with admin keys, one per line")
    prefix_cache_per_key: bool = setting(
        False, "keys", "share prefixes only between requests with the same API key"
    )
    trusted_proxy: tuple[str, ...] = setting(
        (),
        "network",
        "addresses or networks of proxies whose X-Forwarded-For names the client, separated by"
        " commas; repeatable; empty = the header is ignored",
    )
    cors: tuple[str, ...] = setting(
        (),
        "network",
        "origins whose web pages may use the server, separated by commas; localhost = this"
        " machine's, on any port; * = all; repeatable",
    )
    alias: tuple[str, ...] = setting(
        (), "requests", "further names of the model in requests, separated by commas; repeatable"
    )
    tags: tuple[str, ...] = setting(
        (),
        "requests",
        "labels of the model in /v1/models, for clients, separated by commas; repeatable",
    )
    any_model: bool = setting(
        False, "requests", "accept any model name in a request; by default an unknown name is a 404"
    )
    lenient: bool = setting(
        False,
        "requests",
        "ignore fields of a body that are unknown or not supported, unless they constrain the"
        " answer, and name them in headers; by default they are a 400",
    )

    open_schemas: bool = setting(
        False,
        "requests",
        "allow members that an object's JSON schema does not name; by default only schemas that set"
        " additionalProperties allow them",
    )

    sampling: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={
            "group": "sampling",
            "doc": "defaults of sampling parameters, by name",
            "parameters": True,
        },
    )

    def __post_init__(self) -> None:
        validate(self)
        object.__setattr__(self, "sampling", checked(self.sampling))  # the class is frozen
        check_keys(self.api_key, "api_key")
        check_keys(self.admin_key, "admin_key")
        _check_networks(self.trusted_proxy)
        _check_origins(self.cors)
        _check_aliases(self.alias)
        if self.prefix_cache_per_key and not (self.api_key or self.api_key_file):
            raise ConfigError(
                "prefix_cache_per_key needs API keys; set api_key or api_key_file",
                param="prefix_cache_per_key",
            )


def check_keys(keys: Sequence[str], param: str) -> None:
    """Refuse API keys that no header can carry. The message gives a key's number, never the key.

    Raises:
        ConfigError: a key is empty or has characters other than visible ASCII.
    """
    for number, key in enumerate(keys, 1):
        if not _KEY.fullmatch(key):
            raise ConfigError(
                f"{param}: key {number} of {len(keys)} must be visible ASCII"
                " characters, at least one, without spaces; before it may stand a name, as in"
                " `NAME: KEY`",
                param=param,
            )


def _check_networks(networks: Sequence[str]) -> None:
    for text in networks:
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            raise ConfigError(
                f"trusted_proxy must be an address or a network such as 10.0.0.0/8, got {text!r}:"
                f" {error}",
                param="trusted_proxy",
            ) from None


def _check_origins(origins: Sequence[str]) -> None:
    for origin in origins:
        if origin not in ("*", "localhost") and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                "cors must be *, localhost or an origin such as https://example.org:8443, got"
                f" {origin!r}",
                param="cors",
            )


def _check_aliases(names: Sequence[str]) -> None:
    for name in names:
        if not 0 < len(name) <= MAX_MODEL_NAME:
            raise ConfigError(
                f"alias must be a name of 1 to {MAX_MODEL_NAME} characters, got {len(name)}:"
                f" {name[:20]!r}",
                param="alias",
            )

"""Settings of one model: how it is loaded and run."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from heddle.config.extended import ExtensionSettings
from heddle.config.hub import HubConfig
from heddle.errors import ConfigError
from heddle.extended import Extended, canonical
from heddle.settings import setting

S = TypeVar("S", bound="EngineSettings")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(ExtensionSettings):
    """Settings of an extension for one model."""

    def check(self, config: EngineConfig) -> None:
        """Check the settings beside all others of the model, before the model is sought.

        Raises:
            ConfigError: they do not fit together.
        """

    def beside_default(self: S, default: S) -> S:
        """The settings for a model that a server loads beside its default model.

        `default` are those of the server.
        """
        return self

    def for_draft_model(self: S) -> S:
        """The settings for a small model that guesses for the model."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(HubConfig, Extended):
    """How one model is loaded and run."""

    slots: int = setting(8, "scheduling", "most requests that run at once", low=1, high=1024)
    queue: int = setting(
        64, "scheduling", "most requests that wait for a slot", low=0, high=100_000, live=True
    )
    queue_timeout: int = setting(
        0,
        "scheduling",
        "longest time, in s, that a request waits for its first slot; then 503; 0 = no limit",
        low=0,
        high=86_400,
        live=True,
    )
    max_prompt_tokens: int = setting(
        0, "requests", "most tokens of a prompt; 0 = as many as the context holds", low=0, live=True
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
        live=True,
    )
    client_requests: int = setting(
        0,
        "scheduling",
        "most requests of one client (API key, else address) that run or wait at once; each choice"
        " counts; 0 = no limit",
        low=0,
        live=True,
    )
    client_tokens: int = setting(
        0,
        "scheduling",
        "tokens per minute, prompt and output, that one client may use; 0 = no limit",
        low=0,
        live=True,
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
        changes_answers=True,
    )
    threads: int = setting(
        0,
        "devices",
        "compute threads; 0 = one per core that this process may use, without hyper-threads and"
        " efficiency cores, within the CPU quota of its container",
        low=0,
        high=1024,
    )
    pin_threads: bool = setting(
        False,
        "devices",
        "keep each compute thread on a processor of its own (device cpu, Linux), so that on a"
        " machine with several memory nodes it finds its weights in its node's memory",
    )
    context: int = setting(0, "model", "most tokens per sequence; 0 = the model's own limit", low=0)
    kv_cache: int = setting(
        0,
        "memory",
        "size of the KV cache; 0 = enough for full slots, at most half of the free memory",
        low=0,
        size=True,
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
        " log shows where it stands; after 3 times as long it is not live; with --auto-recover, its"
        " step is given up and the model loaded again; 0 = never",
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
        "storage of keys and values: f16; q8_0, which holds nearly twice as many tokens; on device"
        " cpu, q4, which holds 3.5 times as many; on devices torch and cuda, fp8 (E4M3), which"
        " holds twice as many",
        choices=("f16", "q8_0", "q4", "fp8"),
        changes_answers=True,
    )
    quantize: str = setting(
        "none",
        "model",
        "type that matrices stored as floats get at load: q8_0, q6_k, q5_k, q4_k, q4_0, mxfp4;"
        " none = as stored",
        choices=("none", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "mxfp4"),
        changes_answers=True,
    )
    speculation: str = setting(
        "auto",
        "speculation",
        "whether steps guess tokens and check them: auto = where that is faster, off = only for"
        " requests that ask; the output is the same",
        choices=("auto", "off"),
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
        "default pooling of embeddings: mean of all tokens, cls = first token, last token, none = a"
        " vector for each token, or auto = the pooling that the model's file names, else mean",
        choices=("auto", "mean", "cls", "last", "none"),
    )
    generation_config: str = setting(
        "auto",
        "model",
        "defaults of sampling parameters: auto = recommended by the model's files, none = Heddle's"
        " defaults",
        choices=("auto", "none"),
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
        "instruction level of the kernels; auto = the fastest of this machine",
        choices=("auto", "portable", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm"),
    )
    extensions: tuple[EngineSettings, ...] = field(
        default=(), metadata={"extensions": EngineSettings}
    )

    def __post_init__(self) -> None:
        HubConfig.__post_init__(self)
        extensions = canonical(self.extensions, EngineSettings, ConfigError)
        object.__setattr__(self, "extensions", extensions)  # the class is frozen

    def check(self) -> None:
        """Check the settings of extensions; see :meth:`EngineSettings.check`."""
        for one in self.extensions:
            one.check(self)

    def changed_answers(self, other: EngineConfig) -> list[str]:
        """Names of the settings in which these differ from others and that change answers."""
        kinds = dict.fromkeys(type(one) for one in (*self.extensions, *other.extensions))
        pairs: list[tuple[ExtensionSettings | EngineConfig, object]] = [(self, other)]
        pairs += [(self.of(kind), other.of(kind)) for kind in kinds]
        return [
            item.name
            for mine, theirs in pairs
            for item in fields(mine)
            if item.metadata.get("changes_answers")
            and getattr(mine, item.name) != getattr(theirs, item.name)
        ]

    def beside_default(self, default: EngineConfig) -> EngineConfig:
        """The settings for a model beside the default model; see :class:`EngineSettings`."""
        own = tuple(one.beside_default(default.of(type(one))) for one in self.extensions)
        return replace(self, extensions=own)

    def for_draft_model(self) -> EngineConfig:
        """The settings for a small model that guesses; see :class:`EngineSettings`."""
        return replace(self, extensions=tuple(one.for_draft_model() for one in self.extensions))

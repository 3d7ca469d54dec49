"""All errors that Heddle raises on purpose: one tree of classes, with HTTP statuses and codes.

A caller may catch :class:`HeddleError` for all of them. The server maps an error to a response by
the class attributes. No other part of the program knows HTTP statuses.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_MESSAGE, _LONGEST_PARAM = 4096, 256
"""Most characters of an error. It may name a value of a file, which may have any length."""


class HeddleError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        status: HTTP status the server answers with.
        code: stable machine-readable code.
        kind: the `type` field of OpenAI's error shape.
        param: the field of the request, or the setting, that is at fault; None if there is none.
        retry_after: seconds after which the same request may succeed; None: never.
    """

    status: int = 500
    code: str = "internal_error"
    kind: str = "server_error"
    retry_after: float | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        message = _shortened(message, _LONGEST_MESSAGE)
        super().__init__(message)
        self.message = message
        self.param: str | None = None if param is None else _shortened(param, _LONGEST_PARAM)


def _shortened(text: str, most: int) -> str:
    """`text` without its middle if it is longer than `most` characters. Always well-formed."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


# --- the request is at fault ---------------------------------------------------------------------


class InvalidRequestError(HeddleError):
    """A field of a request has a value that cannot be served."""

    status = 400
    code = "invalid_value"
    kind = "invalid_request_error"


class UnsupportedParameterError(InvalidRequestError):
    """A field is unknown, or this server does not support it. It is never ignored silently."""

    code = "unsupported_parameter"


class BlindModelError(InvalidRequestError):
    """The request has pictures, and its model sees none."""


class ContextLengthError(InvalidRequestError):
    """Prompt and requested output do not fit the context, or can never fit the KV cache.

    Attributes:
        tokens: tokens of the prompt; 0 if they are not known.
        context: most tokens of prompt and output; 0 if it is not known.
    """

    code = "context_length_exceeded"
    kind = "exceed_context_size_error"  # llama.cpp's; OpenAI's clients read the code

    def __init__(
        self, message: str, *, param: str | None = None, tokens: int = 0, context: int = 0
    ) -> None:
        super().__init__(message, param=param)
        self.tokens = tokens
        self.context = context


class GrammarError(InvalidRequestError):
    """A grammar cannot be followed: it is wrong, can match nothing, or takes too much work."""

    code = "invalid_grammar"


class AuthenticationError(InvalidRequestError):
    """The request has no API key, or none that this server knows."""

    status = 401
    code = "invalid_api_key"


class ForbiddenError(InvalidRequestError):
    """The request may be valid, but its client may not do this. The message says what allows it."""

    status = 403
    code = "forbidden"


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that this server has not loaded."""

    status = 404
    code = "model_not_found"


class EngramNotFoundError(InvalidRequestError):
    """The request names an engram table, or the file of one, that there is not."""

    status = 404
    code = "engram_not_found"


class AdapterNotFoundError(InvalidRequestError):
    """The request names an adapter that there is not."""

    status = 404
    code = "adapter_not_found"


class ModelUnloadedError(ModelNotFoundError):
    """The model is known but not loaded. The server loads it for a request, not for a probe."""

    code = "model_not_loaded"

    def __init__(self, message: str, *, model: str) -> None:
        super().__init__(message, param="model")
        self.model = model


class ModelLoadedError(InvalidRequestError):
    """A model of this name is loaded already, or loads from another source."""

    status = 409
    code = "model_already_loaded"


class NoCopyError(InvalidRequestError):
    """No other loaded model can go on with the requests of a model."""

    status = 409
    code = "no_copy"


class RequestsRunError(InvalidRequestError):
    """Settings would change the tokens of requests that run or wait."""

    status = 409
    code = "requests_run"


class BodyTooLargeError(InvalidRequestError):
    """The request body is longer than the limit."""

    status = 413
    code = "body_too_large"


class BodyTimeoutError(InvalidRequestError):
    """The request body did not arrive in time."""

    status = 408
    code = "body_timeout"


class MalformedHTTPError(InvalidRequestError):
    """The bytes from a connection are not HTTP/1.1."""

    code = "malformed_http"


class UnsupportedRouteError(InvalidRequestError):
    """A vendor's API has this route, and this server does not."""

    status = 501
    code = "unsupported_route"


class MediaTypeError(InvalidRequestError):
    """The request body is declared as something other than JSON."""

    status = 415
    code = "unsupported_media_type"


# --- the server cannot take the request now ------------------------------------------------------


class OverloadedError(HeddleError):
    """The admission queue is full. `retry_after` is a hint in seconds."""

    status = 429
    code = "queue_full"
    kind = "overloaded_error"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after: float | None = retry_after


class ClientLimitError(OverloadedError):
    """A client has too many requests at once, or has used its tokens per minute."""

    code = "rate_limit_exceeded"


class QueueTimeoutError(OverloadedError):
    """A request has waited for a slot longer than the limit. It never ran."""

    status = 503
    code = "queue_timeout"


class DeadlineError(HeddleError):
    """A request has not ended within its `deadline`, and is cancelled."""

    status = 504
    code = "deadline_exceeded"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the request has not ended within its deadline of {seconds:g} s, and is cancelled."
            " Send a later deadline, ask for fewer tokens, or try again later",
            param="deadline",
        )


class NoSlotError(OverloadedError):
    """No slot is free, and the client asked not to wait for a slot."""

    status = 503
    code = "no_slot"


class BacklogError(OverloadedError):
    """Unread answers take too much memory, and this answer is the largest of them."""

    code = "backlog_full"


class SlotFileError(HeddleError):
    """The prefix of a slot cannot be written to its file."""

    status = 503
    code = "slot_file_failed"


class EngineClosedError(HeddleError):
    """The engine is shutting down or was closed."""

    status = 503
    code = "engine_closed"
    retry_after: float | None = 5.0


class ModelUnavailableError(HeddleError):
    """The model loads, unloads, or could not be loaded.

    `retry_after` is None if it is no use to wait.
    """

    status = 503
    code = "model_unavailable"

    def __init__(self, message: str, *, retry_after: float | None = 5.0) -> None:
        super().__init__(message, param="model")
        self.retry_after: float | None = retry_after


class GrammarTrialError(HeddleError):
    """No child process tries a grammar: none starts, or it does not answer.

    The grammar is not at fault.
    """

    status = 503
    code = "grammar_trial_failed"
    retry_after: float | None = 5.0


class TokenizerFailedError(HeddleError):
    """The library that tokenizes panicked at a text. Only the request of that text ends."""

    code = "tokenizer_failed"


class EngineFailedError(HeddleError):
    """A step failed inside the executor. The requests it carried end with this error."""

    code = "engine_failed"


class StepMemoryError(EngineFailedError):
    """A step found too little memory on its device, which can go on with smaller steps."""


class ModelPoisonedError(EngineFailedError):
    """An earlier step failed, so the model computes no more until it is loaded again."""

    status = 503
    code = "model_poisoned"


class EventLoopError(HeddleError):
    """A stream is read in another event loop than the loop that made it."""

    code = "wrong_event_loop"


class StepAbandonedError(HeddleError):
    """The engine stops and its executor abandoned a step. Callers of the engine never see this."""

    code = "step_abandoned"


class NonFiniteLogitsError(EngineFailedError):
    """The model computed NaN or infinite logits for a sequence. Only that sequence ends.

    Attributes:
        logits: figures of a row of these logits, or of hidden states, by their names in
            `heddle.executor.LogitsSummary`; empty if the row is not kept.
    """

    code = "non_finite_logits"

    def __init__(self, message: str, *, logits: Mapping[str, float | None] | None = None) -> None:
        super().__init__(message)
        self.logits = dict(logits or {})


class NothingAllowedError(InvalidRequestError):
    """The constraints leave no token to choose."""

    code = "nothing_allowed"


# --- settings, files and downloads ---------------------------------------------------------------


class ConfigError(HeddleError):
    """A setting is out of range or contradicts another. The CLI exits with code 2."""

    status = 400
    code = "invalid_setting"
    kind = "invalid_request_error"


class OutOfMemoryError(HeddleError):
    """The machine has less memory than the model, or a large body, needs."""

    status = 503
    code = "out_of_memory"
    retry_after: float | None = 5.0


class ModelSourceError(HeddleError):
    """A model could not be found or fetched."""

    status = 503
    code = "model_source"


class ChecksumError(ModelSourceError):
    """A fetched file does not have the expected SHA-256."""

    code = "checksum_mismatch"


class FileFormatError(HeddleError):
    """A file is truncated, corrupt or hostile. `field` names the wrong part."""

    status = 503
    code = "file_format"

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message, param=field)
        self.field = str(self.param)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the field, so that the error can cross processes."""
        return partial(type(self), field=self.field), self.args


class ModelFileError(FileFormatError):
    """A model file is truncated, corrupt or hostile."""

    code = "model_file"


class EngramFileError(FileFormatError):
    """An engram table is truncated, corrupt or hostile."""

    code = "engram_file"


class EngramError(HeddleError):
    """An engram table cannot be found, made, or used with this model."""

    status = 503
    code = "engram"


class PeerError(HeddleError):
    """A server that a benchmark measures is down, refuses, or ends a stream early. Names it."""

    code = "peer_failed"


class UnsupportedModelError(HeddleError):
    """The file is sound, but its architecture, tensor type or tokenizer is not supported."""

    status = 503
    code = "unsupported_model"

"""`heddle chat`: a conversation in the terminal."""

import sys
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.loading import load
from heddle.cli.newcomer import chosen
from heddle.cli.options import ModelOrDefault, with_groups
from heddle.config import EngineConfig
from heddle.errors import ConfigError, ContextLengthError, HeddleError, InvalidRequestError
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams
from heddle.sent_pictures import picture_reader
from heddle.text.parsing.answer_reader import PartReader
from heddle.text.parsing.parts import Reasoning, Text, parsed_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.engine import Engine
    from heddle.pictures import Picture
    from heddle.text.parsing.parts import Part

_HELP = "/reset starts a new conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."
_SEES = "/image PATH puts a picture before the next message."

TEMPERATURE = 0.7
"""Temperature if neither the user nor the model's files say."""

_CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")})
"""Control characters. `str.translate` drops them: a model could control the terminal with them."""


@with_groups("model", "memory", "speculation", "devices")
def chat(
    model: ModelOrDefault = None,
    *,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature; 0 = the likeliest token.",
            show_default="the model's recommendation, else 0.7",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of an answer.", show_default="what fits")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed; the same seed gives the same answers.")
    ] = None,
    engine: EngineConfig,
) -> None:
    """Talk with a model in the terminal."""
    asked: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    given = {name: value for name, value in asked.items() if value is not None}
    SamplingParams(**given)  # refuse a wrong value before loading a model
    with load(chosen(model), engine) as loaded:
        params = SamplingParams(
            **{"temperature": TEMPERATURE, **loaded.model.sampling_defaults, **given}
        )
        conversation = Conversation(loaded, params, system)
        loaded.adapters.load_all()
        adapters = loaded.adapters.library.names
        if len(adapters) == 1:
            conversation.adapt(adapters[0])
        if sys.stdin.isatty():
            with suppress(ImportError):  # absent on Windows
                import readline  # noqa: F401  gives `input` its line editing and history
            print(f"{loaded.model.info.id}: {_HELP}")
            if loaded.model.eyes is not None:
                print(_SEES)
            if adapters:
                print(f"/adapter NAME answers with an adapter: {', '.join(adapters)}")
        while (line := _read_line()) is not None:
            try:
                if not _run_line(conversation, line.strip()):
                    break
            except KeyboardInterrupt:
                print(" [stopped]")


class Conversation:
    """The messages so far, and the next answer."""

    def __init__(self, engine: "Engine", params: SamplingParams, system: str | None) -> None:
        """
        Raises:
            ConfigError: the model has no chat template.
        """
        if engine.model.template is None:
            raise ConfigError(
                f"{engine.model.info.id} has no chat template, so it cannot chat; take a model"
                " that has one"
            )
        self._engine = engine
        self._plain = self._params = params
        self._opening: list[dict[str, Any]] = (
            [] if system is None else [{"role": "system", "content": system}]
        )
        self.messages = list(self._opening)
        self._pictures: list[Picture] = []

    def show(self, path: str) -> None:
        """Put the picture in a file before the next message.

        Raises:
            BlindModelError: the model sees no pictures.
            InvalidRequestError: the file holds no picture.
        """
        self._engine.model.sight(path)
        self._pictures.append(picture_reader().take(Path(path), path))

    def adapt(self, name: str) -> None:
        """Answer with an adapter from now on. An empty name: without one.

        Raises:
            InvalidRequestError: there is no such adapter.
        """
        adapters = self._engine.adapters
        if name and name not in adapters.library.names:
            known = ", ".join(adapters.library.names) or "none"
            raise InvalidRequestError(f"no adapter is named {name[:64]!r}; there is {known}")
        self._params = adapters.asked(self._plain, "", name)

    def reset(self) -> None:
        """Forget all messages except the system message, and pictures for the next one."""
        self.messages = list(self._opening)
        self._pictures = []

    def answer(self, text: str) -> Generator[str, None, None]:
        """Pieces of the answer to `text`. A piece of gpt-oss's answer may be reasoning.

        When the caller closes the generator, the pieces so far become part of the conversation. If
        the engine refuses `text`, the conversation does not change.

        Raises:
            HeddleError: the engine refused the text or failed.
        """
        messages: list[dict[str, Any]] = [*self.messages]
        messages.append({"role": "user", "content": _content(self._pictures, text)})
        model = self._engine.model
        prompt = model.chat_text(messages)
        reading = model.reading(prompt)
        reader, params = PartReader(), self._params
        if reading.frames:
            reader = reading.reader()
            params = replace(params, shown_specials=reading.controls(model.tokenizer.control_id))
        parts: list[Part] = []
        with closing(self._engine.stream(model.prompt_of(prompt, messages), params)) as deltas:
            self._pictures = []
            try:
                for delta in deltas:
                    found = reader.feed(delta.text)
                    if delta.finish is not None:
                        found += reader.finish(cut=delta.finish is FinishReason.LENGTH)
                    for part in found:
                        parts.append(part)
                        yield _shown(parts)
            finally:
                self.messages = [*messages, _message(parts)]


def _content(pictures: "Sequence[Picture]", text: str) -> str | list[dict[str, Any]]:
    """The content of a message: its text, or the pictures before it and the text as parts."""
    shown = [{"type": "image", "image": picture} for picture in pictures]
    return [*shown, {"type": "text", "text": text}] if shown else text


def _shown(parts: "Sequence[Part]") -> str:
    """The text to print for the last part. An empty line separates text from reasoning."""
    *before, part = parts[-2:]
    shown = part.text if isinstance(part, Text | Reasoning) else ""
    is_first = isinstance(part, Text) and bool(before) and isinstance(before[0], Reasoning)
    return f"\n\n{shown}" if is_first else shown


def _message(parts: "Sequence[Part]") -> dict[str, str]:
    """The answer as a message of the conversation."""
    answer = parsed_answer(parts)
    message = {"role": "assistant", "content": answer.text}
    return message | ({"reasoning_content": answer.reasoning} if answer.reasoning else {})


def _read_line() -> str | None:
    """A line from the user; None at the end of input. Ctrl-C gives an empty line."""
    try:
        return input("\n> " if sys.stdin.isatty() else "")
    except EOFError:
        print(end="\n" if sys.stdin.isatty() else "")
        return None
    except KeyboardInterrupt:
        print(f"\n{_HELP}")
        return ""


def _run_line(conversation: Conversation, line: str) -> bool:
    """Run a line of input. False if it is the command to leave."""
    if line == "/exit":
        return False
    if line == "/reset":
        conversation.reset()
    elif line.partition(" ")[0] == "/adapter":
        _change(conversation.adapt, line.partition(" ")[2].strip())
    elif line.partition(" ")[0] == "/image":
        _change(conversation.show, line.partition(" ")[2].strip())
    elif line.startswith("/"):
        print(f"{line} is not a command. {_HELP}", file=sys.stderr)
    elif line:
        _print_answer(conversation, line)
    return True


def _change(change: "Callable[[str], None]", argument: str) -> None:
    try:
        change(argument)
    except HeddleError as error:
        print(error.message, file=sys.stderr)


def _print_answer(conversation: Conversation, text: str) -> None:
    try:
        with closing(conversation.answer(text)) as pieces:
            for piece in pieces:
                print(piece.translate(_CONTROLS), end="", flush=True)
        print()
    except ContextLengthError as error:
        print(f"{error.message}. /reset starts over.", file=sys.stderr)
    except HeddleError as error:
        print(error.message, file=sys.stderr)

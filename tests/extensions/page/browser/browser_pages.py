"""Pages of a server whose model says what a test tells it to."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from configs import server_config
from heddle.step import Sampled
from live_server import live_server
from patience import PATIENCE
from talking_model import TalkingExecutor, talking_engine

try:
    from playwright.sync_api import expect
except ImportError:  # then the fixture `browser` skips each test
    expect: Any = None  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from heddle.config import ServerConfig
    from heddle.engine import Engine
    from heddle.step import Chunk, Failed

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{# <think> </think> #}"
)
CALL = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'


class Speaker:
    """A server of a model that says what a test tells it to.

    Attributes:
        url: its address.
        executor: its `gate` holds the model's steps while it is clear.
        eyes: those of the model, None if it sees no pictures.
    """

    def __init__(self, engine: Engine, executor: TalkingExecutor, config: ServerConfig) -> None:
        self.executor = executor
        self.eyes: Any = engine.model.eyes
        self._stack = ExitStack()
        self.url = self._stack.enter_context(live_server(engine, config)).url

    def stop(self) -> None:
        """Stop the server, for good."""
        self._stack.close()

    def says(self, *answers: str) -> None:
        """Set the texts that the model says from now on, by the seed."""
        self.executor.answers = answers

    def pauses_after(self, steps: int) -> None:
        """Hold the model when it has computed so many steps more."""
        compute, left = self.executor._compute, steps

        def counted(plan: Any) -> Any:
            nonlocal left
            result, left = compute(plan), left - 1
            if not left:
                self.executor.gate.clear()
                self.executor._compute = compute  # type: ignore[method-assign]
            return result

        self.executor._compute = counted  # type: ignore[method-assign]

    def says_in_turn(self, *answers: str) -> None:
        """Set the texts of the next answers, one after the other."""
        left, bind = list(answers), self.executor._bind

        def next_answer(binding: Any) -> None:
            if not binding.output and left:
                self.says(left.pop(0))
            bind(binding)

        self.executor._bind = next_answer  # type: ignore[method-assign]

    @property
    def prompt(self) -> str:
        """The last prompt."""
        return self.executor.prompts[-1]


def alternatives(chunk: Chunk, read: Any) -> list[Sampled | Failed]:
    """The tokens of a chunk, each with `?` as its alternative."""
    return [
        replace(one, logprob=-0.1, top=((one.token, -0.1), (ord("?"), -2.5)))
        if isinstance(one, Sampled)
        else one
        for one in read(chunk)
    ]


@contextmanager
def speaking(*, sees: bool = False, **settings: Any) -> Iterator[Speaker]:
    with talking_engine(TEMPLATE, sees=sees) as (engine, executor):
        encode = cache(executor._tokenizer.encode)  # the executor asks for it with each token
        executor._tokenizer.encode = encode  # type: ignore[method-assign]
        read = executor._read
        executor._read = lambda chunk: alternatives(chunk, read)  # type: ignore[method-assign]
        speaker = Speaker(engine, executor, server_config(port=0, **settings))
        try:
            yield speaker
        finally:
            executor.gate.set()
            speaker.stop()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page with storage of its own. Errors in its console fail the test."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}} | options)
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    expected = ("ERR_CONNECTION", "ERR_INCOMPLETE", "400", "401", "403", "501", "503")
    left = [one for one in errors if not any(word in one for word in expected)]
    assert not left, left


def send(page: Page, text: str) -> None:
    """Send a message."""
    field = page.get_by_role("textbox", name="Message")
    field.fill(text)
    field.press("Enter")


def answer(page: Page) -> Any:
    """The last answer."""
    return page.locator(".from-model").last


def define(page: Page, code: str, name: str = "add") -> None:
    """Define a function with this code."""
    page.get_by_text("Functions", exact=True).click()
    page.get_by_role("button", name="Add a function").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("JavaScript").fill(code)
    page.get_by_role("button", name="Save").click()


def reload(page: Page) -> None:
    """Load the page again when all that it saves is on disk."""
    page.evaluate(
        """async () => {
            const { Store } = await import('/page/js/store.js');
            await (await Store.open()).conversations();
        }"""
    )
    page.reload()


def violations(axe: Any, page: Page) -> list[Any]:
    found = axe.run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]})
    assert len(found.response["passes"]) > 20
    return [
        (one["id"], [node["html"][:120] for node in one["nodes"]][:3], one["nodes"][0]["any"][:1])
        for one in found.response["violations"]
    ]


def check_looks(axe: Any, page: Page, view: str) -> None:
    """Check the rules of axe on a desk, and on a phone in dark, where nothing is too wide."""
    assert violations(axe, page) == []
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    assert violations(axe, page) == []
    wide = f"document.querySelector('{view}').scrollWidth - innerWidth"
    assert page.evaluate(wide) <= 0

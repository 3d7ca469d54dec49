"""Takes the pictures of the page in docs/pictures: chat, sight in light and dark, models.

    python scripts/take_screenshots.py [MODEL]

A server of the model, by default the default model, answers 16 clients of different kinds while
Chromium shows the page. The current environment must have Playwright, and the machine Chromium; see
scripts/test_page.sh. Each picture has at most 200 kB.
"""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
MOST_BYTES = 200_000
CLIENTS = 16
SIZE = {"width": 1280, "height": 860}
SECONDS = 45  # until the lanes are full

RULES = "You are the assistant of a library. Answer in short sentences. " * 12
CODE = "\n".join(f"def step_{n}(items):\n    return [one + {n} for one in items]" for n in range(9))
PROMPTS = (
    "Tell me a story about a ship.",
    f"{RULES}\nWhich books are about the sea?",
    f"{RULES}\nWhen does the library open?",
    f"Repeat this code, and rename items to values:\n{CODE}",
    "Summarise this: " + "The loom weaves the threads of many requests into one cloth. " * 70,
    "Name three colours.",
)


@contextmanager
def server(model: list[str]) -> Iterator[str]:
    """The address of a server."""
    command = [sys.executable, "-m", "heddle", "serve", *model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = next(line for line in process.stdout if line.startswith("ready"))
            yield ready.split()[1].removesuffix("/v1")
        finally:
            process.kill()


def talk(url: str, number: int, done: threading.Event) -> None:
    """Send one request after the other, with pauses."""
    chance = random.Random(number)
    for place in itertools.count(number):
        body = {
            "messages": [{"role": "user", "content": PROMPTS[place % len(PROMPTS)]}],
            "max_tokens": chance.choice((30, 80, 200)),
            "temperature": 0.0 if place % len(PROMPTS) == 3 else 0.8,
            "seed": place,
        }
        try:
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
        except httpx.HTTPError:
            return  # the server has ended
        if done.wait(chance.uniform(0.0, 2.0)):
            return


@contextmanager
def shown(browser: Browser, address: str, scheme: Any = "light") -> Iterator[Page]:
    context = browser.new_context(viewport=SIZE, color_scheme=scheme)
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def keep(page: Page, name: str) -> None:
    """Write what the page shows to a picture."""
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path)
    size = path.stat().st_size
    print(f"{path}: {size / 1000:.0f} kB")
    if size > MOST_BYTES:
        sys.exit(f"{path} has {size:,} bytes; at most {MOST_BYTES:,} are allowed")


def chat(page: Page) -> None:
    page.wait_for_selector(".parameter")
    page.get_by_label("temperature").fill("0.3")
    page.get_by_label("seed").fill("4")
    page.get_by_text("Tokens", exact=True).click()
    page.get_by_label("Keep probabilities").check()
    for text in (
        "Write a Python function that reverses a list.",
        "Why does the sea look blue? Answer in two sentences.",
    ):
        page.get_by_role("textbox", name="Message").fill(text)
        page.get_by_role("textbox", name="Message").press("Enter")
        expect(page.locator(".from-model").last.locator(".figures")).to_be_visible()
    page.locator(".from-model").last.get_by_role("button", name="Tokens").click()
    page.locator(".token:not(.p4)").nth(2).focus()
    page.locator(".thread").evaluate("one => { one.scrollTop = one.scrollHeight; }")
    keep(page, "page-chat")


def sight(browser: Browser, url: str) -> None:
    done = threading.Event()
    clients = [threading.Thread(target=talk, args=(url, n, done)) for n in range(CLIENTS)]
    for one in clients:
        one.daemon = True
        one.start()
    try:
        with shown(browser, f"{url}/#/sight") as light, shown(browser, url, "dark") as dark:
            dark.goto(f"{url}/#/sight")
            light.wait_for_timeout(1000 * SECONDS)
            light.keyboard.press("p")  # a picture takes longer than a frame
            keep(light, "page-sight")
            box = dark.locator(".lanes").bounding_box()
            assert box is not None
            dark.get_by_role("button", name="10 s").click()
            dark.wait_for_timeout(1000)
            dark.keyboard.press("p")
            dark.mouse.click(box["x"] + 0.55 * box["width"], box["y"] + 0.3 * box["height"])
            dark.mouse.move(0, 0)
            keep(dark, "page-sight-dark")
        with shown(browser, f"{url}/#/models") as page:
            expect(page.get_by_label("Load a model")).to_be_visible()
            keep(page, "page-models")
    finally:
        done.set()


def main() -> None:
    chromium = shutil.which("chromium") or sys.exit("chromium is not installed")
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright, server(sys.argv[1:]) as url:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        with shown(browser, url) as page:
            chat(page)
        sight(browser, url)
        browser.close()


if __name__ == "__main__":
    main()

"""A browser, and a page in it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from browser_pages import Speaker, opened, speaking

from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

ARGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
CHROMIUM = shutil.which("chromium") or ""


@pytest.fixture(scope="module")  # Playwright's event loop stops asyncio.run() in later modules
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    sync_api.expect.set_options(timeout=PATIENCE * 1000)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Speaker]:
    with speaking() as speaker:
        yield speaker


@pytest.fixture
def page(browser: Browser, server: Speaker) -> Iterator[Page]:
    with opened(browser, server.url) as page:
        page.wait_for_selector(".parameter")
        yield page

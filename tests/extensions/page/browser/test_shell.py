"""The page around its views: views that cannot be loaded, and the watch over the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from browser_pages import expect, opened

if TYPE_CHECKING:
    from browser_pages import Speaker
    from playwright.sync_api import Browser, Page

TITLE = "The view cannot be loaded"


def test_a_view_that_cannot_be_loaded_is_told_and_the_other_stays(page: Page) -> None:
    page.route("**/js/views/models.js", lambda route: route.abort("connectionrefused"))
    page.get_by_role("link", name="Models").click()
    dialog = page.get_by_role("dialog", name=TITLE)
    expect(dialog).to_contain_text("models.js")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".composer")).to_be_visible()
    expect(page.get_by_role("link", name="Chat", exact=True)).to_have_attribute(
        "aria-current", "page"
    )
    page.get_by_role("link", name="Sight").click()  # others can be
    expect(page.locator(".lanes, canvas").first).to_be_visible()
    page.get_by_role("link", name="Models").click()
    page.unroute("**/js/views/models.js")
    dialog.get_by_role("button", name="Load the page again").click()
    expect(page.get_by_label("Load a model")).to_be_visible()


def test_a_page_whose_first_view_cannot_be_loaded(browser: Browser, server: Speaker) -> None:
    with opened(browser, "about:blank") as page:
        page.route("**/js/views/chat.js", lambda route: route.abort("connectionrefused"))
        page.goto(server.url)
        dialog = page.get_by_role("dialog", name=TITLE)
        expect(dialog).to_contain_text("chat.js")
        dialog.get_by_role("button", name="Close").click()
        page.get_by_role("link", name="Models").click()
        expect(page.get_by_label("Load a model")).to_be_visible()


@pytest.mark.parametrize("last_is_well", [True, False])
def test_the_newest_of_two_looks_at_the_server_counts(page: Page, last_is_well: bool) -> None:
    seen = page.evaluate(
        """async (lastIsWell) => {
            const { Health } = await import('/page/js/health.js');
            const answers = [];
            window.fetch = () => new Promise((resolve) => answers.push(resolve));
            const banner = document.createElement('div');
            const health = new Health(banner, () => {});
            const say = async (place, isWell) => {
                const status = { json: async () => ({ status: `look ${place}` }) };
                answers[place](isWell ? { ok: true } : { ok: false, ...status });
                await new Promise((resolve) => setTimeout(resolve));
            };
            health.suspect();
            health.suspect();
            await say(1, lastIsWell);
            await say(0, !lastIsWell);
            clearTimeout(health._timer);
            return [health.isWell, banner.hidden, banner.textContent];
        }""",
        last_is_well,
    )
    told = "The server answers no requests now (look 1). Trying again…"
    assert seen == [last_is_well, last_is_well, "" if last_is_well else told]

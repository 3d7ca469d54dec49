"""The view of engines at work: lanes, the life of a request, zoom, keys, lost connections."""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from browser_pages import check_looks, expect, opened, speaking

from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from browser_pages import Speaker
    from playwright.sync_api import Browser, Page, Route

SLOTS, STEPS, REQUESTS = 64, 1200, 200
EVENTS = "**/v1/engine/events"


@pytest.fixture
def sight(browser: Browser, server: Speaker) -> Iterator[Page]:
    with opened(browser, f"{server.url}/#/sight") as page:
        yield page


@contextmanager
def asked(server: Speaker, count: int = 1) -> Iterator[None]:
    """Requests that have had one step, and get no further one until the end."""
    server.says("some words")
    executor, compute = server.executor, server.executor._compute
    done = threading.Event()

    def once(plan: Any) -> Any:
        result = compute(plan)
        if not done.is_set():
            executor.gate.clear()
        return result

    executor.gate.clear()
    executor._compute = once  # type: ignore[method-assign]
    threads = [threading.Thread(target=ask, args=(server.url,)) for _ in range(count)]
    for one in threads:
        one.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while in_flight(server.url) < count:
            assert time.monotonic() < deadline
        executor.gate.set()
        yield
    finally:
        done.set()
        executor.gate.set()
        for one in threads:
            one.join(PATIENCE)
        executor._compute = compute  # type: ignore[method-assign]


def ask(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "seed": 0}
    httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE)


def in_flight(url: str) -> int:
    (model,) = httpx.get(f"{url}/v1/models", timeout=PATIENCE).json()["data"]
    return int(model["in_flight"])


def event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def minute(model: str = "busy", lost: int = 0) -> str:
    """Events of a full minute of 64 slots, with 200 requests."""
    now, every = 1000.0, 60.0 / STEPS
    steps = [
        [
            number,
            now - 60 + every * (number + 1),
            1000 * every,  # without gaps, so that there is a step at each place
            [
                [slot, slot + SLOTS * (number // 600), 1, number, 2, 1, number % 2]
                for slot in range(SLOTS)
            ],
        ]
        for number in range(STEPS)
    ]
    requests = [
        {
            **{"id": number, "label": "", "client": f"client {number % 7}", "finish": None},
            **{"slot": number - SLOTS if SLOTS <= number < 2 * SLOTS else None},
            **{"submitted": now - 59, "started": None, "first_token": None, "ended": None},
            **{"state": "decode" if SLOTS <= number < 2 * SLOTS else "waiting"},
            **{"prompt_tokens": 900, "cached_tokens": 512, "output_tokens": 9, "most_output": 99},
            **{"drafted_tokens": 4, "accepted_tokens": 3},
        }
        for number in range(2, SLOTS + REQUESTS)
    ]
    sizes = {
        "name": model,
        "slots": SLOTS,
        "since": 1.0,
        "context": 8192,
        "pages": 9,
        "page_bytes": 1,
    }
    hello = {"now": now, "unix": 0, "version": "1", "admin": False}
    return (
        event("hello", {**hello, "models": [{**sizes, "device": "cpu"}]})
        + event("steps", {"model": model, "lost": lost, "steps": steps})
        + event("requests", {"model": model, "requests": requests})
    )


def fulfilled(route: Route, body: str) -> None:
    route.fulfill(body=body, content_type="text/event-stream")


def without_tree(page: Page) -> None:
    """Answer for the model of `minute`, which the server has not."""
    tree = json.dumps({"nodes": [], "left_out": 0})
    page.route("**/v1/prefix_cache/tree?*", lambda route: route.fulfill(body=tree))


def bars_in_a_frame(page: Page) -> int:
    """How many rectangles one frame of the timeline takes."""
    found: int = page.evaluate(
        """async () => {
            const fill = CanvasRenderingContext2D.prototype.fillRect;
            let bars = 0;
            CanvasRenderingContext2D.prototype.fillRect = function (...place) {
                bars += 1;
                fill.apply(this, place);
            };
            document.querySelector('.lanes').dispatchEvent(new Event('scroll'));
            while (!bars) await new Promise((resolve) => requestAnimationFrame(resolve));
            CanvasRenderingContext2D.prototype.fillRect = fill;
            return bars;
        }"""
    )
    return found


def test_a_request_from_its_slot_to_its_end(sight: Page, server: Speaker) -> None:
    with asked(server):
        sight.get_by_text("As a table").click()
        row = sight.locator("table.slots tbody tr").first
        expect(row).to_contain_text(re.compile("prefill|decode"))
        expect(sight.locator("table.slots tbody tr:visible")).to_have_count(4)
        row.get_by_role("button").click()
        panel = sight.get_by_label("Life of a request")
        expect(panel).to_contain_text("prefill")
        expect(panel).to_contain_text("No second token yet.")
    expect(panel).to_contain_text("done: stop")
    expect(panel).to_contain_text("p90")
    expect(panel.locator(".chunk").first).to_contain_text("token")
    expect(row).to_contain_text("free")
    said = re.compile("0 of 4 slots run, 0 wait")
    expect(sight.locator(".lanes canvas")).to_have_attribute("aria-label", said)
    sight.keyboard.press("Escape")
    expect(panel).to_be_hidden()


def test_what_waits_is_shown_by_client(sight: Page, server: Speaker) -> None:
    with asked(server, 6):
        expect(sight.get_by_label("Queue by client")).to_contain_text("127.0.0.1")
        expect(sight.locator(".queue-row b")).to_have_text("2")
    expect(sight.get_by_label("Queue by client")).to_contain_text("Nobody waits.")
    expect(sight.get_by_label("Prefix tree")).to_contain_text("run")
    expect(sight.get_by_label("Memory", exact=True)).to_contain_text("free cache")


def test_a_click_on_a_lane_chooses_its_request(browser: Browser, server: Speaker) -> None:
    with opened(browser, server.url) as page:
        without_tree(page)
        page.route(EVENTS, lambda route: fulfilled(route, minute(lost=3)))
        page.goto(f"{server.url}/#/sight")
        expect(page.locator(".lost")).to_contain_text("3 steps lost")
        page.get_by_role("button", name="1 min").click()
        page.keyboard.press("p")
        page.locator(".strip").hover(position={"x": 200, "y": 40})
        expect(page.locator(".tip")).to_contain_text("128 decode tokens of 64 requests")
        page.locator(".lanes").hover(position={"x": 200, "y": 60})
        expect(page.locator(".tip")).to_contain_text("guesses right")
        page.locator(".lanes").click(position={"x": 200, "y": 60})
        panel = page.get_by_label("Life of a request")
        expect(panel).to_contain_text("3 of 4 right")
        page.locator(".lanes").click(position={"x": 200, "y": 14})
        expect(panel).to_contain_text("the server remembers its steps only")
        expect(panel).to_contain_text("p90")


def test_frames_of_many_slots_take_few_bars(browser: Browser, server: Speaker) -> None:
    """A minute has 76,800 rows of steps. A frame that drew each would stutter."""
    with opened(browser, server.url) as page:
        without_tree(page)
        page.route(EVENTS, lambda route: fulfilled(route, minute()))
        page.goto(f"{server.url}/#/sight")
        expect(page.locator(".lanes canvas")).to_have_attribute("aria-label", re.compile("busy"))
        page.keyboard.press("p")
        for name in ("1 min", "30 s", "10 s", "2 s"):
            page.get_by_role("button", name=name, exact=True).click()
            assert 1000 < bars_in_a_frame(page) < 40_000, name


def test_time_stands_and_zooms(sight: Page) -> None:
    expect(sight.get_by_role("button", name="30 s")).to_have_attribute("aria-pressed", "true")
    sight.keyboard.press("+")
    expect(sight.get_by_role("button", name="10 s")).to_have_attribute("aria-pressed", "true")
    sight.keyboard.press("-")
    sight.keyboard.press("-")
    expect(sight.get_by_role("button", name="1 min")).to_have_attribute("aria-pressed", "true")
    sight.keyboard.press("p")
    expect(sight.get_by_role("button", name="Go on")).to_have_attribute("aria-pressed", "true")
    sight.keyboard.press("p")
    sight.get_by_label("Slots over time").first.press("ArrowLeft")
    sight.get_by_role("button", name="Go on").click()
    expect(sight.get_by_role("button", name="Pause")).to_be_visible()


def test_it_connects_again(browser: Browser, server: Speaker) -> None:
    answers = [{"body": minute(), "content_type": "text/event-stream"}, {"status": 503}]

    def first_ends(route: Route) -> None:
        route.fulfill(**answers.pop(0))

    with opened(browser, server.url) as page:
        without_tree(page)
        page.route(EVENTS, first_ends, times=2)
        page.goto(f"{server.url}/#/sight")
        page.get_by_text("As a table").click()
        expect(page.locator("table.slots")).to_contain_text("busy")
        expect(page.locator("table.slots tbody tr:visible")).to_have_count(4)
        expect(page.locator(".sight > .problem")).to_be_empty()


def test_limits_need_an_admin_key(browser: Browser) -> None:
    with (
        speaking(api_key=("right",), admin_key=("boss",)) as server,
        opened(browser, f"{server.url}/#/sight") as page,
    ):
        page.get_by_label("API key").fill("right")
        page.keyboard.press("Enter")
        expect(page.get_by_label("Memory", exact=True)).to_contain_text("free cache")
        page.get_by_role("button", name="Measure limits").click()
        expect(page.get_by_label("Limits of the machine")).to_contain_text("needs an admin key")


def test_a_server_that_records_nothing_says_so(browser: Browser) -> None:
    with (
        speaking(sight=False) as server,
        opened(browser, f"{server.url}/#/sight") as page,
    ):
        expect(page.locator(".sight > .problem")).to_contain_text("without --no-sight")


def test_it_fits_a_phone_and_the_rules_of_axe(browser: Browser, server: Speaker) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with asked(server), opened(browser, server.url, bypass_csp=True) as page:
        page.goto(f"{server.url}/#/sight")
        page.get_by_text("As a table").click()
        page.locator("table.slots button:visible").first.click()
        check_looks(axe, page, ".sight")

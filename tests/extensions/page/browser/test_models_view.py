"""The view of models: the list, loads, downloads, engram tables, and who may do what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from browser_pages import check_looks, expect, opened, speaking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from browser_pages import Speaker
    from playwright.sync_api import Browser, Page, Route


@pytest.fixture
def models(browser: Browser, server: Speaker) -> Iterator[Page]:
    with opened(browser, f"{server.url}/#/models") as page:
        expect(page.get_by_label("Load a model")).to_be_visible()
        yield page


def caught(page: Page, path: str, answer: Any = None) -> list[Any]:
    """The bodies of POST requests to a path, which the server does not get."""
    bodies: list[Any] = []

    def catch(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(body=json.dumps(answer or {"id": "it"}), content_type="application/json")

    page.route(f"**{path}", catch)
    return bodies


def test_the_list_describes_models(models: Page) -> None:
    card = models.locator(".model-card")
    expect(card).to_have_count(1)
    expect(card.locator(".state")).to_have_text("loaded")
    expect(card).to_contain_text("4,096 tokens")
    expect(card).to_contain_text("0 requests")
    expect(card.get_by_role("button", name="Load", exact=True)).to_be_hidden()


def test_a_load_sends_the_settings_that_were_given(models: Page) -> None:
    bodies = caught(models, "/v1/models/load")
    pane = models.get_by_label("Load a model")
    pane.get_by_label("Model", exact=True).fill("a/file.gguf")
    pane.get_by_label("Name in requests").fill("mine")
    pane.get_by_text("Settings").click()
    pane.get_by_label("Find a setting").fill("most requests that run")
    expect(pane.locator(".settings-fields .field:visible")).to_have_count(1)
    pane.locator(".settings-fields .field:visible input").fill("3")
    pane.get_by_label("Find a setting").fill("kv_type")
    pane.locator(".settings-fields .field:visible input").first.fill("q8_0")
    pane.get_by_role("button", name="Load").click()
    expect(pane).to_contain_text("it loads")
    expected = {"model": "a/file.gguf", "name": "mine", "wait": False, "slots": 3}
    assert bodies == [{**expected, "kv_type": "q8_0"}]


def test_the_server_says_why_it_refuses_a_load(models: Page) -> None:
    pane = models.get_by_label("Load a model")
    pane.get_by_label("Model", exact=True).fill("/none.gguf")
    pane.get_by_role("button", name="Load").click()
    expect(pane.locator(".outcome.problem")).to_contain_text("/none.gguf")


def test_unload_and_reload_ask_first(models: Page) -> None:
    unloads, reloads = caught(models, "/v1/models/unload"), caught(models, "/v1/models/reload")
    card = models.locator(".model-card")
    name = card.get_attribute("aria-label")
    card.get_by_role("button", name="Unload").click()
    models.get_by_label("Most seconds for them").fill("5")
    models.get_by_label("Move them").check()
    models.get_by_role("dialog").get_by_role("button", name="Unload").click()
    expect(card).to_contain_text("Unloaded.")
    assert unloads == [{"model": name, "move": True, "seconds": 5}]
    card.get_by_role("button", name="Reload").click()
    dialog = models.get_by_role("dialog")
    dialog.get_by_label("Find a setting").fill("pin_threads")
    dialog.locator(".field:visible select").select_option("off")
    dialog.get_by_role("button", name="Reload").click()
    expect(card).to_contain_text("Loaded again.")
    card.get_by_role("button", name="Reload").click()
    expect(dialog).to_be_visible()
    models.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert reloads == [{"model": name, "pin_threads": False}]


def test_a_model_that_is_not_loaded(models: Page) -> None:
    loads = caught(models, "/v1/models/load")
    states = iter(["unloaded", "loading", "failed"])

    def fake(route: Route) -> None:
        value = next(states, "failed")
        status = {"value": value, "progress": 0.25, "reason": "no memory"}
        one = {"id": "other", "status": status, "root": "/other.gguf", "aliases": ["also"]}
        route.fulfill(body=json.dumps({"data": [one]}), content_type="application/json")

    models.route("**/v1/models", fake)
    card = models.locator(".model-card")
    expect(card).to_contain_text("/other.gguf")
    card.get_by_role("button", name="Load", exact=True).click()
    expect(card).to_contain_text("no memory")
    assert loads == [{"model": "other"}]


def test_a_download_shows_how_far_it_is(models: Page) -> None:
    lines = [
        {"status": "pulling manifest"},
        {"status": "pulling it", "total": 4_000_000_000, "completed": 1_000_000_000},
        {"error": "the disk is full"},
    ]
    pane = models.get_by_label("Fetch a model")
    pane.get_by_label("Model", exact=True).fill("hf.co/a/b")
    body = "".join(json.dumps(one) + "\n" for one in lines)
    models.route("**/api/pull", lambda route: route.fulfill(body=body))
    seen = models.evaluate_handle(
        """() => {
            const seen = [];
            const node = document.querySelector('[aria-label="Fetch a model"] .outcome');
            const note = () => seen.push(node.textContent);
            new MutationObserver(note).observe(node, { childList: true, subtree: true });
            return seen;
        }"""
    )
    pane.get_by_role("button", name="Fetch").click()
    expect(pane.locator(".outcome.problem")).to_contain_text("the disk is full")
    assert any("1.0 GB of 4.0 GB, 25%" in one for one in seen.json_value())
    models.unroute("**/api/pull")
    done = json.dumps({"status": "success"}) + "\n"
    models.route("**/api/pull", lambda route: route.fulfill(body=done))
    pane.get_by_role("button", name="Fetch").click()
    expect(pane).to_contain_text("hf.co/a/b is fetched.")


def test_engram_tables(models: Page) -> None:
    table = {"name": "mine", "path": "/t", "entries": 12, "looked_up": 4, "found": 1}
    body = json.dumps({"data": [{**table, "models": []}]})
    models.route("**/v1/engrams", lambda route: route.fulfill(body=body))
    unloads = caught(models, "/v1/engrams/unload")
    pane = models.get_by_label("Engram tables")
    expect(pane).to_contain_text("No table is loaded.")
    pane.get_by_label("Name").fill("other")
    pane.get_by_label("File on the server").fill("/none")
    pane.get_by_role("button", name="Load").click()
    expect(pane.locator(".outcome.problem")).to_be_visible()
    expect(pane).to_contain_text("12 entries, found 25% of 4 look-ups, for no loaded model")
    pane.get_by_role("button", name="Unload").click()
    expect(pane).to_contain_text("mine is unloaded.")
    assert unloads == [{"name": "mine"}]


def test_adapters(models: Page) -> None:
    one = {"id": 0, "name": "poems", "path": "/a", "model": "base", "scale": 0}
    listed = json.dumps([one, one | {"name": "code", "scale": 0.5}])
    pane = models.get_by_label("Adapters")
    expect(pane).to_contain_text("There is no adapter.")
    models.route("**/lora-adapters", lambda route: route.fulfill(body=listed))
    pane.get_by_label("Name").fill("other")
    pane.get_by_label("Folder or file below the models").fill("none")
    pane.get_by_role("button", name="Load", exact=True).click()
    expect(pane.locator(".outcome.problem")).to_be_visible()
    expect(pane).to_contain_text("poems changes base")
    expect(pane).to_contain_text("code changes base, times 0.5 in requests that name none")
    loads = caught(models, "/v1/load_lora_adapter")
    pane.get_by_role("button", name="Load", exact=True).click()
    expect(pane).to_contain_text("other is loaded.")
    unloads = caught(models, "/v1/unload_lora_adapter")
    pane.get_by_role("button", name="Unload").first.click()
    expect(pane).to_contain_text("poems is unloaded.")
    assert loads == [{"lora_name": "other", "lora_path": "none"}]
    assert unloads == [{"lora_name": "poems"}]


def test_adapters_have_no_cards_of_models(models: Page) -> None:
    [own] = models.evaluate("fetch('v1/models').then((one) => one.json())")["data"]
    both = json.dumps({"data": [own, own | {"id": "poems", "parent": own["id"]}]})
    models.route("**/v1/models", lambda route: route.fulfill(body=both))
    models.reload()
    expect(models.locator(".model-card").first).to_be_visible()
    expect(models.get_by_label("Adapters")).to_be_visible()
    expect(models.locator(".model-card")).to_have_count(1)


def test_an_action_says_which_key_it_needs_and_takes_another(browser: Browser) -> None:
    with (
        speaking(api_key=("right",), admin_key=("boss",)) as server,
        opened(browser, f"{server.url}/#/models") as page,
    ):
        page.get_by_label("API key").fill("right")
        page.keyboard.press("Enter")
        pane = page.get_by_label("Load a model")
        pane.get_by_label("Model", exact=True).fill("/none.gguf")
        pane.get_by_role("button", name="Load").click()
        expect(pane.locator(".outcome")).to_contain_text("needs an admin key")
        pane.get_by_role("button", name="Use another key").click()
        page.get_by_role("dialog").get_by_label("API key").fill("boss")
        page.keyboard.press("Enter")
        expect(pane.locator(".outcome.problem")).to_contain_text("/none.gguf")
        expect(pane.get_by_role("button", name="Use another key")).to_be_hidden()


def test_commands_are_there_to_copy(models: Page) -> None:
    pane = models.get_by_label("On the command line")
    expect(pane.locator("code").first).to_have_text("heddle suggest")
    pane.get_by_role("button", name="Copy heddle suggest", exact=True).click()
    assert models.evaluate("getSelection().toString()") in ("", "heddle suggest")


def test_it_fits_a_phone_and_the_rules_of_axe(browser: Browser, server: Speaker) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with opened(browser, f"{server.url}/#/models", bypass_csp=True) as page:
        page.get_by_label("Load a model").get_by_text("Settings").click()
        check_looks(axe, page, ".models")

"""The view of models: the list, loads, downloads, engram tables, and who may do what."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from browser_pages import check_looks, expect, opened, speaking

from fake_loads import until
from heddle.extensions.quantise import api, quantisation
from heddle.hosting.registry import Registry
from heddle.weights.confine import AllowedModels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


SUGGESTED = {
    "machine": {"available_bytes": 6_000_000_000, "bytes_per_second": 17e9, "other_work": 0.0},
    "data": [
        {
            **{"id": "org/small:Q8_0", "use": "chat", "note": "chats", "steps_per_second": 6.8},
            **{"memory_bytes": 5e9, "download_bytes": 2.5e9, "fits": True, "best": True},
        },
        {
            **{"id": "org/large", "use": "embeddings", "note": "texts", "steps_per_second": 30.4},
            **{"memory_bytes": 8e9, "download_bytes": 4.7e9, "fits": False, "best": False},
        },
    ],
}


def test_suggestions_are_fetched_one_at_a_time(models: Page) -> None:
    models.route(
        "**/v1/models/suggest",
        lambda route: route.fulfill(body=json.dumps(SUGGESTED), content_type="application/json"),
    )
    pulls: list[Route] = []

    def hold(route: Route) -> None:  # Playwright takes no method of a list
        pulls.append(route)

    models.route("**/api/pull", hold)
    pane, fetching = models.get_by_label("Suggestions"), models.get_by_label("Fetch a model")
    pane.get_by_role("button", name="Suggest models").click()
    expect(pane).to_contain_text("The server has 6.0 GB of memory free, and reads 17.0 GB/s.")
    small, large = pane.locator(".suggestion").all()
    expect(small).to_contain_text("org/small:Q8_0 (the best one here)")
    expect(small).to_contain_text("chats; 5.0 GB of memory, 2.5 GB to fetch, at most 6.8 tokens/s")
    expect(large).to_contain_text(
        "8.0 GB of memory, more than is free, 4.7 GB to fetch, at most 30"
    )
    expect(large).to_contain_text("queries/s")
    expect(pane.get_by_role("heading")).to_have_text(
        ["Suggestions", "Chats", "Embeddings", "Reranking"]
    )
    with models.expect_request("**/api/pull"):
        small.get_by_role("button", name="Fetch org/small:Q8_0").click()
    large.get_by_role("button").click()
    expect(pane).to_contain_text("Another download runs. Wait for its end.")
    [pull] = pulls
    assert pull.request.post_data_json == {"model": "org/small:Q8_0"}
    pull.fulfill(body=json.dumps({"status": "success"}) + "\n")
    expect(fetching).to_contain_text("org/small:Q8_0 is fetched.")


def test_the_server_suggests_models(models: Page) -> None:
    pane = models.get_by_label("Suggestions")
    pane.get_by_role("button", name="Suggest models").click()
    expect(pane).to_contain_text("smollm2-135m")
    expect(pane.locator(".suggestion").first.get_by_role("button")).to_have_text("Fetch")


def test_a_model_is_quantised(models: Page) -> None:
    pane = models.get_by_label("Quantise a model")
    lines = [
        {"status": "quantising fake", "total": 4_000_000_000, "completed": 1_000_000_000},
        {"status": "success", "model": "it-q8_0", "bytes": 4e9, "kept": "2 of type Q8_0"},
    ]
    bodies: list[Any] = []

    def answer(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(body="".join(json.dumps(one) + "\n" for one in lines))

    models.route("**/v1/models/quantize", answer)
    types = ["q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "mxfp4"]
    expect(pane.get_by_label("Type of matrices").locator("option")).to_have_text(types)
    own = models.locator(".model-card").get_attribute("aria-label")
    expect(pane.locator("datalist option")).to_have_attribute("value", own)
    pane.get_by_label("Model", exact=True).fill("hf:org/my model.gguf")
    pane.get_by_role("button", name="Quantise").click()
    expect(pane).to_contain_text("it-q8_0 is written: 4.0 GB.")
    expect(pane).to_contain_text("stay as they are: 2 of type Q8_0.")
    expect(pane.get_by_role("button", name="Cancel")).to_be_hidden()
    expect(pane.get_by_role("progressbar")).to_be_hidden()
    lines[1] = {"error": {"message": "the disk is full"}}
    pane.get_by_label("Name of the new file").fill("mine")
    pane.get_by_label("Type of matrices").select_option("q4_k")
    pane.get_by_role("button", name="Quantise").click()
    expect(pane.locator(".outcome.problem")).to_contain_text("the disk is full")
    del lines[1]
    pane.get_by_role("button", name="Quantise").click()
    expect(pane.locator(".outcome.problem")).to_contain_text("ended the report before the work")
    first = {"model": "hf:org/my model.gguf", "type": "q8_0", "name": "my-model-q8_0"}
    assert bodies == [first, *[first | {"type": "q4_k", "name": "mine"}] * 2]


def test_the_work_goes_on_in_other_views_until_it_is_cancelled(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import json, time; print(json.dumps({'total': 8, 'completed': 2}), flush=True)"
    stays = [sys.executable, "-c", f"{code}\nwhile True: time.sleep(60)"]
    monkeypatch.setattr(quantisation, "_COMMAND", stays)
    monkeypatch.setattr(api, "REPEAT_SECONDS", 0.01)
    allowed = AllowedModels(folder=tmp_path)
    monkeypatch.setattr(Registry, "allowed", property(lambda _: allowed, lambda *_: None), False)
    with speaking() as server, opened(browser, f"{server.url}/#/models") as page:
        pane = page.get_by_label("Quantise a model")
        pane.get_by_label("Model", exact=True).fill("smollm2-135m")
        pane.get_by_role("button", name="Quantise").click()
        expect(pane).to_contain_text("quantising smollm2-135m: 2 B of 8 B, 25%")
        page.keyboard.press("Alt+1")
        expect(page.locator(".composer")).to_be_visible()
        page.keyboard.press("Alt+3")
        expect(pane).to_contain_text("2 B of 8 B, 25%")
        expect(pane.get_by_role("progressbar")).to_have_js_property("value", 0.25)
        assert len(list(tmp_path.iterdir())) == 1
        pane.get_by_role("button", name="Cancel").click()
        expect(pane).to_contain_text("Cancelled. No file stays.")
        until(lambda: not list(tmp_path.iterdir()))


def test_the_server_says_why_it_does_not_quantise(models: Page) -> None:
    pane = models.get_by_label("Quantise a model")
    pane.get_by_label("Model", exact=True).fill("smollm2-135m")
    pane.get_by_role("button", name="Quantise").click()
    expect(pane.locator(".outcome.problem")).to_contain_text("--models-dir")


def test_commands_are_there_to_copy(models: Page) -> None:
    pane = models.get_by_label("On the command line")
    command = pane.locator("code").first.text_content()
    assert command and command.startswith("heddle imatrix")
    pane.get_by_role("button", name=f"Copy {command}", exact=True).click()
    assert models.evaluate("getSelection().toString()") in ("", command)


def test_it_fits_a_phone_and_the_rules_of_axe(browser: Browser, server: Speaker) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with opened(browser, f"{server.url}/#/models", bypass_csp=True) as page:
        page.get_by_label("Load a model").get_by_text("Settings").click()
        page.get_by_role("button", name="Suggest models").click()
        expect(page.locator(".suggestion").first).to_be_visible()
        check_looks(axe, page, ".models")

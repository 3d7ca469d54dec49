"""Chats in a browser: streams, branches, tokens, functions, and a server that goes away."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from browser_pages import CALL, answer, define, expect, opened, reload, send, speaking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from browser_pages import Speaker
    from playwright.sync_api import Browser, Page


def test_an_answer_streams_and_is_rendered(page: Page, server: Speaker) -> None:
    server.says("Some *words*.\n\n- one\n- two\n")
    send(page, "hello")
    expect(answer(page).locator("em")).to_have_text("words")
    expect(answer(page).locator("li")).to_have_count(2)
    expect(answer(page).locator(".figures")).to_contain_text("tokens")
    expect(page.locator("#live")).to_contain_text("Some *words*")
    assert server.prompt == "<user>hello<assistant>"
    reload(page)
    expect(answer(page).locator("em")).to_have_text("words")


def test_an_answer_is_shown_before_its_end_and_stops(page: Page, server: Speaker) -> None:
    server.says("The beginning.\n\n" + "and on " * 300)
    server.executor.gate.clear()
    send(page, "hello")
    expect(page.locator(".running.waiting")).to_have_count(1)
    server.pauses_after(20)
    server.executor.gate.set()
    expect(answer(page)).to_contain_text("The beginning.")
    page.keyboard.press("Escape")
    expect(answer(page)).to_contain_text("Stopped.")
    server.executor.gate.set()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    text = answer(page).locator(".text").inner_text()
    page.get_by_role("button", name="Continue").click()
    expect(answer(page).locator(".figures")).to_be_visible()
    assert len(answer(page).locator(".text").inner_text()) > len(text)
    assert "<assistant>The beginning." in server.prompt


def test_branches(page: Page, server: Speaker) -> None:
    server.says("first")
    send(page, "one")
    expect(answer(page)).to_contain_text("first")
    server.says("second")
    page.get_by_role("button", name="Answer again").click()
    expect(answer(page)).to_contain_text("second")
    expect(answer(page)).to_contain_text("2 / 2")
    page.get_by_role("button", name="Branch before").click()
    expect(answer(page)).to_contain_text("first")
    server.says("third")
    page.get_by_role("button", name="Edit and send again").click()
    page.get_by_role("textbox", name="Your message").fill("other")
    page.keyboard.press("Enter")
    expect(answer(page)).to_contain_text("third")
    assert server.prompt == "<user>other<assistant>"
    page.locator(".from-user").get_by_role("button", name="Branch before").click()
    expect(page.locator(".from-user")).to_contain_text("one")
    reload(page)
    expect(page.locator(".from-user")).to_contain_text("one")


def test_reasoning_is_folded(page: Page, server: Speaker) -> None:
    server.says("<think>why *not*</think>because")
    send(page, "hello")
    expect(answer(page)).to_contain_text("because")
    fold = answer(page).locator("details.reasoning")
    expect(fold.locator(".text")).not_to_be_visible()
    fold.locator("summary").click()
    expect(fold.locator("em")).to_have_text("not")


def test_a_system_prompt_and_parameters_are_sent(page: Page, server: Speaker) -> None:
    server.says("a b c d e f")
    page.get_by_label("System prompt").fill("Be kind.")
    page.get_by_label("max_tokens").fill("3")
    page.get_by_label("max_tokens").press("Tab")
    send(page, "hello")
    expect(answer(page)).to_contain_text("Cut: the limit of tokens is reached.")
    expect(answer(page)).to_contain_text("3 tokens")
    assert server.prompt.startswith("<system>Be kind.<user>hello")
    page.get_by_label("top_p").fill("7")
    page.get_by_label("top_p").press("Tab")
    expect(page.get_by_role("alert").filter(has_text="1")).to_be_visible()


def test_a_token_is_replaced_by_another(page: Page, server: Speaker) -> None:
    server.says("abc")
    page.get_by_text("Tokens", exact=True).click()
    page.get_by_label("Keep probabilities").check()
    send(page, "hello")
    answer(page).get_by_role("button", name="Tokens").click()
    page.locator(".token").nth(1).hover()
    expect(page.locator(".others li")).to_have_count(2)
    server.says("z")
    page.get_by_role("button", name="Go on from here").click()
    expect(answer(page)).to_contain_text("2 / 2")
    expect(answer(page).locator(".text")).to_contain_text("a?")
    assert server.prompt == "<user>hello<assistant>a?"


def test_two_answers_side_by_side(page: Page, server: Speaker) -> None:
    server.says("left", "right")
    page.get_by_text("Two answers side by side").click()
    page.get_by_label("Second model").select_option("fake")
    page.get_by_label("seed").fill("0")
    page.get_by_label("seed").press("Tab")
    send(page, "hello")
    expect(page.locator(".pair .text").first).to_contain_text("left")
    expect(page.locator(".pair .text").last).to_contain_text("right")
    page.get_by_role("button", name="Go on with this one").click()
    page.get_by_label("Second model").select_option("")
    send(page, "more")
    expect(page.locator(".from-model")).to_have_count(3)
    expect(answer(page).locator(".figures")).to_be_visible()
    assert server.prompt == "<user>hello<assistant>right<user>more<assistant>"


def test_a_function_runs_in_the_sandbox(page: Page, server: Speaker) -> None:
    define(page, "({ a, b }) => a + b")
    server.says_in_turn(CALL, "seven")
    send(page, "add")
    expect(answer(page)).to_contain_text("seven")
    expect(page.locator(".card")).to_contain_text("7")


def test_a_call_is_answered_by_hand(page: Page, server: Speaker) -> None:
    define(page, "")
    server.says(CALL)
    send(page, "add")
    page.get_by_label("Your result").fill("twelve")
    server.says("So it is.")
    page.get_by_role("button", name="Send the result").click()
    expect(answer(page)).to_contain_text("So it is.")
    expect(page.locator(".card")).to_contain_text("twelve")
    assert "<tool_response>\ntwelve\n" in server.prompt


CODES = [
    "async () => (await fetch('/v1/models')).status",
    "async () => (await import('/page/js/dom.js')).el",
    "() => { importScripts('/page/js/sandbox.js'); }",
    "() => new WebSocket('ws://127.0.0.1:1/').url + fetch",
    "() => indexedDB.open('heddle').readyState",
    "() => { const r = new XMLHttpRequest(); r.open('GET', '/', false); r.send(); }",
]


def test_a_function_reaches_nothing(page: Page) -> None:
    results = page.evaluate(
        """async (codes) => {
            const { runFunction } = await import('/page/js/chat/functions.js');
            return Promise.all(codes.map((code) => runFunction({ code }, { arguments: '{}' })));
        }""",
        CODES,
    )
    assert [one for one in results if not one.startswith("error:")] == []


def test_a_function_without_an_end_is_ended(page: Page) -> None:
    result = page.evaluate(
        """async () => {
            const { runFunction } = await import('/page/js/chat/functions.js');
            return runFunction({ code: '() => { for (;;); }' }, { arguments: '{}' });
        }"""
    )
    assert "took over 5 s" in result


def test_an_answer_as_json(page: Page, server: Speaker) -> None:
    server.says('{"a": 1}')
    page.get_by_text("Answer as JSON").click()
    field = page.get_by_label("JSON schema; empty: any text")
    field.fill('{"type": ')
    expect(page.get_by_text("Not valid JSON")).to_be_visible()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    field.fill(json.dumps(schema))
    field.press("Tab")
    send(page, "hello")
    expect(answer(page)).to_contain_text("Valid JSON")


def test_the_list_finds_renames_and_deletes(page: Page, server: Speaker) -> None:
    server.says("yes")
    for text in ("apples", "pears"):
        page.keyboard.press("Alt+n")
        send(page, text)
        expect(answer(page)).to_contain_text("yes")
    items = page.locator(".conversations a")
    expect(items).to_have_text(["pears", "apples"])
    page.keyboard.press("Control+k")
    page.keyboard.type("app")
    expect(items).to_have_text(["apples"])
    page.keyboard.press("Enter")
    expect(page.locator(".from-user")).to_contain_text("apples")
    page.get_by_role("button", name="More about apples").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title").fill("application")
    page.keyboard.press("Enter")
    expect(items).to_have_text(["application"])
    page.get_by_role("button", name="More about application").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    # The new conversation takes the focus. Before it does, the keys of `fill` may go to its field.
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.get_by_label("Search conversations").fill("")
    expect(items).to_have_text(["pears"])


def test_a_message_at_once_goes_to_the_new_conversation(page: Page, server: Speaker) -> None:
    server.says("yes")
    send(page, "apples")
    expect(answer(page)).to_contain_text("yes")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    page.evaluate(
        """() => {
            const key = (key, how) => new KeyboardEvent('keydown', { key, bubbles: true, ...how });
            document.body.dispatchEvent(key('n', { altKey: true, code: 'KeyN' }));
            const field = document.activeElement;
            field.value = 'pears';
            field.dispatchEvent(key('Enter', { cancelable: true }));
        }"""
    )
    expect(page.locator(".conversations a")).to_have_text(["pears", "apples"])
    expect(page.locator(".from-user")).to_have_text(["pears"])


def test_an_answer_goes_on_while_another_conversation_is_shown(page: Page, server: Speaker) -> None:
    server.says("yes and no")
    server.executor.gate.clear()
    send(page, "apples")
    expect(page.locator(".running")).to_have_count(1)
    page.keyboard.press("Alt+n")
    expect(page.locator(".from-model")).to_have_count(0)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    server.executor.gate.set()
    page.locator(".conversations a", has_text="apples").click()
    expect(answer(page).locator(".figures")).to_be_visible()
    expect(answer(page)).to_contain_text("yes and no")


def test_export_and_import(page: Page, server: Speaker, tmp_path: Path) -> None:
    server.says("yes")
    send(page, "apples")
    expect(answer(page)).to_contain_text("yes")
    page.get_by_role("button", name="More about apples").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    file = tmp_path / "one.json"
    download.value.save_as(file)
    page.locator(".list input[type=file]").set_input_files(file)
    expect(page.locator(".conversations a")).to_have_text(["apples", "apples"])
    broken = json.loads(file.read_text())
    broken["messages"][0]["parent"] = broken["messages"][1]["id"]
    file.write_text(json.dumps(broken))
    page.locator(".list input[type=file]").set_input_files(file)
    expect(page.get_by_role("dialog")).to_contain_text("form a circle")


def test_behind_a_path_prefix(browser: Browser, server: Speaker) -> None:
    """As with `location /llm/ { proxy_pass http://127.0.0.1:8080/; }` of nginx."""
    others: list[str] = []
    with opened(browser, "about:blank") as page:
        page.context.route(
            f"{server.url}/llm/**",
            lambda route: route.continue_(url=route.request.url.replace("/llm/", "/")),
        )
        page.on("request", lambda one: others.append(one.url) if "/llm/" not in one.url else None)
        page.goto(f"{server.url}/llm/")
        page.wait_for_selector(".parameter")
        define(page, "({ a, b }) => a + b")
        server.says_in_turn(CALL, "*seven*")
        send(page, "add")
        expect(answer(page).locator("em")).to_have_text("seven")
        expect(page.locator(".card")).to_contain_text("7")
        page.get_by_role("link", name="Sight").click()
        expect(page.get_by_label("Memory", exact=True)).to_contain_text("free cache")
        page.get_by_role("link", name="Models").click()
        expect(page.get_by_label("Load a model")).to_be_visible()
        assert page.evaluate("fetch('health').then((one) => one.status)") == 200
    assert others == []


def test_a_server_stops(browser: Browser) -> None:
    with speaking() as server, opened(browser, server.url) as page:
        server.says("The beginning, " + "and on " * 40)
        server.executor.gate.clear()
        send(page, "hello")
        expect(page.locator(".running")).to_have_count(1)
        server.stop()
        expect(answer(page)).to_contain_text("closed before the request finished")
        expect(page.locator("#banner")).to_be_visible()
        expect(page.get_by_role("button", name="Begin again")).to_be_visible()


@contextmanager
def process(port: int) -> Iterator[subprocess.Popen[str]]:
    """A server of the default model in a process of its own."""
    command = [sys.executable, "-m", "heddle", "serve", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert any(line.startswith("ready") for line in server.stdout)
        yield server
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.mark.model
def test_a_server_dies_and_comes_back(browser: Browser, model_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with process(port) as server, opened(browser, f"http://127.0.0.1:{port}") as page:
        page.get_by_text("All parameters").click()
        page.get_by_label("min_tokens").fill("5000")
        page.get_by_label("min_tokens").press("Tab")
        send(page, "Count.")
        expect(answer(page).locator(".text p").last).not_to_be_empty()
        server.kill()
        expect(answer(page)).to_contain_text("The server went away during this answer.")
        expect(page.locator("#banner")).to_contain_text("does not answer")
        text = answer(page).locator(".text").inner_text()
        with process(port):
            expect(page.locator("#banner")).to_be_hidden()
            page.get_by_role("button", name="Continue").click()
            expect(page.locator(".running")).to_have_count(1)
            page.keyboard.press("Escape")
            expect(answer(page)).to_contain_text("Stopped.")
            assert len(answer(page).locator(".text").inner_text()) >= len(text)


def test_an_answer_that_was_stopped_in_its_reasoning_goes_on_there(
    page: Page, server: Speaker
) -> None:
    server.says("<think>but what would that mean?</think>yes")
    server.pauses_after(12)
    send(page, "hello")
    fold = answer(page).locator("details.reasoning")
    expect(fold).to_be_visible()
    fold.locator("summary").click()
    page.keyboard.press("Escape")
    server.executor.gate.set()
    expect(answer(page)).to_contain_text("Stopped.")
    begun = fold.locator(".text").inner_text()
    server.says(" so be it</think>yes")
    page.get_by_role("button", name="Continue").click()
    expect(answer(page)).to_contain_text("yes")
    expect(fold.locator(".text")).to_have_text(f"{begun} so be it")
    assert server.prompt == f"<user>hello<assistant><think>{begun}"
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)


def test_a_token_of_the_reasoning_is_replaced_by_another(page: Page, server: Speaker) -> None:
    server.says("<think>why</think>so")
    page.get_by_text("Tokens", exact=True).click()
    page.get_by_label("Keep probabilities").check()
    send(page, "hello")
    answer(page).get_by_role("button", name="Tokens").click()
    page.locator(".token", has_text="y").hover()
    server.says(" not</think>because")
    page.get_by_role("button", name="Go on from here").click()
    expect(answer(page)).to_contain_text("2 / 2")
    expect(answer(page).locator(".text").last).to_have_text("because")
    answer(page).locator("summary").click()
    expect(answer(page).locator("details.reasoning .text")).to_have_text("wh? not")
    assert server.prompt == "<user>hello<assistant><think>wh?"
    answer(page).get_by_role("button", name="Tokens").click()
    page.locator(".token", has_text="b").hover()
    server.says("z")
    page.get_by_role("button", name="Go on from here").click()
    expect(answer(page)).to_contain_text("3 / 3")
    expect(answer(page).locator(".text").last).to_have_text("?z")
    assert server.prompt == "<user>hello<assistant>?"


def test_a_refused_key_is_asked_for_on_demand(browser: Browser) -> None:
    with (
        speaking(api_key=("right",)) as server,
        opened(browser, f"{server.url}/#/sight") as page,
    ):
        expect(page.get_by_role("dialog")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".sight > .problem")).to_contain_text("key")
        page.get_by_role("button", name="Give a key").click()
        page.get_by_label("API key").fill("right")
        page.get_by_role("button", name="OK").click()
        expect(page.get_by_label("Memory", exact=True)).to_contain_text("free cache")
        expect(page.locator(".sight > .problem")).to_be_empty()
        expect(page.get_by_role("button", name="Give a key")).to_be_hidden()
        expect(page.locator(".model select")).to_have_value("fake")


def test_only_actions_ask_again_for_a_refused_key(browser: Browser) -> None:
    with speaking(api_key=("right",)) as server, opened(browser, server.url) as page:
        found = page.evaluate(
            """async () => {
                const { Api } = await import('/page/js/api.js');
                const gives = [null, null, 'right'];
                const asked = [];
                const api = new Api(async () => {
                    asked.push(asked.length);
                    return gives[asked.length - 1];
                });
                const status = (...request) =>
                    api.json(...request).then(() => 200, (error) => error.status);
                const list = ['/v1/models'];
                const texts = { method: 'POST', body: { texts: [] }, isQuiet: true };
                const load = { method: 'POST', body: { model: '/none.gguf' } };
                const statuses = [await status(...list), await status(...list)];
                statuses.push(await status('/page/markdown', texts));
                const quiet = asked.length;
                statuses.push(await status('/v1/models/unload', load));
                statuses.push(await status('/v1/models/unload', load));
                statuses.push(await status(...list));
                return [statuses, quiet, asked.length];
            }"""
        )
    assert found == [[401, 401, 401, 401, found[0][4], 200], 1, 3]
    assert found[0][4] != 401


def test_a_key_is_asked_for_and_kept_in_the_tab(browser: Browser) -> None:
    with speaking(api_key=("right",)) as server, opened(browser, server.url) as page:
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text("not valid")
        page.get_by_label("API key").fill("right")
        page.keyboard.press("Enter")
        expect(page.locator(".parameter").first).to_be_visible()
        server.says("yes")
        send(page, "hello")
        expect(answer(page)).to_contain_text("yes")
        page.reload()
        expect(page.locator(".parameter").first).to_be_visible()
        assert page.evaluate("Object.keys(localStorage).length") == 0

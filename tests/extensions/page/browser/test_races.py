"""Two things at once in the page: fast keys, slow reads, other tabs, deleted conversations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from browser_pages import CALL, answer, define, expect, reload, send

from patience import PATIENCE

if TYPE_CHECKING:
    from browser_pages import Speaker
    from playwright.sync_api import Page

HELD = f"""
    const deadline = performance.now() + {1000 * PATIENCE};
    const asked = [];
    const api = {{ json: (path) => new Promise((resolve) => asked.push({{ path, resolve }})) }};
    const turn = () => new Promise((resolve) => setTimeout(resolve));
    const until = async (count) => {{
        while (asked.length < count && performance.now() < deadline) await turn();
    }};
    const load = (name) => import(`/page/js/${{name}}.js`);
"""
"""JavaScript of a server that answers when a test says so."""


def in_page(page: Page, body: str) -> Any:
    return page.evaluate(f"async () => {{ {HELD} {body} }}")


def stored(page: Page) -> tuple[int, int]:
    """How many conversations and messages are on disk."""
    both: tuple[int, int] = page.evaluate(
        """async () => {
            const { Store } = await import('/page/js/store.js');
            const store = await Store.open();
            const count = (name) => new Promise((resolve) => {
                const all = store._objects(name, 'readonly').count();
                all.onsuccess = () => resolve(all.result);
            });
            return [await count('conversations'), await count('messages')];
        }"""
    )
    return both[0], both[1]


def manage(page: Page, title: str, action: str) -> None:
    page.get_by_role("button", name=f"More about {title}").click()
    page.get_by_role("button", name=action).click()


def delete(page: Page, title: str) -> None:
    manage(page, title, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()


def rename(page: Page, title: str, other: str) -> None:
    manage(page, title, "Rename")
    page.get_by_label("Title").fill(other)
    page.get_by_role("button", name="OK").click()


def test_the_second_of_two_messages_at_once_stays_in_the_field(page: Page, server: Speaker) -> None:
    server.says("yes")
    page.evaluate(
        """() => {
            const field = document.querySelector('.composer textarea');
            for (const text of ['one', 'two']) {
                field.value = text;
                const how = { key: 'Enter', bubbles: true, cancelable: true };
                field.dispatchEvent(new KeyboardEvent('keydown', how));
            }
        }"""
    )
    expect(page.get_by_role("textbox", name="Message")).to_have_value("two")
    expect(answer(page).locator(".figures")).to_be_visible()
    expect(page.locator(".from-user .text")).to_have_text(["one"])


def test_a_message_before_the_first_conversation_is_read_stays_in_the_field(page: Page) -> None:
    text = in_page(
        page,
        """
        const { mount } = await load('views/chat');
        const root = document.createElement('div');
        const store = { preference: () => new Promise(() => {}) };
        const shortcuts = { add: () => () => {} };
        const models = Object.assign(new EventTarget(), { whyNoPictures: () => '' });
        mount(root, { store, shortcuts, models, rest: () => '' });
        const field = root.querySelector('.composer textarea');
        field.value = 'hello';
        field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', cancelable: true }));
        return field.value;
        """,
    )
    assert text == "hello"


def test_nothing_of_a_deleted_conversation_stays(page: Page, server: Speaker) -> None:
    server.says("yes")
    server.executor.gate.clear()
    send(page, "apples")
    expect(page.locator(".running")).to_have_count(1)
    with page.expect_event("requestfailed"):
        delete(page, "apples")
    server.executor.gate.set()
    expect(page.get_by_text("No conversations yet.")).to_be_visible()
    assert stored(page) == (0, 0)
    in_page(
        page,
        """
        const store = await (await load('store')).Store.open();
        const message = { id: '1', conversation: 'deleted', created: 0 };
        await store.save('deleted', { title: 'again' }, [message]);
        """,
    )
    assert stored(page) == (0, 0)


def test_a_new_title_stays(page: Page, server: Speaker) -> None:
    server.says("yes")
    send(page, "apples")
    expect(answer(page).locator(".figures")).to_be_visible()
    rename(page, "apples", "fruit")
    items = page.locator(".conversations a")
    expect(items).to_have_text(["fruit"])
    other = page.context.new_page()
    other.goto(page.url)
    rename(other, "fruit", "trees")
    expect(other.locator(".conversations a")).to_have_text(["trees"])
    other.close()
    page.get_by_role("button", name="Answer again").click()
    expect(answer(page)).to_contain_text("2 / 2")
    expect(answer(page).locator(".figures")).to_be_visible()
    expect(items).to_have_text(["trees"])
    rename(page, "trees", "wood")
    reload(page)
    expect(items).to_have_text(["wood"])
    expect(answer(page)).to_contain_text("2 / 2")


def test_functions_of_two_tabs(page: Page) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector(".parameter")
    define(other, "() => 1", name="one")
    expect(other.get_by_role("button", name="Edit one")).to_be_visible()
    other.close()
    define(page, "() => 2", name="two")
    expect(page.get_by_role("button", name="Edit one")).to_be_visible()
    reload(page)
    page.get_by_text("Functions", exact=True).click()
    expect(page.get_by_role("button", name="Edit one")).to_be_visible()
    page.get_by_role("button", name="Edit two").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("button", name="Edit two")).to_have_count(0)
    expect(page.get_by_role("button", name="Edit one")).to_be_visible()


def test_a_field_keeps_the_focus_when_an_answer_ends(page: Page, server: Speaker) -> None:
    server.says("yes")
    send(page, "one")
    expect(answer(page).locator(".figures")).to_be_visible()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    server.executor.gate.clear()
    send(page, "two")
    expect(page.locator(".running")).to_have_count(1)
    page.get_by_role("button", name="Edit and send again").first.click()
    field = page.get_by_role("textbox", name="Your message")
    expect(field).to_be_focused()
    server.executor.gate.set()
    expect(answer(page).locator(".figures")).to_be_visible()
    expect(field).to_be_focused()


def test_a_setting_that_is_being_written_belongs_to_the_next_conversation(page: Page) -> None:
    page.get_by_label("System prompt").press_sequentially("Be kind.")
    page.keyboard.press("Alt+n")
    expect(page.get_by_label("System prompt")).to_have_value("Be kind.")


def test_a_link_that_was_just_clicked_wins(page: Page, server: Speaker) -> None:
    server.says("yes")
    for text in ("apples", "pears"):
        page.keyboard.press("Alt+n")
        send(page, text)
        expect(answer(page).locator(".figures")).to_be_visible()
    page.get_by_role("button", name="Answer again").click()
    expect(answer(page)).to_contain_text("2 / 2")
    expect(answer(page).locator(".figures")).to_be_visible()
    page.evaluate(
        """() => {
            document.querySelectorAll('.conversations a')[1].click();
            document.querySelector('[aria-label="Branch before"]').click();
        }"""
    )
    expect(page.locator(".from-user .text")).to_have_text(["apples"])


def test_the_address_of_a_view_that_is_being_loaded_stays(page: Page, server: Speaker) -> None:
    server.says("yes")
    send(page, "one")
    expect(answer(page).locator(".figures")).to_be_visible()
    page.get_by_role("button", name="Answer again").click()
    expect(answer(page)).to_contain_text("2 / 2")
    expect(answer(page).locator(".figures")).to_be_visible()
    page.evaluate(
        """async () => {
            const change = new Promise((resolve) => addEventListener('hashchange', resolve));
            location.hash = '#/sight';
            await change;
            document.querySelector('[aria-label="Branch before"]').click();
        }"""
    )
    expect(page.get_by_label("Memory", exact=True)).to_contain_text("free cache")
    assert page.url.endswith("#/sight")


def test_a_function_runs_until_it_is_stopped(page: Page, server: Speaker) -> None:
    define(page, "() => new Promise(() => {})")
    server.says_in_turn(CALL, "yes")
    send(page, "add")
    expect(page.locator(".card")).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(answer(page)).to_contain_text("Stopped.")
    page.get_by_role("button", name="Begin again").click()
    expect(answer(page)).to_contain_text("yes")
    expect(page.locator(".card")).to_have_count(0)


SESSION = """
    const { Session } = await load('chat/session');
    const { Failure } = await load('api');
    const call = (...pieces) => pieces.map((text, place) => ({
        choices: [{
            delta: { tool_calls: [
                { index: 0, id: 'c', function: place ? { arguments: text } : { name: text } },
            ] },
            finish_reason: place === pieces.length - 1 ? 'tool_calls' : null,
        }],
    }));
    const says = [];
    api.events = async function* () {
        for (const one of says.shift() ?? []) {
            if (one instanceof Error) throw one;
            yield one;
        }
    };
    const store = { add: async () => {}, save: async () => {} };
    const app = { api, store, models: { chosen: 'm' } };
    const session = new Session(app, Session.fresh({ functions: ['add'] }), null);
    session.functions = [{ name: 'add', code: '() => 7', parameters: '{}' }];
    const tools = () => [...session.messages.values()].filter((one) => one.role === 'tool');
"""


def test_an_answer_that_was_lost_in_a_call_begins_its_call_again(page: Page) -> None:
    calls = in_page(
        page,
        SESSION
        + """
        says.push([...call('add', '{').slice(0, 1), new Failure('gone', 0)], call('add', '{}'));
        await session.send('add');
        await session.continueAnswer(session.path.at(-1));
        return session.path[1].calls.map((one) => [one.name, one.arguments]);
        """,
    )
    assert calls == [["add", "{}"]]


def test_results_belong_to_the_answer_that_called(page: Page) -> None:
    """Both of two answers side by side call a function, and another branch is shown meanwhile."""
    parents = in_page(
        page,
        SESSION
        + """
        session.settings.other = 'n';
        says.push(call('add', '{}'), call('add', '{}'));
        const done = session.send('add');
        const [, first] = session.path;
        session.settings.other = '';
        await done;
        const [, second] = [...session.messages.values()].filter((one) => one.pair);
        return [tools().map((one) => one.parent), [first.id, second.id]];
        """,
    )
    assert sorted(parents[0]) == sorted(parents[1])


def test_another_branch_stays_while_a_function_runs(page: Page) -> None:
    shown = in_page(
        page,
        SESSION
        + """
        const text = { choices: [{ delta: { content: 'yes' }, finish_reason: 'stop' }] };
        says.push([text], call('add', '{}'));
        await session.send('hello');
        const first = session.path.at(-1);
        const again = session.regenerate(first);
        session.show(first.id);
        await again;
        return [session.path.at(-1) === first, tools().length];
        """,
    )
    assert shown == [True, 1]


def test_the_chosen_model_stays_when_the_list_is_read(page: Page) -> None:
    found = in_page(
        page,
        """
        const { Models } = await load('models');
        const store = { preference: async () => 'a', savePreference: async () => {} };
        const models = new Models(api, store);
        const first = models.refresh();
        await until(1);
        models.choose('b');
        asked[0].resolve({ data: [{ id: 'a' }, { id: 'b' }] });
        await first;
        const chosen = models.chosen;
        const [old, young] = [models.refresh(), models.refresh()];
        await until(3);
        asked[2].resolve({ data: [{ id: 'c' }] });
        asked[1].resolve({ data: [{ id: 'a' }] });
        await Promise.all([old, young]);
        return [chosen, models.chosen];
        """,
    )
    assert found == ["b", "c"]


def test_the_parameters_of_the_chosen_model_win(page: Page) -> None:
    found = in_page(
        page,
        """
        const { Sampling } = await load('chat/sampling');
        const models = Object.assign(new EventTarget(), { chosen: 'a' });
        const store = { preference: async () => ({}) };
        const sampling = new Sampling({ models, api, store }, { params: {}, preset: '' }, () => {});
        await until(1);
        models.chosen = 'b';
        models.dispatchEvent(new Event('change'));
        await until(2);
        const table = (value) => ({
            data: [{ name: 'top_p', kind: 'number', doc: '', range: '', default: value }],
        });
        const field = () => sampling.node.querySelector('.parameter input');
        asked[1].resolve(table(0.5));
        await turn();
        asked[0].resolve(table(0.9));
        await turn();
        const shown = field();
        models.dispatchEvent(new Event('change'));
        await until(3);
        asked[2].resolve(table(0.5));
        await turn();
        return [shown.placeholder, shown === field()];
        """,
    )
    assert found == ["0.5", True]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_prefix_tree_of_the_shown_models_wins(page: Page, reverse: bool) -> None:
    found = in_page(
        page,
        f"""
        const {{ TreeBox }} = await load('sight/tree');
        let names = ['a'];
        const box = new TreeBox({{ api, health: {{ isWell: true }} }}, () => names);
        await until(1);
        names = ['b'];
        box.refresh();
        await until(2);
        const node = {{ id: 1, parent: null, start: 0, tokens: 7, hits: 1, age: 9, bytes: 1 }};
        const trees = [{{ nodes: [], left_out: 0 }}, {{ nodes: [node], left_out: 0 }}];
        for (const place of {json.dumps([1, 0] if reverse else [0, 1])}) {{
            asked[place].resolve(trees[place]);
            await turn();
        }}
        box.close();
        return box.node.querySelectorAll('.tree-row').length;
        """,
    )
    assert found == 1


def test_the_outcome_of_the_last_action_is_told(page: Page) -> None:
    found = in_page(
        page,
        """
        const { Outcome } = await load('models/action');
        const outcome = new Outcome({ api });
        const ends = [];
        const run = (doing) => outcome.run(doing, () => new Promise((...both) => ends.push(both)));
        const runs = ['one', 'two', 'three'].map(run);
        ends[2][0]('third');
        ends[1][0]('second');
        ends[0][1](new Error('first'));
        await Promise.all(runs);
        return outcome.node.textContent.trim();
        """,
    )
    assert found.startswith("third")


def test_the_newest_list_of_models_and_tables_wins(page: Page) -> None:
    found = in_page(
        page,
        """
        const { mount } = await load('views/models');
        const { TablesPane } = await load('models/tables');
        const root = document.createElement('div');
        const app = { api, models: { all: [], refresh: async () => {} } };
        const close = mount(root, app);
        await until(1);
        const model = (id) => ({ id, root: '/', status: { value: 'unloaded' } });
        asked[0].resolve({ data: [model('old')] });
        await until(2); // the description of the server
        asked[1].resolve({ paths: {} });
        await turn();
        const pane = TablesPane.ofEngrams(app, () => {});
        await until(3);
        pane._refresh();
        await until(4);
        asked[3].resolve({ data: [] });
        await turn();
        asked[2].resolve({ data: [{ name: 'old', models: [] }] });
        await turn();
        close();
        const count = (node, what) => node.querySelectorAll(what).length;
        return [count(root, '.model-card'), count(pane.node, '.table-row')];
        """,
    )
    assert found == [1, 0]


def test_text_that_is_replaced_while_it_is_rendered(page: Page) -> None:
    found = in_page(
        page,
        """
        const { AnswerText } = await load('chat/answer_text');
        const text = new AnswerText(api);
        document.querySelector('.thread').append(text.node);
        text.show('one', true);
        await until(1);
        text.show('two', true);
        asked[0].resolve({ html: ['<p>one</p>'] });
        await until(2);
        asked[1].resolve({ html: ['<p>two</p>'] });
        await turn();
        const shown = text.node.textContent;
        text.node.remove();
        return shown;
        """,
    )
    assert found == "two"

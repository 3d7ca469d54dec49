"""How the page looks and answers keys: phones, dark, hostile answers, rules of axe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from browser_pages import answer, expect, opened, send, violations

if TYPE_CHECKING:
    from browser_pages import Speaker
    from playwright.sync_api import Browser, Page

HOSTILE = """<script>document.title = 'hacked'</script><img src=x onerror="document.title='hacked'">

[a link](https://evil.example/path) [script](javascript:alert(1)) ![pixel](https://evil.example/p.png)

<style>*{display:none}</style><form action=https://evil.example><input></form>

```html
<script>document.title = 'hacked'</script>
```
"""
DIRECTIONS = "plain \u202eesrever\u202c\n\n```python\nif a: # \u202e}\n```\n\nשלום עולם\n\nEnd."


def put(page: Page, content: str) -> None:
    """Put an answer into the open conversation, which the server's fake model could not say."""
    page.evaluate(
        """async (content) => {
            const { Store } = await import('/page/js/store.js');
            const store = await Store.open();
            const [conversation] = await store.conversations();
            const messages = await store.messages(conversation.id);
            const last = messages.at(-1);
            await store.save(conversation.id, {}, [{ ...last, content }]);
        }""",
        content,
    )
    page.reload()


@pytest.fixture
def spoken(page: Page, server: Speaker) -> Page:
    """A page with one answer."""
    server.says("yes")
    send(page, "hello")
    expect(answer(page).locator(".figures")).to_be_visible()
    return page


def test_a_hostile_answer_does_nothing(page: Page, server: Speaker) -> None:
    requests: list[str] = []
    page.on("request", lambda one: requests.append(one.url))
    server.says(HOSTILE)
    send(page, "hello")
    expect(answer(page).locator("pre .k").first).to_be_visible()
    assert page.title() == "Chat · Heddle"
    text = answer(page).locator(".text")
    assert text.locator("script, img, style, form, input, a, iframe").count() == 0
    assert [one for one in requests if not one.startswith(server.url)] == []
    expect(text).to_contain_text("<script>document.title = 'hacked'</script>")
    expect(text.locator(".image")).to_contain_text("https://evil.example/p.png")


def test_a_click_after_a_parameter_does_not_miss(page: Page) -> None:
    page.get_by_label("seed").fill("4")
    page.get_by_text("Tokens", exact=True).click()
    expect(page.get_by_label("Keep probabilities")).to_be_visible()


def test_only_known_elements_are_inserted(page: Page) -> None:
    """The server's route makes no others; the page does not rely on it."""
    html = "<p onclick='x()' class='a'>one<img src=x></p><iframe></iframe><a href='/'>two</a>"
    found = page.evaluate(
        """async (html) => {
            const { render } = await import('/page/js/markdown.js');
            const [fragment] = await render({ json: async () => ({ html: [html] }) }, ['']);
            const root = document.createElement('div');
            root.append(fragment);
            return root.innerHTML;
        }""",
        html,
    )
    assert found == '<p class="a">one</p>'


def test_a_link_opens_only_after_its_address_is_shown(page: Page, server: Speaker) -> None:
    server.says("[my bank](https://evil.example/path)")
    send(page, "hello")
    page.locator(".link").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("https://evil.example/path")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.locator(".link").click()
    page.context.route("https://evil.example/**", lambda route: route.fulfill(body="there"))
    with page.expect_popup() as popup:
        dialog.get_by_role("button", name="Open in a new tab").click()
    popup.value.wait_for_url("https://evil.example/path")
    assert popup.value.evaluate("[window.opener, document.referrer]") == [None, ""]


def test_changes_of_direction(spoken: Page) -> None:
    put(spoken, DIRECTIONS)
    text = answer(spoken).locator(".text")
    expect(text.locator("pre .control")).to_have_text("U+202E")
    hebrew = text.locator("p", has_text="שלום")
    assert hebrew.evaluate("one => getComputedStyle(one).direction") == "rtl"
    end = text.locator("p", has_text="End.")
    assert end.evaluate("one => getComputedStyle(one).direction") == "ltr"
    assert end.evaluate("one => getComputedStyle(one).unicodeBidi") == "isolate"


@pytest.mark.parametrize("unit", ["word " * 9 + "\n\n", "x"])
def test_a_large_answer_is_shown_in_parts(spoken: Page, unit: str) -> None:
    put(spoken, unit * (5_000_000 // len(unit)))
    more = answer(spoken).get_by_role("button", name="Show")
    expect(more).to_contain_text("60,000 of 4,9")
    size = "one => one.textContent.length"
    assert answer(spoken).evaluate(size) < 100_000
    assert answer(spoken).evaluate("one => one.querySelectorAll('*').length") < 10_000
    more.click()
    expect(more).to_contain_text("60,000 of 4,8")
    assert 100_000 < answer(spoken).evaluate(size) < 200_000


def overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def test_a_phone(browser: Browser, server: Speaker) -> None:
    with opened(browser, server.url, viewport={"width": 320, "height": 640}) as page:
        server.says("word " * 30 + "\n\n```python\n" + "x = 1; " * 30 + "\n```\n\n" + "y" * 200)
        send(page, "hello")
        expect(answer(page).locator(".figures")).to_be_visible()
        expect(answer(page).locator("pre")).to_be_visible()
        assert overflow(page) <= 0
        page.get_by_role("button", name="Settings").click()
        expect(page.get_by_label("System prompt")).to_be_in_viewport()
        page.keyboard.press("Escape")
        expect(page.get_by_label("System prompt")).not_to_be_visible()
        page.get_by_role("button", name="Conversations").click()
        expect(page.get_by_label("Search conversations")).to_be_in_viewport()
        assert overflow(page) <= 0


def lightness(page: Page, property: str) -> float:
    colour = page.evaluate(f"getComputedStyle(document.body).{property}")
    return sum(float(one) for one in colour[colour.index("(") + 1 : -1].split(",")[:3])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system(browser: Browser, server: Speaker, scheme: Any) -> None:
    with opened(browser, server.url, color_scheme=scheme) as page:
        page.wait_for_selector(".parameter")
        is_dark = lightness(page, "backgroundColor") < lightness(page, "color")
        assert is_dark == (scheme == "dark")


def test_motion_is_reduced(browser: Browser, server: Speaker) -> None:
    server.executor.gate.clear()
    with opened(browser, server.url, reduced_motion="reduce") as page:
        page.wait_for_selector(".parameter")
        send(page, "hello")
        text = page.locator(".waiting > .text")
        expect(text).to_have_count(1)
        script = "one => getComputedStyle(one, '::before').animationName"
        assert text.evaluate(script) == "none"
        page.keyboard.press("Escape")
        server.executor.gate.set()
        expect(answer(page)).to_contain_text("Stopped.")


def test_keys_alone(page: Page, server: Speaker) -> None:
    """Each control is reached by Tab and shows it; shortcuts do the rest."""
    server.says("yes")
    page.keyboard.press("/")
    page.keyboard.type("hello")
    page.keyboard.press("Control+Enter")
    expect(answer(page).locator(".figures")).to_be_visible()
    page.locator("body").click(position={"x": 640, "y": 22})
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Ctrl+K")
    page.keyboard.press("Escape")
    seen: set[str] = set()
    wanted = {"Copy", "Edit and send again", "Answer again with another seed", "Send", "Shortcuts"}
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate(
            """() => {
                const one = document.activeElement;
                const style = getComputedStyle(one.closest('.box') && one.matches('textarea')
                    ? one.closest('.box') : one);
                const shown = style.outlineStyle !== 'none' || style.boxShadow !== 'none';
                const name = one.getAttribute('aria-label') || one.textContent.slice(0, 40);
                return shown || one === document.body ? name : `unseen: ${name}`;
            }"""
        )
        seen.add(name)
    assert wanted <= seen
    assert [one for one in seen if one.startswith("unseen")] == []


def test_rules_of_axe(browser: Browser, server: Speaker) -> None:
    """The rules of WCAG 2 that axe-core checks, in both schemes and with an open dialog."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with opened(browser, server.url, bypass_csp=True) as page:
        page.wait_for_selector(".parameter")
        page.get_by_text("Tokens", exact=True).click()
        page.get_by_label("Keep probabilities").check()
        server.says(HOSTILE)
        send(page, "hello")
        expect(answer(page).locator("pre .k").first).to_be_visible()
        for section in ("All parameters", "Functions", "Two answers"):
            page.get_by_text(section).first.click()
        assert violations(axe, page) == []
        answer(page).get_by_role("button", name="Tokens").click()
        page.locator(".token").nth(1).focus()
        page.emulate_media(color_scheme="dark")
        assert violations(axe, page) == []
        page.get_by_role("button", name="Add a function").click()
        assert violations(axe, page) == []

"""Pictures in chats: chosen, pasted, dropped, made smaller, kept, and sent again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser_pages import answer, check_looks, expect, opened, reload, send, speaking, violations
from image_files import CAT, file_of, gradient, text_of, url_of
from PIL import Image

from fake_eyes import ROW_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from browser_pages import Speaker
    from playwright.sync_api import Browser, Locator, Page, Route

DOG = file_of(gradient(35, 4))
CAT_ROWS, DOG_ROWS = chr(ROW_TOKEN) * 4, chr(ROW_TOKEN) * 8
"""What the prompt has in place of the pictures."""


@pytest.fixture(scope="module")
def server() -> Iterator[Speaker]:
    """A server whose model sees, in place of that of `conftest.py`."""
    with speaking(sees=True) as speaker:
        speaker.says("yes")
        yield speaker


class Bodies:
    """The bodies of the requests for answers."""

    def __init__(self, page: Page) -> None:
        self.all: list[Any] = []
        page.on("request", self._note)

    def _note(self, request: Any) -> None:
        if request.url.endswith("/chat/completions"):
            self.all.append(request.post_data_json)

    @property
    def last(self) -> list[Any]:
        """The messages of the last one."""
        found: list[Any] = self.all[-1]["messages"]
        return found


@pytest.fixture
def bodies(page: Page) -> Bodies:
    return Bodies(page)


def image(data: bytes) -> dict[str, Any]:
    """The part of a message."""
    return {"type": "image_url", "image_url": {"url": url_of(data)}}


def file(name: str, data: bytes, kind: str = "image/png") -> Any:
    return {"name": name, "mimeType": kind, "buffer": data}


def add(page: Page, *files: Any, inside: str = ".composer") -> None:
    """Choose files."""
    with page.expect_file_chooser() as chooser:
        page.locator(inside).get_by_role("button", name="Add pictures").click()
    chooser.value.set_files(list(files))


def thumbnails(page: Page, inside: str = ".composer") -> Locator:
    return page.locator(f"{inside} .thumbnails li")


def give(page: Page, how: str, target: str, text: str = "", kind: str = "image/png") -> None:
    """Paste a picture into a node, or drop it there."""
    page.locator(target).last.evaluate(
        """(node, [how, data, text, type]) => {
            const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
            const given = new DataTransfer();
            given.items.add(new File([bytes], 'image.png', { type }));
            if (text) given.setData('text/plain', text);
            const options = { bubbles: true, cancelable: true };
            if (how === 'paste') {
                const clipboard = { ...options, clipboardData: given };
                node.dispatchEvent(new ClipboardEvent('paste', clipboard));
            } else {
                for (const name of ['dragover', 'drop'])
                    node.dispatchEvent(new DragEvent(name, { ...options, dataTransfer: given }));
            }
        }""",
        [how, text_of(CAT), text, kind],
    )


def answered(page: Page, number: int = 1) -> None:
    """Wait for so many finished answers in the shown branch."""
    expect(page.locator(".from-model .figures")).to_have_count(number)


def test_chosen_pictures_are_sent_shown_and_kept(
    page: Page, server: Speaker, bodies: Bodies
) -> None:
    add(page, file("cat.png", CAT), file("dog.png", DOG))
    expect(thumbnails(page)).to_have_count(2)
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    send(page, "hello")
    expect(answer(page)).to_contain_text("yes")
    answered(page)
    hello = [image(CAT), image(DOG), {"type": "text", "text": "hello"}]
    assert bodies.last == [{"role": "user", "content": hello}]
    assert server.prompt == f"<user>{CAT_ROWS}{DOG_ROWS}hello<assistant>"
    expect(page.locator(".from-user .picture img")).to_have_count(2)
    expect(thumbnails(page)).to_have_count(0)
    send(page, "more")
    answered(page, 2)
    assert bodies.last[0]["content"] == hello
    assert bodies.last[2] == {"role": "user", "content": "more"}
    reload(page)
    expect(page.locator(".from-user .picture img")).to_have_count(2)
    page.get_by_role("button", name="Answer again").last.click()
    expect(answer(page)).to_contain_text("2 / 2")
    answered(page, 2)
    assert bodies.last[0]["content"] == hello


def test_a_picture_without_a_text(page: Page, bodies: Bodies) -> None:
    add(page, file("cat.png", CAT))
    expect(thumbnails(page)).to_have_count(1)
    page.get_by_role("button", name="Send", exact=True).click()
    answered(page)
    assert bodies.last == [{"role": "user", "content": [image(CAT)]}]
    expect(page.locator(".conversations a")).to_have_text(["cat.png"])
    expect(page.locator(".from-user > .text")).to_be_hidden()


def test_a_picture_is_shown_large(page: Page) -> None:
    add(page, file("cat.png", CAT))
    send(page, "hello")
    answered(page)
    page.locator(".from-user").get_by_role("button", name="Enlarge cat.png").click()
    dialog = page.get_by_role("dialog", name="cat.png")
    expect(dialog.get_by_role("img", name="cat.png")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Enlarge cat.png")).to_be_focused()


@pytest.mark.parametrize(
    ("how", "target"), [("paste", ".box textarea"), ("drop", ".box"), ("drop", ".thread")]
)
def test_a_picture_is_pasted_or_dropped(page: Page, bodies: Bodies, how: str, target: str) -> None:
    give(page, how, target)
    expect(thumbnails(page)).to_have_count(1)
    expect(page.locator(".receives")).to_have_count(0)
    send(page, "hello")
    answered(page)
    assert bodies.last[0]["content"][0] == image(CAT)


def test_a_pasted_text_stays_a_text(page: Page) -> None:
    """Spreadsheets put a picture of the cells beside their text."""
    give(page, "paste", ".box textarea", text="1\t2")
    give(page, "drop", ".box")  # it would come after the pasted one
    expect(thumbnails(page)).to_have_count(1)


def test_pictures_are_removed_by_keys(page: Page, bodies: Bodies) -> None:
    add(page, file("cat.png", CAT), file("dog.png", DOG))
    expect(thumbnails(page)).to_have_count(2)
    page.get_by_role("button", name="Remove cat.png").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#live")).to_have_text("Removed cat.png.")
    expect(page.get_by_role("button", name="Remove dog.png")).to_be_focused()
    page.keyboard.press("Enter")
    expect(thumbnails(page)).to_have_count(0)
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    send(page, "hello")
    answered(page)
    assert bodies.last == [{"role": "user", "content": "hello"}]


def test_other_files_are_refused_with_a_reason(page: Page) -> None:
    add(
        page,
        file("cat.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
        file("cat.png", CAT),
        file("text.png", b"no picture"),
    )
    problem = page.locator(".tray [role=alert]")
    expect(problem).to_have_text(
        "cat.svg is no PNG, JPEG, WebP or GIF. text.png cannot be read as a picture."
    )
    expect(thumbnails(page)).to_have_count(1)
    page.get_by_role("button", name="Remove cat.png").click()
    expect(problem).to_be_empty()


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF"])
def test_the_other_kinds(page: Page, server: Speaker, kind: str) -> None:
    add(page, file(f"cat.{kind}", file_of(gradient(), kind), f"image/{kind.lower()}"))
    expect(thumbnails(page)).to_have_count(1)
    send(page, "hello")
    answered(page)
    assert server.eyes.seen[-1].pixels.shape == (8, 12, 3)


def test_a_model_without_eyes_gets_no_pictures(browser: Browser) -> None:
    with speaking() as blind, opened(browser, blind.url) as page:
        page.wait_for_selector(".parameter")
        button = page.get_by_role("button", name="Add pictures")
        expect(button).to_have_attribute("aria-disabled", "true")
        expect(button).to_have_attribute("title", "fake sees no pictures.")
        problem = page.locator(".tray [role=alert]")
        button.focus()
        page.keyboard.press("Enter")
        expect(problem).to_have_text("fake sees no pictures.")
        for how in ("paste", "drop"):
            page.reload()
            page.wait_for_selector(".parameter")
            give(page, how, ".box textarea")
            expect(problem).to_have_text("fake sees no pictures.")
            expect(thumbnails(page)).to_have_count(0)


def with_blind_model(route: Route) -> None:
    response = route.fetch()
    listed = response.json()
    [seeing] = listed["data"]
    listed["data"].append({**seeing, "id": "blind", "modalities": {"vision": False}})
    route.fulfill(response=response, json=listed)


def without_eyes(route: Route) -> None:
    response = route.fetch()
    listed = response.json()
    listed["data"][0]["modalities"] = {"vision": False}
    route.fulfill(response=response, json=listed)


def without_facts(route: Route) -> None:
    response = route.fetch()
    listed = response.json()
    del listed["data"][0]["modalities"]
    listed["data"][0]["status"] = {"value": "unloaded"}
    route.fulfill(response=response, json=listed)


def test_the_button_follows_a_model_that_is_loaded_anew(page: Page) -> None:
    button = page.get_by_role("button", name="Add pictures")
    expect(button).to_have_attribute("aria-disabled", "false")
    page.route("**/v1/models", without_eyes)
    page.get_by_role("link", name="Models").click()
    expect(page.locator(".model-card")).to_have_count(1)
    page.get_by_role("link", name="Chat").click()
    expect(button).to_have_attribute("title", "fake sees no pictures.")


def test_a_model_that_is_not_loaded_may_see(browser: Browser) -> None:
    """Then the server says whether it does."""
    with speaking() as blind, opened(browser, "about:blank") as page:
        page.route("**/v1/models", without_facts)
        page.goto(blind.url)
        page.wait_for_selector(".parameter")
        add(page, file("cat.png", CAT))
        expect(thumbnails(page)).to_have_count(1)
        send(page, "hello")
        expect(answer(page)).to_contain_text("sees no pictures")


def test_the_page_remembers_what_an_unloaded_model_sees(browser: Browser) -> None:
    with speaking() as blind, opened(browser, blind.url) as page:
        page.wait_for_selector(".parameter")
        button = page.get_by_role("button", name="Add pictures")
        expect(button).to_have_attribute("title", "fake sees no pictures.")
        page.route("**/v1/models", without_facts)
        page.get_by_role("link", name="Models").click()
        expect(page.locator(".model-card")).to_contain_text("unloaded")
        for _ in range(3):
            with page.expect_response("**/v1/models"):
                pass
        page.get_by_role("link", name="Chat").click()
        button.press("Enter")
        expect(page.locator(".tray [role=alert]")).to_have_text("fake sees no pictures.")


def test_two_models_both_must_see(browser: Browser, server: Speaker) -> None:
    with opened(browser, "about:blank") as page:
        page.route("**/v1/models", with_blind_model)
        page.route("**/parameters?model=blind", lambda route: route.fulfill(json={"data": []}))
        page.goto(server.url)
        page.wait_for_selector(".parameter")
        bodies = Bodies(page)
        page.get_by_text("Two answers side by side").click()
        button = page.get_by_role("button", name="Add pictures")
        second = page.get_by_label("Second model")
        second.select_option("fake")
        expect(button).to_have_attribute("aria-disabled", "false")
        add(page, file("cat.png", CAT))
        expect(thumbnails(page)).to_have_count(1)
        second.select_option("blind")
        expect(button).to_have_attribute("title", "blind sees no pictures.")
        send(page, "hello")
        problem = page.locator(".tray [role=alert]")
        expect(problem).to_have_text("blind sees no pictures.")
        second.select_option("fake")
        page.get_by_role("textbox", name="Message").press("Enter")
        answered(page, 2)
        assert [one["messages"][0]["content"][0] for one in bodies.all] == [image(CAT)] * 2
        second.select_option("")
        page.locator(".model select").select_option("blind")
        expect(button).to_have_attribute("aria-disabled", "true")


def test_edit_and_send_again_keeps_pictures(page: Page, bodies: Bodies) -> None:
    add(page, file("cat.png", CAT), file("dog.png", DOG))
    expect(thumbnails(page)).to_have_count(2)
    send(page, "hello")
    answered(page)
    page.get_by_role("button", name="Edit and send again").click()
    expect(page.locator(".from-user > .pictures")).to_be_hidden()
    expect(thumbnails(page, ".editor")).to_have_count(2)
    page.get_by_role("button", name="Remove dog.png").press("Enter")  # it sends nothing
    expect(thumbnails(page, ".editor")).to_have_count(1)
    give(page, "paste", ".editor textarea")
    expect(thumbnails(page, ".editor")).to_have_count(2)
    give(page, "drop", ".editor")
    expect(thumbnails(page, ".editor")).to_have_count(3)
    expect(thumbnails(page)).to_have_count(0)
    page.get_by_role("textbox", name="Your message").fill("other")
    page.keyboard.press("Enter")
    expect(page.locator(".from-user")).to_contain_text("2 / 2")
    answered(page)
    assert bodies.last[0]["content"] == [image(CAT)] * 3 + [{"type": "text", "text": "other"}]
    page.locator(".from-user").get_by_role("button", name="Branch before").click()
    expect(page.locator(".from-user .picture")).to_have_count(2)
    page.get_by_role("button", name="Edit and send again").click()
    page.keyboard.press("Escape")
    expect(page.locator(".from-user > .pictures")).to_be_visible()


def exported(page: Page, path: Path) -> Any:
    page.get_by_role("button", name="More about").first.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(path)
    return json.loads(path.read_text())


def test_export_and_import_keep_pictures(page: Page, bodies: Bodies, tmp_path: Path) -> None:
    add(page, file("cat.png", CAT))
    expect(thumbnails(page)).to_have_count(1)
    send(page, "hello")
    answered(page)
    path = tmp_path / "one.json"
    content = exported(page, path)
    assert content["messages"][0]["pictures"] == [{"name": "cat.png", "url": url_of(CAT)}]
    page.locator(".list input[type=file]").set_input_files(path)
    expect(page.locator(".conversations a")).to_have_count(2)
    expect(page.locator(".conversations a").first).to_have_attribute("aria-current", "true")
    expect(page.locator(".from-user .picture")).to_have_count(1)
    send(page, "more")
    answered(page, 2)
    assert bodies.last[0]["content"][0] == image(CAT)


@pytest.mark.parametrize(
    "url", ["https://evil.example/p.png", "v1/models", "data:image/svg+xml;base64,AAAA", 7]
)
def test_an_imported_picture_is_no_address(page: Page, tmp_path: Path, url: Any) -> None:
    pictures = [{"name": "cat.png", "url": url}]
    message = {"id": "a", "parent": None, "created": 1, "role": "user", "content": "hello"}
    content = {"format": "heddle-conversation", "version": 1, "conversation": {"head": "a"}}
    path = tmp_path / "one.json"
    path.write_text(json.dumps({**content, "messages": [message | {"pictures": pictures}]}))
    page.locator(".list input[type=file]").set_input_files(path)
    expect(page.get_by_role("dialog")).to_contain_text("a picture must be a PNG, JPEG, WebP or GIF")
    expect(page.locator(".conversations a")).to_have_count(0)


def noise(side: int) -> Image.Image:
    """A picture that no file makes small."""
    size = side * side * 3
    return Image.frombytes("RGB", (side, side), np.random.default_rng(1).bytes(size))


@pytest.mark.parametrize(
    ("name", "data", "kind", "longest"),
    [
        ("wide.png", file_of(gradient(2100, 10)), "image/png", 2048),
        ("large.png", file_of(noise(1400)), "image/jpeg", 1400),
        ("noisy.jpg", file_of(noise(2048), "JPEG", quality=95), "image/jpeg", 2048),
    ],
)
def test_large_pictures_become_smaller(
    page: Page, server: Speaker, bodies: Bodies, name: str, data: bytes, kind: str, longest: int
) -> None:
    add(page, file(name, data, "image/jpeg" if name.endswith("jpg") else "image/png"))
    expect(thumbnails(page)).to_have_count(1)
    send(page, "hello")
    answered(page)
    url = bodies.last[0]["content"][0]["image_url"]["url"]
    assert url.startswith(f"data:{kind};base64,")
    assert len(url) < 2.8 * 2**20
    assert max(server.eyes.seen[-1].pixels.shape) == longest


@pytest.mark.parametrize("width", [300, 2400], ids=["as it is", "made smaller"])
def test_a_photo_that_lies_on_its_side_is_turned(page: Page, server: Speaker, width: int) -> None:
    lying = Image.new("RGB", (width, 160), "blue")
    lying.paste("red", (0, 0, width // 2, 160))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    add(page, file("photo.jpg", file_of(lying, "JPEG", exif=exif), "image/jpeg"))
    expect(thumbnails(page)).to_have_count(1)
    send(page, "hello")
    answered(page)
    pixels = server.eyes.seen[-1].pixels
    assert pixels.shape[0] == min(width, 2048)
    assert pixels[5, 5].argmax() == 0  # red
    assert pixels[-5, 5].argmax() == 2  # blue


@pytest.mark.parametrize(
    ("side", "kind"), [(2100, "image/png"), (1400, "image/jpeg")], ids=["png", "jpeg"]
)
def test_what_is_transparent_becomes_white(
    page: Page, server: Speaker, bodies: Bodies, side: int, kind: str
) -> None:
    image = Image.new("RGBA", (side, side), (255, 0, 0, 0))
    if kind == "image/jpeg":
        image.paste(noise(side).crop((0, 0, side, side - 100)))
    add(page, file("clear.png", file_of(image)))
    expect(thumbnails(page)).to_have_count(1)
    send(page, "hello")
    answered(page)
    assert bodies.last[0]["content"][0]["image_url"]["url"].startswith(f"data:{kind};base64,")
    assert server.eyes.seen[-1].pixels[-5, -5].min() > 250


def test_a_message_waits_for_its_pictures(page: Page, bodies: Bodies) -> None:
    page.evaluate(
        """() => {
            const read = createImageBitmap;
            const gate = new Promise((resolve) => (window.release = resolve));
            window.createImageBitmap = (file) => gate.then(() => read(file));
        }"""
    )
    add(page, file("cat.png", CAT))
    send(page, "hello")
    expect(page.locator(".tray [role=alert]")).to_have_text("A picture is still being read.")
    page.evaluate("release()")
    expect(thumbnails(page)).to_have_count(1)
    page.get_by_role("textbox", name="Message").press("Enter")
    answered(page)
    assert len(bodies.all) == 1
    assert bodies.last[0]["content"][0] == image(CAT)


def test_the_help_tells_the_bounds(page: Page) -> None:
    page.locator("body").click(position={"x": 640, "y": 22})
    with page.expect_file_chooser():
        page.keyboard.press("Alt+p")
    page.keyboard.press("?")
    help = page.get_by_role("dialog")
    expect(help).to_contain_text("2048 pixels a side or 2 MB are made smaller in this browser")


def test_it_fits_a_phone_and_the_rules_of_axe(browser: Browser, server: Speaker) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with opened(browser, server.url, bypass_csp=True) as page:
        page.wait_for_selector(".parameter")
        many = [file(f"cat {number}.png", CAT) for number in range(9)]
        add(page, *many, file("dog.png", file_of(gradient(1500, 100))))
        expect(thumbnails(page)).to_have_count(10)
        send(page, "hello")
        answered(page)
        add(page, *many, file("cat.svg", b"", "image/svg+xml"))
        expect(page.locator(".tray [role=alert]")).not_to_be_empty()
        check_looks(axe, page, ".chat")
        for inside in (".messages", ".composer"):
            node = page.locator(inside)
            assert node.evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0
        page.get_by_role("button", name="Edit and send again").click()
        assert violations(axe, page) == []
        page.locator(".editor").get_by_role("button", name="Enlarge dog.png").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert axe.run(page).response["violations"] == []  # fewer rules have something to check
        assert page.get_by_role("dialog").evaluate("(one) => one.scrollWidth - innerWidth") <= 0

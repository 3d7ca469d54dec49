"""The page's files over HTTP: who gets them, their headers, and their size."""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING

import httpx
import pytest

from heddle.extensions.page.files import POLICY, page_files
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
MOST_BYTES = 250_000


def test_browsers_get_the_page_and_other_clients_do_not(shared: Running) -> None:
    page = shared.get("/", headers=HTML)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert 'src="page/js/main.js"' in page.text
    head = httpx.head(shared.url + "/", headers=HTML, timeout=PATIENCE)
    assert head.headers["etag"] == page.headers["etag"]
    assert shared.get("/").text == "Ollama is running"
    assert shared.get("/", headers={"accept": "application/json"}).text == "Ollama is running"


def test_a_method_that_the_page_has_not(shared: Running) -> None:
    assert shared.post("/", {}, headers=HTML).status_code == 405


@pytest.mark.parametrize("file", page_files(), ids=lambda file: file.name)
def test_every_file_has_the_headers_of_a_strict_page(shared: Running, file: object) -> None:
    name = file.name  # type: ignore[attr-defined]
    answer = shared.get("/" if name == "index.html" else f"/page/{name}", headers=HTML)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    if name == "js/sandbox.js":
        assert "connect-src" not in policy
        assert "default-src 'none'" in policy
        assert "'self'" not in policy
    else:
        assert policy == POLICY
        assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-cache"


def test_a_browser_that_has_the_file_gets_no_second_copy(shared: Running) -> None:
    first = shared.get("/page/js/main.js")
    again = shared.get("/page/js/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == POLICY
    other = shared.get("/page/js/main.js", headers={"if-none-match": '"other"'})
    assert other.status_code == 200


@pytest.mark.parametrize(
    "path", ["/page/", "/page/index.html", "/page/../api.py", "/page/%2e%2e/api.py"]
)
def test_no_other_path_is_a_file(shared: Running, path: str) -> None:
    assert shared.get(path, headers=HTML).status_code == 404


def test_no_page(serve: Callable[..., Running]) -> None:
    server = serve(page=False)
    assert server.get("/", headers=HTML).text == "Ollama is running"
    assert server.get("/page/js/main.js").status_code == 404
    assert server.post("/page/markdown", {"texts": ["a"]}).status_code == 404


def test_the_page_needs_no_key_and_all_else_does(serve: Callable[..., Running]) -> None:
    server = serve(api_key=("right",))
    assert server.get("/", headers=HTML).status_code == 200
    assert server.get("/page/js/main.js").status_code == 200
    assert server.get("/").status_code == 401
    assert server.post("/page/js/main.js", {}).status_code == 401
    assert server.get("/page/parameters").status_code == 401
    assert server.post("/page/markdown", {"texts": ["a"]}).status_code == 401
    assert server.get("/v1/models").status_code == 401
    key = {"authorization": "Bearer right"}
    assert server.get("/page/parameters", headers=key).status_code == 200


def test_without_a_page_the_address_needs_a_key(serve: Callable[..., Running]) -> None:
    server = serve(api_key=("right",), page=False)
    assert server.get("/", headers=HTML).status_code == 401


def test_a_page_of_another_site_gets_no_leave(shared: Running) -> None:
    origin = {"origin": "https://evil.example", "content-type": "text/plain"}
    assert (
        "access-control-allow-origin" not in shared.get("/page/parameters", headers=origin).headers
    )
    answer = httpx.post(
        shared.url + "/page/markdown", content=b'{"texts": ["a"]}', headers=origin, timeout=PATIENCE
    )
    assert answer.status_code == 415


def test_the_files_are_small_and_come_from_here() -> None:
    files = page_files()
    assert sum(len(gzip.compress(file.content)) for file in files) < MOST_BYTES
    for file in files:
        text = file.content.decode()
        elsewhere = re.findall(r"""(?:from|import|src=|href=|url)\s*\(?["']?(?:https?:)?//""", text)
        assert elsewhere == [], file.name
        assert "innerHTML" not in text, file.name
        assert " style=" not in text, file.name


def test_files_refer_to_files_that_exist() -> None:
    names = {file.name for file in page_files()}
    for file in page_files():
        text = file.content.decode()
        absolute = re.findall(r"""["']/page/((?:js|css)/[^"']+|[a-z]+\.svg)["']""", text)
        assert set(absolute) <= names, file.name


def test_parameters_are_those_of_the_table_with_the_models_defaults(
    serve: Callable[..., Running],
) -> None:
    rows = serve(defaults={"temperature": 0.5}).get("/page/parameters").json()["data"]
    by_name = {row["name"]: row for row in rows}
    assert by_name["temperature"]["default"] == 0.5
    assert (by_name["temperature"]["kind"], by_name["temperature"]["min"]) == ("number", 0)
    assert "max" not in by_name["temperature"]
    top_k = by_name["top_k"]
    assert (top_k["kind"], top_k["min"], top_k["max"]) == ("integer", -1, 2**31 - 1)
    assert by_name["ignore_eos"]["kind"] == "switch"
    assert by_name["stop"] | {"doc": "", "range": ""} == {
        "name": "stop",
        "doc": "",
        "range": "",
        "source": "",
        "default": [],
        "kind": "strings",
    }
    assert by_name["engram_form"]["choices"] == ["lift", "literal"]
    assert by_name["samplers"]["default"][0] == "penalties"
    assert "min" not in by_name["seed"]
    assert "logprobs" not in by_name


def test_parameters_of_an_unknown_model(shared: Running) -> None:
    assert shared.get("/page/parameters?model=other").status_code == 404

"""API keys: who gets in, what others hear, where no key ever shows, whose prefixes are found."""

from __future__ import annotations

import hmac
import logging
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.config import ServerConfig
from heddle.errors import ConfigError
from heddle.server.http import keys
from heddle.server.http.keys import Key, Keys, keys_of, salt_of_key
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_server import Running

ONE, OTHER = "sk-one-8d1f", "sk-other-77aa"
PROMPT = "the sea is blue"
COMPLETION = {"prompt": PROMPT, "max_tokens": 2, "ignore_eos": True, "seed": 1}


@pytest.fixture
def locked(serve: Callable[..., Running]) -> Running:
    """A server with two keys."""
    return serve(api_key=(ONE, OTHER), slots=2)


@pytest.fixture
def scoped(serve: Callable[..., Running]) -> Running:
    """One whose keys scope what is found in the prefix cache."""
    return serve(api_key=(ONE, OTHER), prefix_cache_per_key=True, slots=2)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def cached(server: Running, key: str, **fields: Any) -> int:
    answer = server.post("/v1/completions", COMPLETION | fields, headers=bearer(key))
    assert answer.status_code == 200
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_digests_are_compared_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Keys([ONE]).find([ONE.encode()])
    assert found is not None
    assert found.digest == sha256(ONE.encode()).digest()
    monkeypatch.setattr(keys, "_digest", lambda key: bytes(31) + key[-1:])
    assert Keys(["a"]).find([b"b"]) is None


@pytest.mark.parametrize(
    "headers",
    [
        bearer(ONE),
        bearer(OTHER),
        {"authorization": f"bearer  {ONE}"},
        {"x-api-key": OTHER},
        {"authorization": "Bearer unused", "x-api-key": ONE},
    ],
)
def test_who_brings_a_key_is_served(locked: Running, headers: dict[str, str]) -> None:
    answer = locked.post("/v1/completions", COMPLETION, headers=headers)
    assert answer.status_code == 200
    assert locked.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "an API key is missing"),
        ({"authorization": f"Basic {ONE}"}, "an API key is missing"),
        ({"authorization": ONE}, "an API key is missing"),
        ({"authorization": "Bearer"}, "the API key is not valid here"),
        ({"x-api-key": ""}, "the API key is not valid here"),
        (bearer(ONE[:-1]), "the API key is not valid here"),
        (bearer(ONE + "x"), "the API key is not valid here"),
        (bearer(ONE.upper()), "the API key is not valid here"),
        (bearer(f"{ONE},{OTHER}"), "the API key is not valid here"),
    ],
)
def test_who_brings_none_is_refused(locked: Running, headers: dict[str, str], said: str) -> None:
    steps = locked.executor.steps
    answer = locked.post("/v1/chat/completions", {"messages": 7}, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert error == {
        "message": f"{said}; send a valid key as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert locked.executor.steps == steps


@pytest.mark.slow
def test_only_health_is_open(locked: Running) -> None:
    probes = ("/health", "/health/live", "/health/ready", "/ready")
    for path in probes:
        assert locked.get(path).status_code == 200
        assert httpx.head(locked.url + path, timeout=PATIENCE).status_code == 200
    paths = [*locked.get("/openapi.json", headers=bearer(ONE)).json()["paths"]]
    assert "/v1/chat/completions" in paths
    for path in [*paths, "/openapi.json", "/docs", "/nothing", "/health/", "//health", "/"]:
        if path not in probes:
            assert locked.get(path).status_code == 401, path
    assert locked.delete("/v1/prefix_cache").status_code == 401


def test_a_server_without_keys_asks_for_none(shared: Running) -> None:
    for headers in ({}, bearer("anything")):
        answer = shared.post("/v1/completions", COMPLETION, headers=headers)
        assert answer.status_code == 200


def test_the_official_client(locked: Running) -> None:
    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0)

    with client(ONE) as good, client("sk-wrong") as bad:
        assert [model.id for model in good.models.list().data] == ["fake"]
        with pytest.raises(openai.AuthenticationError) as refused:
            bad.models.list()
    assert refused.value.code == "invalid_api_key"


def test_a_large_body_without_a_key_leaves_the_connection_usable(locked: Running) -> None:
    with httpx.Client(base_url=locked.url, timeout=PATIENCE) as client:
        for _ in range(2):
            assert client.post("/v1/completions", content=b"x" * (1 << 20)).status_code == 401
            assert client.get("/health").status_code == 200


def test_keys_show_nowhere(locked: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "heddle")
    seen = []
    for key in (ONE, "sk-wrong-55"):
        for path in ("/v1/models", "/v1/models/other", "/metrics", "/slots", "/nothing"):
            answer = locked.get(path, headers=bearer(key))
            seen.append(answer.text + str(answer.headers))
        answer = locked.post("/v1/completions", {"prompt": 1.5}, headers={"x-api-key": key})
        seen.append(answer.text)
    seen += [caplog.text, repr(ServerConfig(api_key=(ONE,)))]
    assert "401" in caplog.text
    for key in (ONE, OTHER, "sk-wrong-55"):
        assert not [text for text in seen if key in text]


def test_all_keys_are_compared_however_early_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda *pair: compared.append(1) or compare(*pair))
    keys = Keys([ONE, OTHER, "sk-third"])
    digests = [keys.find([key.encode()]) for key in (ONE, OTHER, "sk-none")]
    assert None not in digests[:2]
    assert digests[0] != digests[1]
    assert digests[2] is None
    assert len(compared) == 3 * 3


# --- scoping -------------------------------------------------------------------------------------


def test_a_key_finds_only_its_own_prefixes(scoped: Running) -> None:
    found = len(PROMPT) - 1
    assert [cached(scoped, ONE), cached(scoped, ONE)] == [0, found]
    assert [cached(scoped, OTHER), cached(scoped, OTHER)] == [0, found]
    assert [cached(scoped, ONE, cache_salt="a"), cached(scoped, ONE, cache_salt="a")] == [0, found]
    assert [cached(scoped, OTHER, cache_salt="a"), cached(scoped, ONE, cache_salt="b")] == [0, 0]
    assert cached(scoped, ONE) == found
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "max_tokens": 2, "seed": 1}
    for key, expected in ((ONE, False), (OTHER, False), (ONE, True)):
        answer = scoped.post("/v1/chat/completions", body, headers={"x-api-key": key}).json()
        assert (answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) is expected


def test_the_longest_salt_is_still_served(scoped: Running) -> None:
    salt = "x" * 256
    assert [cached(scoped, ONE, cache_salt=salt) for _ in range(2)] == [0, len(PROMPT) - 1]
    answer = scoped.post(
        "/v1/completions", COMPLETION | {"cache_salt": salt + "x"}, headers=bearer(ONE)
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")


def test_without_the_setting_keys_share_prefixes(locked: Running) -> None:
    assert [cached(locked, ONE), cached(locked, OTHER)] == [0, len(PROMPT) - 1]


KEYS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=70)
SALTS = st.none() | st.text(st.characters(codec=None), min_size=1, max_size=8) | KEYS


@given(st.lists(st.tuples(KEYS, SALTS), min_size=2, max_size=6, unique=True))
def test_no_two_pairs_of_key_and_salt_share_a_scope(pairs: list[tuple[str, str | None]]) -> None:
    salts = [salt_of_key(Key.parse(key), salt) for key, salt in pairs]
    assert len(set(salts)) == len(pairs)
    assert salts[0] == salt_of_key(Key.parse(pairs[0][0]), pairs[0][1])
    assert all(len(salt) <= 256 for salt in salts)


# --- where keys come from ------------------------------------------------------------------------


def test_keys_of_a_file_are_added(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{OTHER}\n\n  sk-third \r\n")
    keys = keys_of(ServerConfig(api_key=(ONE,), api_key_file=str(path)))
    assert None not in [keys.find([key.encode()]) for key in (ONE, OTHER, "sk-third")]
    assert keys.find([b""]) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        (b"", "has no key"),
        (b" \n\n", "has no key"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"sk-fine\nsk-two words\n", "key 2 of 2 must be visible ASCII"),
        (b"sk-fine\n" * (1 << 20), "is longer than 1048576 bytes"),
    ],
)
def test_a_file_without_good_keys_is_refused(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as refused:
        keys_of(ServerConfig(api_key_file=str(path)))
    assert refused.value.param == "api_key_file"
    assert "sk-" not in refused.value.message


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/dev/zero", "longer than 1048576 bytes"),
        ("~nouser0/keys", "home folder of an unknown user"),
    ],
)
def test_a_path_that_has_no_end_or_no_meaning_is_refused(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        keys_of(ServerConfig(api_key_file=path))


def test_keys_that_begin_alike_are_told_apart() -> None:
    keys = Keys(["sk-0123456789abcdef-one"])
    assert keys.find([b"sk-0123456789abcdef-two"]) is None


@pytest.mark.parametrize("size", [1, 16, 31])
def test_the_whole_digest_of_a_key_is_compared(size: int) -> None:
    keys = Keys(["sk-a"])
    [key] = keys._all
    keys._all = [replace(key, digest=key.digest[:size] + bytes(32 - size))]
    assert keys.find([b"sk-a"]) is None

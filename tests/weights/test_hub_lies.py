"""A hub that lies: each false answer is one plain error, and touches nothing."""

from __future__ import annotations

from itertools import repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from fake_hub import FakeHub, Reply, Repository, commit
from heddle.errors import ModelSourceError
from heddle.weights.hub import client, transfer
from heddle.weights.hub.names import parse
from weights.hub_rig import BARE, WHOLE, Notes, found, kept, place

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def with_file(**lie: object) -> Callable[[dict[str, Any]], object]:
    """A list whose only file is described falsely."""
    return lambda true: true | {"siblings": [true["siblings"][0] | lie]}


def with_list(**lie: object) -> Callable[[dict[str, Any]], object]:
    """A list with false fields."""
    return lambda true: true | lie


DIGEST = "0" * 64


LIES = [
    *((b"[" * 100_000, "the answer"), (b"<html>", "the answer"), (b"[]", "the answer")),
    *((b"\xff", "the answer"), (b'{"sha": ' + b"9" * 5000 + b"}", "the answer")),
    *((with_list(sha=sha), "sha") for sha in (None, 7, "", "main", "../" * 8 + "tmp", "A" * 40)),
    *((with_list(sha=sha), "sha") for sha in (commit("1") + "\n", commit("1") + "/..", [])),
    *((with_list(siblings=value), "siblings") for value in (None, {}, "t.gguf", 1)),
    *((with_list(siblings=[value]), r"siblings\[0\]") for value in (None, [], "t.gguf", 1)),
    *(
        (with_file(rfilename=name), r"siblings\[0\].rfilename")
        for name in (
            *(None, 1, [], "", "/etc/passwd.gguf", "../t.gguf", "a/../../t.gguf", "..", "./t.gguf"),
            *("a//t.gguf", "a/", "a\nt.gguf", "a\0.gguf", "\x1b[2J.gguf", "\ud800.gguf"),
            *("a" * 2000 + ".gguf", "a\u2028.gguf"),
        )
    ),
    *(
        (with_file(size=size), r"siblings\[0\].size")
        for size in (None, -1, True, 1.0, "1", 10**400, 1 << 63, [])
    ),
    *((with_file(lfs=lfs), r"siblings\[0\].lfs") for lfs in ("x", 1, [], [DIGEST])),
    *(
        (with_file(lfs={"sha256": digest}), r"siblings\[0\].lfs.sha256")
        for digest in (None, 1, "", DIGEST[1:], DIGEST[24:], "A" * 64, "../" * 3 + "secret")
    ),
    *(
        (with_file(lfs=None, blobId=digest), r"siblings\[0\].blobId")
        for digest in (None, 1, "", DIGEST, "A" * 40, "../" * 3 + "secret", "0" * 40 + "\n")
    ),
]


@pytest.mark.parametrize(("lie", "field"), LIES)
def test_a_false_list_is_one_error_and_touches_nothing(
    hub: FakeHub, tmp_path: Path, lie: bytes | Callable[[dict[str, Any]], object], field: str
) -> None:
    (tmp_path / "secret").write_text("kept")
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.described = (lambda _: lie) if isinstance(lie, bytes) else lie
    with pytest.raises(ModelSourceError, match=rf"^{hub.url} gave .*org/t-GGUF.*: {field} must be"):
        found(hub, tmp_path, "org/t-GGUF")
    assert list(tmp_path.rglob("*")) == [tmp_path / "secret"]


def test_a_commit_is_not_exchanged_for_another(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.described = with_list(sha=commit("2"))
    with pytest.raises(ModelSourceError, match="sha must be the commit that was asked for, 1111"):
        found(hub, tmp_path, f"org/t-GGUF@{commit('1')}")


def test_a_list_without_end_is_given_up(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    monkeypatch.setattr(client, "_LARGEST_ANSWER", 100)
    with pytest.raises(ModelSourceError, match="the answer must be at most 100 bytes long"):
        found(hub, tmp_path, "org/t-GGUF")
    answer = client._Answer(parse("org/t-GGUF"), place(hub, tmp_path))
    pieces: Any = SimpleNamespace(iter_raw=lambda: repeat(b" " * 40, 4))
    with pytest.raises(ModelSourceError, match="at most 100 bytes long, got 120"):
        answer.read(pieces)
    monkeypatch.setattr(client, "_LONGEST_ANSWER", -1)
    monkeypatch.setattr(client, "_LARGEST_ANSWER", 1 << 20)
    with pytest.raises(ModelSourceError, match="the list takes longer than -1 s"):
        found(hub, tmp_path, "org/t-GGUF")


PARTS = [f"t-0000{part}-of-99999.gguf" for part in (1, 2)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            PARTS,
            r"the split model .* lacks t-00003-of-99999.gguf, .*t-00022-of-99999.gguf, \.\.\.;",
        ),
        (
            [f"{i}.gguf" for i in range(99)],
            r"no GGUF file of one of the usual types; name .*, \.\.\.",
        ),
        (["t-00001-of-00000.gguf"], None),
    ],
)
def test_errors_show_some_of_many_names(
    hub: FakeHub, tmp_path: Path, names: list[str], message: str | None
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of(dict.fromkeys(names, WHOLE))
    if message is None:  # a number of parts that is none is part of the name
        assert found(hub, tmp_path, "org/t-GGUF").path.name == names[0]
        return
    with pytest.raises(ModelSourceError, match=message) as caught:
        found(hub, tmp_path, "org/t-GGUF")
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("body", [b"[]", b'"text"', b'{"error": 1}', b"x" * 100_000])
@pytest.mark.parametrize("path", ["/main", "t.gguf"])
def test_the_body_of_a_refusal_does_not_matter(
    hub: FakeHub, tmp_path: Path, path: str, body: bytes
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults[path] = [Reply(status=403, body=lambda _: body)]
    with pytest.raises(ModelSourceError, match=r"refuses access \(status 403\)"):
        found(hub, tmp_path, "org/t-GGUF")


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([Reply(302, {"Location": "/nowhere"})], "does not exist"),
        ([Reply(302, {"Location": "/loop/t.gguf"})] * 11, "redirects more than 10 times"),
        ([Reply(302, {"Location": "file:///etc/passwd"})] * 6, "cannot be reached"),
        ([Reply(302, {"Location": "http://[::bad/"})] * 6, "fails with 302"),
        ([Reply(302)] * 6, "fails with 302"),
        ([Reply(304)] * 6, "fails with 304"),
        ([Reply(cut=1000), *[Reply(headers={"Content-Range": "bytes 999-/*"})] * 6], "was asked"),
        (
            [Reply(cut=1000), *[Reply(headers={"Content-Range": "items"})] * 6],
            "was asked for bytes",
        ),
        ([Reply(cut=0, headers={"Content-Length": "-1"})] * 6, "cannot be reached"),
        ([Reply(cut=0, headers={"Content-Length": "99999999"})] * 6, "cannot be reached"),
        ([Reply(headers={"Content-Length": "0"})] * 6, "the connection ended at byte 0"),
        ([Reply(headers={"Content-Encoding": "gzip"}, body=lambda _: bytes(len(WHOLE)))], "digest"),
        ([Reply(body=lambda content: content + bytes(1 << 20))], "digest"),
        ([Reply(body=lambda content: content + b"x")], "digest"),
    ],
)
def test_a_false_answer_is_one_error(
    hub: FakeHub, tmp_path: Path, replies: list[Reply], message: str
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults = {"t.gguf": [*replies], "/nowhere": [Reply(404)]}
    with pytest.raises(ModelSourceError, match=message):
        found(hub, tmp_path, "org/t-GGUF", Notes())  # which refuses more bytes than promised
    assert {path.suffix for path in kept(tmp_path)} <= {".heddle"}


def test_no_redirect_leaves_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    def redirect(request: httpx2.Request) -> httpx2.Response:
        assert request.url.scheme == "https"
        return httpx2.Response(302, headers={"Location": "http://hub.example/t.gguf"})

    session = httpx2.Client(transport=httpx2.MockTransport(redirect))
    monkeypatch.setattr(transfer, "get_session", lambda: session)
    with (
        pytest.raises(httpx2.RequestError, match="redirects out of TLS"),
        transfer.answer_of("https://hub.example/t.gguf"),
    ):
        pass


CARDS = [
    b"---\nbase_model: [\n---\n",
    b"---\nbase_model: " + b"[" * 5000 + b"\n---\n",
    b"---\n\xff\n---\n",
    b"---\n- 1\n---\n",
    b"---\nbase_model: {a: b}\n---\n",
    b"---\nbase_model: hf:../../etc\n---\n",
    b"---\nbase_model: org/../base\n---\n",
    b"---\nbase_model: org/base\n---\n" + b" " * (1 << 17),
]


@pytest.mark.parametrize("card", CARDS)
def test_a_card_that_names_no_base_is_no_error(hub: FakeHub, tmp_path: Path, card: bytes) -> None:
    hub.repositories["org/t"] = Repository.of({"t.gguf": BARE, "README.md": card})
    assert found(hub, tmp_path, "org/t").base is None
    assert ("README.md" in hub.fetched()) == (len(card) < 1 << 17)


def test_a_reference_that_cannot_be_stored_is_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t"] = Repository.of({"t.gguf": WHOLE})
    hub.repositories["org/t"].branches["main/x"] = commit("1")
    assert found(hub, tmp_path, "org/t").path.exists()
    with pytest.raises(ModelSourceError, match=r"cannot store org/t in .*: .*(directory|exists)"):
        found(hub, tmp_path, "org/t@main/x")

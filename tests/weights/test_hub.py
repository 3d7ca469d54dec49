"""Models of the hub: fetched once, resumed, checked, and never partly there."""

from __future__ import annotations

import json
import shutil
import threading
from itertools import repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from huggingface_hub import constants

from fake_hub import FakeHub, Reply, Repository, blob_of, commit, fake_hub
from gguf_writer import gguf_bytes
from heddle import LLM, EngineConfig, SamplingParams
from heddle.errors import ChecksumError, ModelSourceError, UnsupportedModelError
from heddle.hub_place import HubPlace
from heddle.weights.formats import open_checkpoint
from heddle.weights.hub import client, transfer
from heddle.weights.hub.names import parse
from heddle.weights.sources import Found, find
from models.tiny.llama import PLAIN
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOKENS = [chr(ord("A") + i) for i in range(PLAIN.vocabulary)]
COMPLETE = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": ["A B"],
    "tokenizer.chat_template": "{{ messages }}",
}


def gguf(**metadata: object) -> bytes:
    named = {name.replace("__", "."): value for name, value in metadata.items()}
    return gguf_bytes(PLAIN.metadata() | COMPLETE | named, PLAIN.tensors())


WHOLE = gguf()
BARE = gguf_bytes(PLAIN.metadata(), PLAIN.tensors())
PAUSES = transfer._PAUSES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a folder with safetensors, and others that no model needs."""
    path = PLAIN.write_folder(tmp_path_factory.mktemp("folder") / "model")
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    others = ("pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx", "vocab.txt")
    return files | dict.fromkeys(others, b"not needed")


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    with fake_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    """An empty hub, and no pauses between attempts."""
    fresh = FakeHub(server.url)
    vars(server).update(vars(fresh))
    monkeypatch.setattr(transfer, "_PAUSES", (0.0,) * 5)
    assert constants.HF_HUB_DISABLE_TELEMETRY  # else the library asks huggingface.co for a list
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return server


class Notes:
    """Keeps what progress is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.updates: list[int] = []
        self.total: int | None = None

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, label: str, total: int | None, *, quick: bool = False) -> None:
        self.total = total

    def update(self, done: int) -> None:
        self.updates.append(done)

    def part(self, name: str, done: int, total: int) -> None:
        assert 0 <= done <= total

    def finish(self) -> None:
        pass


def place(hub: FakeHub, tmp_path: Path, *, offline: bool = False) -> HubPlace:
    return HubPlace(tmp_path / "hub", hub.url, offline)


def found(
    hub: FakeHub, tmp_path: Path, model: str, notes: Notes | None = None, **more: Any
) -> Found:
    return find(model, tmp_path / "home", notes, place=place(hub, tmp_path, **more))


# --- what is fetched -----------------------------------------------------------------------------


def test_a_folder_is_fetched_without_what_it_does_not_need(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes]
) -> None:
    hub.repositories["org/tiny"] = Repository.of(folder)
    model = found(hub, tmp_path, "org/tiny")
    assert model.name == "org/tiny"
    assert sorted(hub.fetched()) == ["config.json", "model.safetensors", "tokenizer.json"]
    with open_checkpoint(model.path) as checkpoint:
        assert checkpoint.architecture == PLAIN.architecture
    hub.requests.clear()
    assert found(hub, tmp_path, "hf:org/tiny") == model
    assert [path for path, _ in hub.requests] == ["/api/models/org/tiny/revision/main"]


def test_the_index_of_a_folder_says_which_files_are_fetched(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes]
) -> None:
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    files = {name: content for name, content in folder.items() if name != "model.safetensors"}
    files |= dict.fromkeys(shards.values(), folder["model.safetensors"])
    files["model.safetensors.index.json"] = json.dumps({"weight_map": shards}).encode()
    hub.repositories["org/tiny"] = Repository.of(files)
    path = found(hub, tmp_path, "org/tiny").path
    assert {file.name for file in path.iterdir()} >= set(shards.values())
    del hub.repositories["org/tiny"].commits[commit("1")][shards["b"]]
    with pytest.raises(ModelSourceError, match=r"names model-00002-of-00002.safetensors, which"):
        found(hub, tmp_path / "again", "org/tiny")


def test_a_repository_of_pickles_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    hub.repositories["org/old"] = Repository.of(files)
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model.bin, a pickle"):
        found(hub, tmp_path, "org/old")
    assert hub.fetched() == []


def refuse(format: str, architecture: str) -> None:
    raise UnsupportedModelError(f"{architecture!r} of {format} is not supported")


def test_an_unsupported_folder_is_refused_before_its_weights_are_fetched(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes]
) -> None:
    hub.repositories["org/tiny"] = Repository.of(folder)
    with pytest.raises(UnsupportedModelError, match="'llama' of hf is not supported"):
        find("org/tiny", tmp_path, place=place(hub, tmp_path), check=refuse)
    assert hub.fetched() == ["config.json"]
    assert found(hub, tmp_path, "org/tiny").path.is_dir(), "the check alone has refused it"


@pytest.mark.parametrize("left", [0, 70_000])
def test_an_unsupported_file_is_refused_when_its_first_bytes_arrive(
    hub: FakeHub, tmp_path: Path, left: int
) -> None:
    """`left` bytes are there from an earlier attempt."""
    large = gguf(filler="x" * 3_000_000)
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": large})
    if left:
        hub.faults["t.gguf"] = [Reply(cut=left), Reply(status=403)]
        with pytest.raises(ModelSourceError, match="refuses access"):
            found(hub, tmp_path, "org/t-GGUF")
    notes = Notes()
    with pytest.raises(UnsupportedModelError, match="'llama' of gguf is not supported"):
        find("org/t-GGUF", tmp_path, notes, place=place(hub, tmp_path), check=refuse)
    assert max(notes.updates) < 1_000_000
    assert len(hub.fetched()) == (2 if left else 1), "the bytes that are there are enough"
    assert [path for path in (tmp_path / "hub").rglob("blobs/*") if path.exists()] == []


def test_the_library_refuses_an_unsupported_model_after_one_small_file(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = b'{"model_type": "unheard_of"}'
    hub.repositories["org/tiny"] = Repository.of({**folder, "config.json": config})
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    with pytest.raises(UnsupportedModelError, match=r"'unheard_of' is not supported; .*llama"):
        LLM("org/tiny", EngineConfig(hub_cache=str(tmp_path)))
    assert hub.fetched() == ["config.json"]


def test_all_parts_of_a_split_file_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    tensors = PLAIN.tensors()
    split = {"split.count": 2, "split.tensors.count": len(tensors)}
    first = gguf_bytes(PLAIN.metadata() | COMPLETE | split | {"split.no": 0}, tensors[:4])
    second = gguf_bytes(split | {"split.no": 1}, tensors[4:])
    parts = {"Q8_0/t-Q8_0-00001-of-00002.gguf": first, "Q8_0/t-Q8_0-00002-of-00002.gguf": second}
    hub.repositories["org/t-GGUF"] = Repository.of(parts | {"mmproj-t-Q8_0.gguf": b"an encoder"})
    notes = Notes()
    model = found(hub, tmp_path, "org/t-GGUF:q8_0", notes)
    assert (model.name, model.base) == ("org/t-GGUF:q8_0", None)
    assert sorted(hub.fetched()) == sorted(parts)
    assert notes.total == notes.updates[-1] == len(first) + len(second)
    assert notes.updates == sorted(notes.updates)
    with open_checkpoint(model.path) as checkpoint:
        assert len(checkpoint.stamps) == 2


def test_a_name_of_the_hub_is_served_under_that_name(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/tiny"] = Repository.of(folder)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    config = EngineConfig(hub_cache=str(tmp_path), slots=1, threads=1, kv_cache=1 << 20)
    with LLM("hf:org/tiny", config) as llm:
        assert llm.engine.model.info.id == "org/tiny"
        [output] = llm.generate("AB", SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        assert output.usage.completion_tokens == 2


# --- revisions -----------------------------------------------------------------------------------


def test_a_revision_that_changes_half_way_does_not_mix(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes]
) -> None:
    repository = hub.repositories["org/tiny"] = Repository.of(folder)
    repository.commits[commit("2")] = {**folder, "config.json": b'{"model_type": "other"}'}

    def move(path: str) -> None:
        if path.endswith("config.json"):
            repository.branches["main"] = commit("2")

    hub.before = move
    path = found(hub, tmp_path, "org/tiny").path
    assert path.name == commit("1")
    assert (path / "config.json").read_bytes() == folder["config.json"]
    newer = found(hub, tmp_path, "org/tiny").path
    assert newer.name == commit("2")
    assert found(hub, tmp_path, f"org/tiny@{commit('1')}").path == path


def test_a_commit_that_is_cached_needs_no_hub(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    name = f"org/t-GGUF@{commit('1')}"
    model = found(hub, tmp_path, name)
    hub.requests.clear()
    assert found(hub, tmp_path, name) == model
    assert hub.requests == []


def test_unknown_revisions_are_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    with pytest.raises(ModelSourceError, match="has no revision 'v9'"):
        found(hub, tmp_path, "org/t-GGUF@v9")


# --- broken downloads ----------------------------------------------------------------------------


def test_a_cut_connection_is_resumed_where_it_stopped(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults["t.gguf"] = [Reply(cut=1000), Reply(status=500), Reply(status=429), Reply(cut=500)]
    path = found(hub, tmp_path, "org/t-GGUF").path
    assert path.read_bytes() == WHOLE
    asked = [place for path, place in hub.requests if path.endswith("t.gguf")]
    assert asked == ["", "bytes=1000-", "bytes=1000-", "bytes=1000-", "bytes=1500-"]


def test_a_later_process_continues_what_an_earlier_one_has_left(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults["t.gguf"] = [Reply(cut=2000), Reply(status=403)]
    with pytest.raises(ModelSourceError, match="refuses access"):
        found(hub, tmp_path, "org/t-GGUF")
    assert [path for path in (tmp_path / "hub").rglob("*.gguf") if path.exists()] == []
    hub.requests.clear()
    assert found(hub, tmp_path, "org/t-GGUF").path.read_bytes() == WHOLE
    assert hub.requests[-1][1] == "bytes=2000-"


def test_a_server_without_ranges_sends_the_file_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults["t.gguf"] = [Reply(cut=1000)]
    hub.ranges = False
    assert found(hub, tmp_path, "org/t-GGUF").path.read_bytes() == WHOLE


@pytest.mark.parametrize("content", [WHOLE, b"a small file"])
def test_other_bytes_than_promised_are_not_kept(
    hub: FakeHub, tmp_path: Path, content: bytes
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": content})
    changed = content[:-1] + bytes([content[-1] ^ 1])
    hub.faults["t.gguf"] = [Reply(body=lambda _: changed)]
    with pytest.raises(ChecksumError, match=blob_of(changed)):
        found(hub, tmp_path, "org/t-GGUF")
    assert [path for path in (tmp_path / "hub").rglob("blobs/*") if path.exists()] == []


def test_attempts_end(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults["t.gguf"] = [Reply(status=503)] * 9
    with pytest.raises(ModelSourceError, match=r"fails with 503; try again later"):
        found(hub, tmp_path, "org/t-GGUF")
    assert len(hub.fetched()) == 6


def test_a_failing_file_stops_the_others(hub: FakeHub, tmp_path: Path) -> None:
    names = [f"t-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hub.repositories["org/t-GGUF"] = Repository.of({name: WHOLE + name.encode() for name in names})
    hub.faults[names[1]] = [Reply(status=404)]
    with pytest.raises(ModelSourceError, match="does not exist"):
        found(hub, tmp_path, "org/t-GGUF")


def test_a_failing_file_ends_the_waits_of_the_others(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.repositories["org/t-GGUF"] = Repository.of({name: WHOLE + name.encode() for name in names})
    begun, stopped = threading.Event(), []

    def fetch(file: transfer.HubFile, *more: Any) -> None:
        if file.name == names[1]:
            begun.wait(PATIENCE)
            raise ChecksumError("the second file fails")
        begun.set()
        stopped.append(more[3].wait(PATIENCE))
        raise transfer.StoppedError

    monkeypatch.setattr("heddle.weights.hub.download.fetch", fetch)
    with pytest.raises(ChecksumError, match="the second file fails"):
        found(hub, tmp_path, "org/t-GGUF")
    assert stopped == [True]


# --- a hub that lies -----------------------------------------------------------------------------


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


def kept(tmp_path: Path) -> list[Path]:
    """Files of the cache, but for locks."""
    return [path for path in (tmp_path / "hub").glob("models*/**/*") if not path.is_dir()]


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


# --- attempts ------------------------------------------------------------------------------------


class Waits(threading.Event):
    """Keeps how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return False


def fetch_with_waits(hub: FakeHub, tmp_path: Path, faults: list[Reply]) -> list[float | None]:
    """Fetch a file from a hub with these faults. Returns the pauses between the attempts."""
    hub.repositories["org/t"] = Repository.of({"t.gguf": WHOLE})
    hub.faults = {"t.gguf": faults}
    waits, blob = Waits(), tmp_path / "models--org--t" / "blobs" / blob_of(WHOLE)
    blob.parent.mkdir(parents=True, exist_ok=True)
    file = transfer.HubFile("t.gguf", len(WHOLE), blob_of(WHOLE))
    source = (hub.url, "org/t", commit("1"))
    transfer.fetch(file, blob, source, lambda _: None, waits)
    assert blob.read_bytes() == WHOLE
    return waits.seconds


def test_pauses_grow_until_bytes_arrive(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_PAUSES", PAUSES)
    busy, cut = Reply(503), Reply(cut=1000)
    waits = fetch_with_waits(hub, tmp_path, [busy, busy, busy, busy, cut, busy, busy])
    assert waits == [1, 2, 4, 8, 1, 2, 4]


def test_the_hub_may_ask_for_a_longer_pause(hub: FakeHub, tmp_path: Path) -> None:
    faults = [Reply(429, {"Retry-After": text}) for text in ("60", "7", "soon", "-1", "1.5")]
    assert fetch_with_waits(hub, tmp_path, faults) == [60, 7, 0, 0, 0]


@pytest.mark.parametrize("asked", ["61", "9" * 400])
def test_a_longer_pause_than_a_minute_is_an_error(hub: FakeHub, tmp_path: Path, asked: str) -> None:
    with pytest.raises(transfer.RefusedError, match="status 503"):
        fetch_with_waits(hub, tmp_path, [Reply(503, {"Retry-After": asked})])


@pytest.mark.parametrize("excess", [1, 1 << 20])
def test_a_part_that_is_too_long_begins_again(hub: FakeHub, tmp_path: Path, excess: int) -> None:
    part = tmp_path / "models--org--t" / "blobs" / f"{blob_of(WHOLE)}.heddle"
    part.parent.mkdir(parents=True)
    part.write_bytes(WHOLE + bytes(excess))
    assert fetch_with_waits(hub, tmp_path, []) == []
    assert [place for path, place in hub.requests] == [""]


@pytest.mark.parametrize("suffix", ["", ".heddle"])
def test_a_file_that_is_there_is_not_fetched_again(
    hub: FakeHub, tmp_path: Path, suffix: str
) -> None:
    """Of another revision, or of a process that ended just before the file got its name."""
    there = tmp_path / "models--org--t" / "blobs" / f"{blob_of(WHOLE)}{suffix}"
    there.parent.mkdir(parents=True)
    there.write_bytes(WHOLE)
    assert fetch_with_waits(hub, tmp_path, []) == []
    assert hub.requests == []


# --- access --------------------------------------------------------------------------------------


def test_a_gated_repository_says_how_to_get_access(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE}, is_gated=True)
    message = rf"{hub.url}/org/t-GGUF is gated; ask for access on that page, then set HF_TOKEN"
    with pytest.raises(ModelSourceError, match=message):
        found(hub, tmp_path, "org/t-GGUF")


def test_a_private_repository_opens_with_the_token(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE}, needs_token="hf_secret")
    for token in (None, "hf_wrong"):
        if token is not None:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(ModelSourceError, match=r"does not exist, or is private; .*HF_TOKEN"):
            found(hub, tmp_path, "org/t-GGUF")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert found(hub, tmp_path, "org/t-GGUF").path.read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(429, {"Retry-After": "7"}), r"too many requests .* try again in 7 s"),
        (Reply(500), r"fails with 500; try again later"),
        (Reply(403), r"refuses access \(status 403\); set HF_TOKEN"),
    ],
)
def test_refusals_of_the_list_are_plain(
    hub: FakeHub, tmp_path: Path, reply: Reply, message: str
) -> None:
    hub.faults["/main"] = [reply]
    with pytest.raises(ModelSourceError, match=message):
        found(hub, tmp_path, "org/t-GGUF")


# --- offline -------------------------------------------------------------------------------------


def test_offline_takes_what_is_cached_and_asks_nothing(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes]
) -> None:
    hub.repositories["org/tiny"] = Repository.of(folder)
    with pytest.raises(ModelSourceError, match=r"not in .*hub, or only in part"):
        found(hub, tmp_path, "org/tiny", offline=True)
    model = found(hub, tmp_path, "org/tiny")
    hub.requests.clear()
    assert found(hub, tmp_path, "org/tiny", offline=True) == model
    (model.path / "model.safetensors").unlink()
    with pytest.raises(ModelSourceError, match="only in part"):
        found(hub, tmp_path, "org/tiny", offline=True)
    assert hub.requests == []


def test_the_cached_copy_serves_while_the_hub_fails(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    model = found(hub, tmp_path, "org/t-GGUF")
    hub.faults["/main"] = [Reply(status=500)]
    notes = Notes()
    assert found(hub, tmp_path, "org/t-GGUF", notes) == model
    assert "fails with 500" in notes.notes[0]
    away = HubPlace(tmp_path / "hub", "http://127.0.0.1:1", offline=False)
    assert find("org/t-GGUF", tmp_path, notes, place=away) == model
    assert "cannot be reached" in notes.notes[1]
    with pytest.raises(ModelSourceError, match=r"127.0.0.1:1 cannot be reached"):
        find("org/other", tmp_path, place=away)


def test_space_is_checked_before_anything_is_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    usage = shutil.disk_usage(tmp_path)._replace(free=len(WHOLE) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelSourceError, match=r"MB are missing, and the disk of .* free; delete"):
        found(hub, tmp_path, "org/t-GGUF")
    assert hub.fetched() == []
    blobs = place(hub, tmp_path).cache / "models--org--t-GGUF" / "blobs"
    part = blobs / f"{blob_of(WHOLE)}.heddle"
    part.write_bytes(WHOLE[:1])
    assert found(hub, tmp_path, "org/t-GGUF").path.read_bytes() == WHOLE


# --- what a GGUF file lacks ----------------------------------------------------------------------


@pytest.mark.parametrize("card", [b"---\nbase_model: org/base\n---\nA model", None])
def test_a_file_without_tokenizer_takes_its_base_repositorys(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes], card: bytes | None
) -> None:
    files = {"t.gguf": BARE} | ({} if card is None else {"README.md": card})
    name = "org/quants-GGUF" if card else "org/base-GGUF"
    hub.repositories[name] = Repository.of(files)
    base = {**folder, "chat_template.jinja": b"{{ messages }} by base"}
    hub.repositories["org/base"] = Repository.of(base)
    for offline in (False, True):
        model = found(hub, tmp_path, name, offline=offline)
        with open_checkpoint(model.path, model.base) as checkpoint:
            assert checkpoint.chat_template == "{{ messages }} by base"
            assert len(checkpoint.tokenizer().pieces) == PLAIN.vocabulary
    assert "model.safetensors" not in hub.fetched()


def test_a_base_that_cannot_be_had_is_no_error(hub: FakeHub, tmp_path: Path) -> None:
    files = {"t.gguf": gguf_bytes(PLAIN.metadata() | {"tokenizer.ggml.model": "gpt2"})}
    hub.repositories["org/t-GGUF"] = Repository.of(files)
    notes = Notes()
    assert found(hub, tmp_path, "org/t-GGUF", notes).base is None
    assert notes.notes[0].startswith("t.gguf lacks a chat template, and cannot fetch org/t: ")

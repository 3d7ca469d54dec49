"""Models of the hub: fetched once, resumed, checked, and never partly there."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from fake_hub import FakeHub, Reply, Repository, blob_of, commit
from gguf_writer import gguf_bytes
from heddle import LLM, EngineConfig, SamplingParams
from heddle.errors import ModelSourceError, UnsupportedModelError
from heddle.hub_place import HubPlace
from heddle.weights.formats import open_checkpoint
from heddle.weights.sources import find
from models.tiny.llama import PLAIN
from weights.hub_rig import BARE, COMPLETE, WHOLE, Notes, found, gguf, place

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    "name",
    [
        *("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth"),
        *("model.pt", "original/consolidated.00.pth", "MODEL.CKPT", "weights.pkl"),
    ],
)
def test_a_repository_of_pickles_is_refused(hub: FakeHub, tmp_path: Path, name: str) -> None:
    """The error says why, and two ways to safetensors."""
    hub.repositories["org/old"] = Repository.of({"config.json": b"{}", name: b"pickle"})
    with pytest.raises(UnsupportedModelError, match="can run any code") as caught:
        found(hub, tmp_path, "org/old")
    message = caught.value.message
    assert message.startswith(f"org/old has its weights in {name}, a pickle")
    assert "from_pretrained('org/old').save_pretrained(" in message
    assert "load org/old@refs/pr/NUMBER" in message
    assert hub.fetched() == []


def refuse(format: str, architecture: str) -> None:
    raise UnsupportedModelError(f"{architecture!r} of {format} is not supported")


def test_an_unsupported_folder_is_refused_before_its_weights_are_fetched(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes]
) -> None:
    hub.repositories["org/tiny"] = Repository.of(folder)
    with pytest.raises(UnsupportedModelError, match=r"^org/tiny.*: 'llama' of hf is not supported"):
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
    with pytest.raises(UnsupportedModelError, match=r"^org/t-GGUF: 'llama' of gguf is not supp"):
        find("org/t-GGUF", tmp_path, notes, place=place(hub, tmp_path), check=refuse)
    assert max(notes.updates) < 1_000_000
    assert len(hub.fetched()) == (2 if left else 1), "the bytes that are there are enough"
    assert [path for path in (tmp_path / "hub").rglob("blobs/*") if path.exists()] == []


def test_the_library_refuses_an_unsupported_model_after_one_small_file(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the model, its architectures and the nearest family."""
    config = b'{"model_type": "llamba", "architectures": ["LlambaForCausalLM", 3]}'
    hub.repositories["org/tiny"] = Repository.of({**folder, "config.json": config})
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    problem = r"^org/tiny \(LlambaForCausalLM, 3\): .*'llamba' is not supported; .* name is llama; "
    with pytest.raises(UnsupportedModelError, match=problem):
        LLM("org/tiny", EngineConfig(hub_cache=str(tmp_path)))
    assert hub.fetched() == ["config.json"]


def test_a_quantisation_that_nobody_reads_is_refused_before_weights_are_fetched(
    hub: FakeHub, tmp_path: Path, folder: dict[str, bytes]
) -> None:
    config = {**json.loads(folder["config.json"]), "quantization_config": {"quant_method": "mice"}}
    files = {**folder, "config.json": json.dumps(config).encode()}
    hub.repositories["org/tiny"] = Repository.of(files)
    with pytest.raises(UnsupportedModelError, match="quant_method 'mice' is not supported"):
        found(hub, tmp_path, "org/tiny")
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

"""Architectures like those of DeepSeek that are not served: the error says what is lacking."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from heddle.doors import architectures, families
from heddle.errors import UnsupportedModelError
from heddle.models.build import family_of
from heddle.weights.huggingface.checkpoint import check_config

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("architecture", "lacking", "nearest"),
    [
        ("longcat_flash", "experts that return their input", "deepseek_v3"),
        ("mistral_large4", "latents that several layers share", "mistral4"),
        ("mistral_large4_text", "latents that several layers share", "mistral4"),
        ("glm5_next", "decay has a lower bound", "deepseek_v4 and kimi_linear"),
        ("glm5_next_text", "decay has a lower bound", "deepseek_v4 and kimi_linear"),
    ],
)
def test_config_json_alone_is_refused_with_what_is_lacking(
    tmp_path: Path, architecture: str, lacking: str, nearest: str
) -> None:
    """There are no weights: a hub's files are judged before one is fetched."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": architecture}))
    with pytest.raises(
        UnsupportedModelError,
        match=f"ORG/NAME.*model_type '{architecture}' is not supported; .*{lacking}.*{nearest}$",
    ):
        check_config(tmp_path, family_of, "ORG/NAME")


@pytest.mark.parametrize("architecture", ["deepseek4", "glm5next"])
def test_gguf_files_are_refused_by_their_architecture(architecture: str) -> None:
    with pytest.raises(
        UnsupportedModelError, match=f"general.architecture '{architecture}' is not supported; Hed"
    ):
        family_of("gguf", architecture)


def test_no_architecture_is_both_served_and_lacking() -> None:
    near = {name for family in families() for name in family.near}
    assert not near & {*architectures("hf"), *architectures("gguf")}

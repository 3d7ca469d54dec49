"""Pages of every KV type on torch devices: their values, and the exactness of what reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from heddle import _native
from heddle.config import EngineConfig
from heddle.errors import ConfigError
from heddle.extensions.reference.kv_types import as_kept
from heddle.extensions.reference.model import ReferenceModel
from heddle.state import KvShape
from models.rig import CONTEXT, GREEDY, TEXT, Rig
from models.tiny.deepseek_v3 import TinyDeepseekV3
from models.tiny.gemma3 import TinyGemma3
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.weights.checkpoint import Checkpoint
    from models.rig import Bits
    from models.tiny.base import TinyModel

torch = pytest.importorskip("torch")
from heddle.extensions.torch.cache import bytes_of_page  # noqa: E402
from heddle.extensions.torch.kv_formats import KV_FORMATS  # noqa: E402
from heddle.extensions.torch.load import load  # noqa: E402

every_type = pytest.mark.parametrize("kv_type", KV_FORMATS)


@every_type
def test_a_format_keeps_what_the_reference_keeps(kv_type: str) -> None:
    """Of all sizes of numbers, of ties, and of what is not finite."""
    rng = np.random.default_rng(1)
    sizes = np.exp2(rng.integers(-140, 124, (400, 2, 1))).astype(np.float32)
    x = np.concatenate(
        [
            rng.normal(0, 1, (400, 64)),
            (rng.normal(0, 1, (400, 2, 32)) * sizes).reshape(400, 64),
            np.arange(-3200, 3200).reshape(100, 64) / 64,
            [[0.0] * 64, [np.nan] * 64, [-0.0, np.inf] * 32, [1e30, 1.0, -np.inf, 465] * 16],
        ]
    ).astype(np.float32)
    form = KV_FORMATS[kv_type]
    fields = form.encode(torch.from_numpy(x))
    assert sum(field.nbytes for field in fields) == len(x) * form.nbytes(64)
    with np.errstate(all="ignore"):
        expected = as_kept(x, kv_type)
    np.testing.assert_array_equal(form.decode(*fields).numpy(), expected)


@every_type
def test_a_type_gives_its_own_values_back(kv_type: str) -> None:
    """So a page on disk may be read any number of times."""
    form = KV_FORMATS[kv_type]
    x = torch.randn(50, 96, generator=torch.Generator().manual_seed(2)) * 3
    kept = form.decode(*form.encode(x))
    assert torch.equal(form.decode(*form.encode(kept)), kept)
    assert 0 < (kept - x).abs().max() < 0.1 * x.abs().max()


def test_a_type_of_the_cpu_alone_is_refused_with_those_that_may_be_used() -> None:
    checkpoint: Any = None  # is not looked at before
    with pytest.raises(ConfigError, match=r"q4 is not supported on device torch; .* q8_0, fp8"):
        load(checkpoint, EngineConfig(device="torch", kv_type="q4"))


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("has_values", [True, False])
def test_pages_take_the_bytes_that_they_take_on_the_cpu(kv_type: str, has_values: bool) -> None:
    shape = KvShape(3, 64, has_values)
    expected = _native.KvCache.bytes_of_page(kv_type, 5, 3, 64, has_values)
    assert bytes_of_page(kv_type, 5, shape) == expected


# --- exactness -----------------------------------------------------------------------------------

MODELS: tuple[TinyModel, ...] = (
    replace(PLAIN, head_dim=32, context=CONTEXT),
    TinyGemma3("windowed", 4, 2, 32, True, window=40, context=CONTEXT),
    TinyDeepseekV3("latent", 4, 4, 48, False, layers=2, rank=32, rope_dim=32, context=CONTEXT),
)
PROMPTS = [[*TEXT[:length], tail] for tail, length in enumerate((100, 100, 45, 8, 99), 1)]
SHORT = replace(GREEDY, max_tokens=4)


@pytest.fixture(scope="module", params=MODELS, ids=str)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    return request.param.checkpoint(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("kv_type", ["q8_0", pytest.param("fp8", marks=pytest.mark.torch_slow)])
def test_a_sequence_is_the_same_in_company_chunked_cached_and_from_disk(
    checkpoint: Checkpoint, kv_type: str, tmp_path: Path
) -> None:
    def rig(slots: int, batch_tokens: int, **settings: object) -> Rig:
        common = {"device": "torch", "kv_type": kv_type, "kv_cache": 8 << 20}
        return Rig(checkpoint, slots=slots, batch_tokens=batch_tokens, **common, **settings)

    alone = rig(1, CONTEXT, prefix_cache=False)
    assert f" {kv_type} " in alone.executor.page_format
    expected: list[Bits] = alone.one_by_one(PROMPTS, SHORT)
    for found in (False, True):
        beside = rig(4, 33, disk=tmp_path / "disk")
        assert beside.run(PROMPTS, SHORT) == expected
        assert beside.run(PROMPTS, SHORT) == expected
        assert max(one or 0 for one in beside.found) > 64
        assert beside.tier is not None
        assert (beside.tier.stats().restored_tokens > 0) == found
        beside.close()


@pytest.mark.parametrize("kv_type", ["q8_0", "fp8"])
def test_results_are_near_those_of_the_reference(checkpoint: Checkpoint, kv_type: str) -> None:
    """Nearer than to those with keys and values in float32. A few values round the other way."""
    tokens = TEXT[:60]
    rig = Rig(checkpoint, device="torch", kv_type=kv_type, slots=1, kv_cache=8 << 20)
    params = replace(SHORT, max_tokens=1, logprobs=20)
    ((_, _, top),) = rig.run([tokens], params)[0]
    ids = [token for token, _ in top]
    reference = ReferenceModel(checkpoint)

    def logprobs(kept: str) -> np.ndarray:
        logits = reference.logits(tokens, kept, decodes=True)[-1].astype(np.float64)
        return (logits - np.log(np.exp(logits).sum()))[ids]

    exact, expected = logprobs("f32"), logprobs(kv_type)
    distance = np.abs(np.array([value for _, value in top]) - expected).max()
    assert distance < 0.5 * np.abs(exact - expected).max()

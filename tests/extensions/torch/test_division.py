"""A model divided among ranks: the parts compute what one rank computes, for all families."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny_files import SMALL

from heddle.errors import ConfigError
from heddle.executors.graph.forward import record
from heddle.executors.graph.recording import Embed, EmbedPrevious, TakeColumns
from heddle.executors.serving import kept_kinds, load_of
from heddle.extensions.torch.division.claims import Claims
from heddle.extensions.torch.division.divide import Division
from heddle.extensions.torch.division.shares import share, share_kinds, whole
from heddle.extensions.torch.fusion import fused
from heddle.extensions.torch.made_nodes import ExpertsShare, LinearEach
from heddle.models.build import build
from heddle.state import divide
from heddle.step import Chunk, Scoring, StepPlan
from heddle.weights.mix import Mix
from models.tiny import MODELS, mimo_v2, qwen3_moe
from models.tiny.base import TOKENS
from models.tiny.bloom import TinyBloom
from models.tiny.llama import PLAIN
from models.tiny_encoders import BART, TEXTS
from models.window_pages import windows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from models.tiny.base import TinyModel
    from models.tiny_encoders import TinyEncoder

torch = pytest.importorskip("torch")
from heddle.extensions.torch.cache import bytes_of_page  # noqa: E402
from heddle.extensions.torch.open_blocks import kinds_with_rows  # noqa: E402
from heddle.extensions.torch.program import Program  # noqa: E402
from heddle.extensions.torch.weights import TorchLoader  # noqa: E402

CONFIG = replace(SMALL, device="torch", kv_cache=4 << 20, speculation="off")
CPU = torch.device("cpu")
MIX = Mix.named("none")


class Meeting:
    """Threads in the place of ranks."""

    def __init__(self, ranks: int) -> None:
        self.values: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=10)


class Seat:
    """A rank's place in a meeting; see `heddle.extensions.torch.collective.Collective`."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank = meeting, rank

    def gather(self, x: Any) -> list[Any]:
        self.meeting.values[self.rank] = x
        self.meeting.barrier.wait()
        found = list(self.meeting.values)
        self.meeting.barrier.wait()
        return found


class Ranks:
    """The programs of all ranks of a model; one rank is not divided."""

    def __init__(
        self, model: TinyModel | TinyEncoder, folder: Path, ranks: int, mix: Mix = MIX
    ) -> None:
        checkpoint = model.checkpoint(folder)
        decoder = build(checkpoint)
        loaders = [
            TorchLoader(checkpoint, CPU, mix=mix, allow_nonfinite=False, progress=lambda _: None)
            for _ in range(ranks)
        ]
        claims = Claims(checkpoint, mix, loaders[0].constants)
        forward = record(decoder, decoder.load(claims))
        kinds = kept_kinds(decoder, CONFIG)
        if ranks == 1:
            kinds = kinds_with_rows(forward, kinds)
            graphs = [whole(forward, loaders[0])]
        else:
            division = Division(forward, ranks)
            kinds = kinds_with_rows(forward, share_kinds(division, kinds), division)
            graphs = [share(division, rank, loader) for rank, loader in enumerate(loaders)]
        load = load_of(replace(CONFIG, context=decoder.shape.context), decoder.shape)
        self.memory = divide(kinds, load, 4 << 20, partial(bytes_of_page, "f16"))
        self.meeting = Meeting(ranks)
        seats = [Seat(self.meeting, rank) if ranks > 1 else None for rank in range(ranks)]
        self.programs = [
            Program(graph, self.memory, "f16", CPU, seat)
            for graph, seat in zip(graphs, seats, strict=True)
        ]
        self.bytes = [loader.bytes for loader in loaders]

    def logits(self, tokens: Sequence[int], cuts: Sequence[int] = ()) -> list[Any]:
        """The logits (tokens, vocabulary) that each rank has, in chunks."""
        with ThreadPoolExecutor(len(self.programs)) as pool:
            return list(pool.map(lambda one: self._try(one, tokens, cuts), self.programs))

    def _try(self, program: Program, tokens: Sequence[int], cuts: Sequence[int]) -> Any:
        try:
            return self._logits(program, tokens, cuts)
        except BaseException:
            self.meeting.barrier.abort()  # nobody waits for a rank that has failed
            raise

    def _logits(self, program: Program, tokens: Sequence[int], cuts: Sequence[int]) -> Any:
        rows: list[Any] = []
        with torch.inference_mode():
            for first, last in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
                windows = windows_of(self.memory, first, last)
                read = Scoring(0, [0] * (last - first), 1)
                chunk = Chunk(0, first, tokens[first:last], [0], False, score=read, windows=windows)
                plan = StepPlan(
                    (), (chunk,), clears=(0,) if not first and self.memory.fixed else ()
                )
                program.states.prepare(plan)

                def ask(plan: StepPlan = plan, count: int = last - first) -> list[Any]:
                    tiles = program.begin(plan, lambda: None).logits(range(count))
                    return [tile[: len(some)].numpy() for some, tile in tiles]

                rows += program.attempt(plan, torch.zeros(1), ask).found or ()
        return np.concatenate(rows)


def fitting(model: TinyModel, folder: Path) -> int:
    """The least number of ranks above 1 that divides a model's heads; 0: none does."""
    decoder = build(model.checkpoint(folder))
    forward = record(decoder, decoder.load(Claims(model.checkpoint(folder), MIX, no_constants)))

    def fits(ranks: int) -> bool:
        try:
            Division(forward, ranks)
        except ConfigError:
            return False
        return True

    return next((ranks for ranks in range(2, 8) if fits(ranks)), 0)


def no_constants(_name: str, width: int) -> tuple[float, ...]:
    return (1.0,) * width


DIVISIBLE = [model for model in MODELS if not isinstance(model, TinyBloom)]  # it has ALiBi


@pytest.mark.parametrize("model", DIVISIBLE, ids=str)
def test_ranks_compute_together_what_one_computes(model: TinyModel, tmp_path: Path) -> None:
    """Keys and values in f16 may round the other way. The bits are those of any chunks."""
    if not fitting(model, tmp_path):  # attention and recurrence have no common divisor
        model = replace(model, heads=4, kv_heads=2)
    (expected,) = Ranks(model, tmp_path, 1).logits(TOKENS)
    together = Ranks(model, tmp_path, fitting(model, tmp_path))
    first, *others = together.logits(TOKENS)
    np.testing.assert_allclose(first, expected, atol=1e-2)
    assert np.median(abs(first - expected)) < 2e-4
    for other in (*others, *together.logits(TOKENS, [1, 5])):
        np.testing.assert_array_equal(other, first)


def test_a_bias_by_distance_is_not_divided(tmp_path: Path) -> None:
    (model,) = (one for one in MODELS if isinstance(one, TinyBloom))
    checkpoint = model.checkpoint(tmp_path)
    decoder = build(checkpoint)
    forward = record(decoder, decoder.load(Claims(checkpoint, MIX, no_constants)))
    with pytest.raises(ConfigError, match="a bias by distance cannot be divided"):
        Division(forward, 3)


def test_columns_that_zeros_follow_are_not_divided(tmp_path: Path) -> None:
    """The columns of one head would be those of the next."""
    checkpoint = mimo_v2.MODELS[0].checkpoint(tmp_path)
    decoder = build(checkpoint)
    forward = record(decoder, decoder.load(Claims(checkpoint, MIX, no_constants)))
    division = Division(forward, 2)
    padded = [
        node
        for node in forward.nodes
        if isinstance(node, TakeColumns) and node.width > node.inputs[0].width
    ]
    assert len(padded) == 4
    assert not set(padded) & division.parts.keys()


def test_each_rank_has_the_table_whole_from_which_a_decoder_reads_tokens_before(
    tmp_path: Path,
) -> None:
    (one,) = Ranks(BART, tmp_path, 1).logits(TEXTS[0])
    np.testing.assert_allclose(one[-1], BART.vectors("logits")[0], atol=3e-3)
    together = Ranks(BART, tmp_path, 3)
    first, *others = together.logits(TEXTS[0])
    np.testing.assert_allclose(first, one, atol=3e-3)
    for other in others:
        np.testing.assert_array_equal(other, first)
    for program in together.programs:
        nodes = program.forward.nodes
        (before,) = (node for node in nodes if isinstance(node, EmbedPrevious))
        assert sum(isinstance(n, Embed) and n.table is before.table for n in nodes) == 1


def test_a_rank_joins_its_parts_of_matrices(tmp_path: Path) -> None:
    for one in Ranks(PLAIN, tmp_path, 2).programs:
        joined = fused(one.forward, lambda weight: weight.type)
        several = [node.weights for node in joined.nodes if isinstance(node, LinearEach)]
        shapes = [[weight.out_features for weight in weights] for weights in several]
        assert shapes == [[32, 16, 16], [24, 24]] * PLAIN.layers


BLOCKS = [
    replace(PLAIN, ffn_width=64),
    replace(qwen3_moe.MODELS[0], expert_width=64),
    replace(qwen3_moe.MODELS[0], name="by expert", expert_width=32),
]


@pytest.mark.parametrize("model", BLOCKS, ids=str)
def test_quantised_matrices_are_cut_at_blocks(model: TinyModel, tmp_path: Path) -> None:
    """An expert of one block of inner width is one rank's as a whole."""
    mix = Mix.named("q8_0")
    (expected,) = Ranks(model, tmp_path, 1, mix).logits(TOKENS)
    together = Ranks(model, tmp_path, 2, mix)
    by_expert = any(isinstance(node, ExpertsShare) for node in together.programs[1].forward.nodes)
    assert by_expert == (model.name == "by expert")
    for found in together.logits(TOKENS):
        np.testing.assert_allclose(found, expected, atol=1e-2)
        assert np.median(abs(found - expected)) < 2e-4
    assert max(together.bytes) < 0.7 * Ranks(model, tmp_path, 1, mix).bytes[0]

"""A recorded model on a device, with its pages: computes hidden states and logits of a step."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from heddle.executors.graph.fusion import fused
from heddle.executors.graph.recording import Attend, LatentAttend
from heddle.executors.graph.stages import stages
from heddle.executors.torch.cache import PagedMemory
from heddle.executors.torch.layout import Layout
from heddle.executors.torch.operations import operations
from heddle.executors.torch.ops import attention_shape, latent_shape
from heddle.executors.torch.rotation import Rotations
from heddle.executors.torch.staging import Staging
from heddle.executors.torch.states import FixedStates
from heddle.executors.torch.tiles import TILE, padded
from heddle.step import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heddle.executors.graph.forward import Forward
    from heddle.executors.graph.recording import Node
    from heddle.executors.torch.collective import Collective
    from heddle.executors.torch.ops import TorchOps
    from heddle.state import StateMemory
    from heddle.step import StepPlan

    Values = dict[Node, torch.Tensor]
    Tile = tuple[Sequence[int], torch.Tensor]


_COMPARED = 64
"""Columns of logits and states that the ranks compare."""


class Program:
    """The stages of a model's forward pass.

    Attributes:
        forward: the recorded graph.
        pages: keys and values.
        states: fixed-size states.
    """

    def __init__(
        self,
        forward: Forward,
        memory: StateMemory,
        kv_type: str,
        device: torch.device,
        collective: Collective | None = None,
    ) -> None:
        """`collective` connects the ranks of a model that is divided.

        Raises:
            ConfigError: the device computes a query by its place in a tile.
        """
        self.forward = forward
        self._collective = collective
        self._crc = 0
        self._device = device
        self._groups = 1 + len(memory.windows)
        self._rotations = Rotations(device)
        self._staging = Staging(device)
        self._operations = operations(device)
        self._computed = fused(forward) if self._operations.joins else forward
        self._stages = stages(self._computed)
        self._check_attention()
        self.pages = PagedMemory(kv_type, memory, device)
        self.states = FixedStates(memory, device)

    def begin(
        self, plan: StepPlan, check: Callable[[], None], latest: torch.Tensor | None = None
    ) -> Step:
        """Compute all tokens of a plan, and store their keys and values.

        `latest` has the token that each slot sampled last (slots,), for unknown tokens.

        `check` is called before each matmul; an exception of it ends the step.

        Raises:
            ValueError: a chunk lacks hidden states that a prediction head reads.
        """
        inputs = self.forward.inputs
        self._crc = 0
        layout = Layout.of(
            plan,
            self._groups,
            self._device,
            has_states=inputs.states is not None,
            send=self._staging.send,
        )
        if latest is not None and any(chunk.tokens[0] == UNKNOWN for chunk in plan.chunks):
            layout.fill_unknown(latest)
        ops = self._operations(
            layout, self.pages, self.states, self._rotations, check, self._collective
        )
        values: Values = {
            inputs.tokens: layout.tokens,
            inputs.positions: layout.positions,
        }
        if inputs.states is not None:
            assert layout.states is not None, "the layout has them"
            values[inputs.states] = layout.states
        self._stages.tokens.run(ops, values)
        return Step(self, ops, {node: values[node] for node in self._stages.kept})

    def rows(
        self,
        ops: TorchOps,
        kept: Values,
        rows: Sequence[int],
        *,
        logits: bool,
    ) -> Iterator[Tile]:
        """Numbers of rows, and their logits (rows, vocabulary) or hidden states (rows, width)."""
        for begin in range(0, len(rows), TILE):
            some = rows[begin : begin + TILE]
            indices = torch.tensor([*some, *[0] * (padded(len(some)) - len(some))])
            values = {**kept, self.forward.inputs.rows: indices.to(self._device)}
            self._stages.states.run(ops, values)
            if logits:
                self._stages.logits.run(ops, values)
            read = values[self._computed.logits if logits else self._computed.states]
            if self._collective is not None:
                part = read[: len(some), :_COMPARED].contiguous().cpu().numpy()
                self._crc = zlib.crc32(part.tobytes(), self._crc)
            yield some, read[: len(some)]

    @property
    def digest(self) -> bytes:
        """A digest of values of the last step that all ranks have alike."""
        return self._crc.to_bytes(4, "little")

    def _check_attention(self) -> None:
        shapes = set()
        for node in self.forward.nodes:
            if isinstance(node, Attend):
                shapes.add(attention_shape(node.spec))
            elif isinstance(node, LatentAttend):
                shapes.add(latent_shape(node.spec))
        for shape in shapes:
            shape.check(self._device)


class Step:
    """A step whose tokens are computed. The plan reads some of its rows."""

    def __init__(self, program: Program, ops: TorchOps, kept: Values) -> None:
        self._program = program
        self._ops = ops
        self._kept = kept

    def logits(self, rows: Sequence[int]) -> Iterator[Tile]:
        """Numbers of rows, and their logits (rows, vocabulary) on the device."""
        return self._program.rows(self._ops, self._kept, rows, logits=True)

    def states(self, rows: Sequence[int]) -> Iterator[Tile]:
        """Numbers of rows, and their last hidden states (rows, width) on the device."""
        return self._program.rows(self._ops, self._kept, rows, logits=False)

"""Loads a model that several ranks compute (tensor parallelism): rank 0, and the other ranks.

Every rank prepares the same division from the same files and settings, and loads its own share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import torch

from heddle.cores import usable_cores
from heddle.executors.graph.forward import record
from heddle.executors.memory_plan import Room, plan_memory
from heddle.executors.serving import kept_kinds, load_of, served_config, served_shape
from heddle.extensions.processes.children.places import place
from heddle.extensions.processes.children.versions import files_digest
from heddle.extensions.processes.sent_config import SentConfig
from heddle.extensions.processes.settings import ProcessSettings
from heddle.extensions.torch.cache import bytes_of_page
from heddle.extensions.torch.chunk_rows import logit_rows, rows_of, state_rows
from heddle.extensions.torch.collective import GroupCollective
from heddle.extensions.torch.device import set_up, torch_device
from heddle.extensions.torch.device_memory import buffer_bytes, exchange_bytes, graph_bytes, room_of
from heddle.extensions.torch.device_sampling import sampling_bytes
from heddle.extensions.torch.division.claims import Claims
from heddle.extensions.torch.division.divide import Division
from heddle.extensions.torch.division.share_bytes import ShareBytes
from heddle.extensions.torch.division.shares import share, share_kinds
from heddle.extensions.torch.executor import TorchExecutor, Uploaded
from heddle.extensions.torch.graphs import capture_of
from heddle.extensions.torch.meeting import FolderMeeting, PortMeeting, meeting_at
from heddle.extensions.torch.open_blocks import kinds_with_rows
from heddle.extensions.torch.operations import operations, served
from heddle.extensions.torch.program import Program, ProgramMemory
from heddle.extensions.torch.ranks.executor import RankedExecutor
from heddle.extensions.torch.ranks.group import start_ranks
from heddle.extensions.torch.ranks.messages import Setup
from heddle.extensions.torch.settings import TorchSettings
from heddle.extensions.torch.weights import TorchLoader
from heddle.models.build import build
from heddle.state import divide
from heddle.step import most_rows
from heddle.weights.mix import Mix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from heddle.config import EngineConfig
    from heddle.executor import ModelShape
    from heddle.extensions.torch.collective import Compared
    from heddle.extensions.torch.graphs import Capture
    from heddle.extensions.torch.meeting import Meeting
    from heddle.state import StateKind, StateMemory
    from heddle.step import StepPlan
    from heddle.weights.checkpoint import Checkpoint


def load_parallel(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Callable[[int], None],
    *,
    samples_on_device: bool,
    runs_ahead: bool,
    capture: Capture | None = None,
) -> RankedExecutor:
    """Load rank 0's share here, and the other shares at the place of this process's ranks.

    Rank 0 samples; see `TorchExecutor` for `samples_on_device` and `runs_ahead`. `capture` records
    its steps; the others make their own.

    Raises: as `heddle.executors.devices.Load`, before a process is started where the settings or
    the file are wrong; EngineFailedError: a rank failed.
    """
    ranks = config.of(TorchSettings).tensor_parallel
    devices = rank_devices(config)
    prepared = _Prepared.of(checkpoint, replace(config, device=devices[0]), progress)
    capture = capture or capture_of(prepared.device, prepared.config)
    budget = prepared.kv_bytes(samples_on_device=samples_on_device, records=capture is not None)

    seconds, address = config.of(ProcessSettings).rank_timeout, place().address
    port = PortMeeting.open(address, seconds) if address else None

    def setups(folder: Path) -> list[Setup]:
        files = files_digest(checkpoint, elsewhere=port is not None)
        return [
            Setup(
                rank,
                ranks,
                str(checkpoint.path),
                files,
                SentConfig.of(replace(config, device=devices[rank], kv_cache=budget)),
                port.place if port else str(folder),
                port is not None,
            )
            for rank in range(1, ranks)
        ]

    group = start_ranks(setups, seconds)
    try:
        own = _Rank(prepared, 0, budget, port or FolderMeeting(group.folder), capture)
        checkpoint.check_unchanged()
        group.wait_loaded()
        own.join()
        group.wait_joined()
        leader = own.executor(samples_on_device=samples_on_device, runs_ahead=runs_ahead)
        return RankedExecutor(leader, group, ranks)
    except RuntimeError as error:
        problem = group.problem(wait=1.0)
        group.close()
        if problem is not None:
            raise group.error(problem) from error
        raise
    except BaseException:
        group.close()
        raise


def load_rank(checkpoint: Checkpoint, setup: Setup) -> ProgramRank:
    """Load the share of another rank, in its own process."""
    config = setup.config.config
    prepared = _Prepared.of(checkpoint, config, lambda _: None)
    capture = capture_of(prepared.device, prepared.config)
    rank = _Rank(prepared, setup.rank, config.kv_cache, meeting_at(setup.meeting), capture)
    checkpoint.check_unchanged()
    return ProgramRank(rank)


def rank_devices(config: EngineConfig) -> list[str]:
    """The device of each rank. `TorchSettings.check` has checked the settings."""
    settings, (name, _, _) = config.of(TorchSettings), config.device.partition(":")
    if name == "torch":
        return [name] * settings.tensor_parallel
    if place().address:  # each rank sees its own GPU only
        return [f"{name}:0"] * settings.tensor_parallel
    numbers = settings.devices or ",".join(map(str, range(settings.tensor_parallel)))
    return [f"{name}:{number.strip()}" for number in numbers.split(",")]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The preparation of a divided model. All ranks make the same one before they load."""

    checkpoint: Checkpoint
    config: EngineConfig
    shape: ModelShape
    device: torch.device
    kinds: list[tuple[StateKind, ...]]
    division: Division
    loader: TorchLoader

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, config: EngineConfig, progress: Callable[[int], None]
    ) -> _Prepared:
        device = torch_device(config.device)
        model = build(checkpoint, config.context)
        shape = served_shape(config, model.shape)
        config = served_config(config, shape)
        if not config.threads:
            each = max(1, usable_cores() // config.of(TorchSettings).tensor_parallel)
            config = replace(config, threads=each)
        mix = Mix.named(config.quantize)
        uses_torch = operations(device).uses_matmuls_of_torch
        loader = TorchLoader.of(checkpoint, device, config, progress, checks_matmuls=uses_torch)
        forward = served(record(model, model.load(Claims(checkpoint, mix, loader.constants))))
        division = Division(forward, config.of(TorchSettings).tensor_parallel)
        kinds = share_kinds(division, kept_kinds(model, config))
        kinds = kinds_with_rows(forward, kinds, division)
        return cls(checkpoint, config, shape, device, kinds, division, loader)

    def kv_bytes(self, *, samples_on_device: bool, records: bool) -> int:
        """Bytes of a rank's KV cache. `kv_cache` and `model_memory` are for all ranks together."""
        config, ranks = self.config, self.division.ranks
        counted = ShareBytes(self.checkpoint, Mix.named(config.quantize))
        share(self.division, 0, counted)
        read = self.checkpoint.hyperparameters
        buffers = buffer_bytes(config, self.shape, self.kinds, self.division.forward, read)
        buffers += exchange_bytes(config, self.shape, ranks)
        if records:
            buffers += graph_bytes(config, self.shape, self.kinds, read)
        if samples_on_device:
            buffers += sampling_bytes(most_rows(config.slots), self.shape.vocabulary)
        room = room_of(self.device, config)
        if self.device.type == "cpu":  # all ranks take from the same memory
            limits = {name: free // ranks for name, free in room.limits.items()}
            room = Room(limits, room.share, room.keep // ranks)
        each = replace(
            config, kv_cache=config.kv_cache // ranks, model_memory=config.model_memory // ranks
        )
        of_page = partial(bytes_of_page, config.kv_type)
        model_bytes = counted.bytes + buffers
        return plan_memory(each, self.shape, self.kinds, model_bytes, of_page, room).bytes

    def memory(self, budget: int) -> StateMemory:
        """A rank's memory. It is the same on all ranks."""
        of_page = partial(bytes_of_page, self.config.kv_type)
        return divide(self.kinds, load_of(self.config, self.shape), budget, of_page)


class _Rank:
    """The loaded share of one rank."""

    def __init__(
        self,
        prepared: _Prepared,
        rank: int,
        budget: int,
        meeting: Meeting,
        capture: Capture | None,
    ) -> None:
        config, device = prepared.config, prepared.device
        set_up(config, device)
        self._prepared = prepared

        def group(name: str) -> GroupCollective:
            ranks, seconds = prepared.division.ranks, config.of(ProcessSettings).rank_timeout
            return GroupCollective(meeting, name, rank, ranks, device, seconds)

        self._collective = group("steps")
        self._recorded = None if capture is None else group("recordings")
        forward = share(prepared.division, rank, prepared.loader)
        self.memory = prepared.memory(budget)
        self.program = Program(forward, self.memory, config.kv_type, device, self._collective)
        if prepared.shape.causal and (device.type == "cuda" or capture is not None):
            sizes = most_rows(config.slots), config.batch_tokens, prepared.shape.context
            self.program.prepare(*sizes, capture, self._recorded)

    @property
    def held_bytes(self) -> int:
        return self._prepared.loader.bytes + self.memory.bytes

    def join(self) -> None:
        """Connect to the other ranks."""
        self._collective.join()
        if self._recorded is not None:
            self._recorded.join()

    def no_tokens(self) -> torch.Tensor:
        """A tensor (slots,) in place of the tokens, which only rank 0 has."""
        prepared = self._prepared
        return torch.zeros(prepared.config.slots, dtype=torch.int64, device=prepared.device)

    def executor(self, *, samples_on_device: bool, runs_ahead: bool) -> TorchExecutor:
        """The executor of rank 0."""
        prepared, loader = self._prepared, self._prepared.loader
        uploaded = Uploaded(loader.matmul_bytes, loader.bytes)
        return TorchExecutor(
            self.program,
            prepared.shape,
            prepared.device,
            prepared.config,
            uploaded,
            self.memory,
            samples_on_device=samples_on_device,
            runs_ahead=runs_ahead,
        )


class ProgramRank(ProgramMemory):
    """A rank with its program, which computes what rank 0 plans; see `ranks.child.ChildRank`."""

    def __init__(self, rank: _Rank) -> None:
        self.join = rank.join
        self._program = rank.program
        self._latest = rank.no_tokens()
        self.held_bytes: int = rank.held_bytes

    def warm_up(self) -> None:
        with torch.inference_mode():
            self._program.warm_up(lambda done: None)

    def start(self, plan: StepPlan, rewound: Sequence[int]) -> Compared:
        program = self._program
        with torch.inference_mode():
            for slot in rewound:
                program.states.rewind(slot)
            program.attempt(plan, self._latest, lambda: self._ask(plan))
        return program.compared

    def _ask(self, plan: StepPlan) -> None:
        """Ask the device for the step."""
        program, chunks = self._program, rows_of(plan.chunks)
        for copy in plan.copies:
            program.pages.copy(copy)
        program.states.prepare(plan)
        step = program.begin(plan, lambda: None, self._latest)
        for _ in chain(step.logits(logit_rows(chunks)), step.states(state_rows(chunks))):
            pass  # rank 0 reads them
        program.states.keep(plan)

"""A load on any OpenAI-compatible server, with a verdict.

A fixed number of clients send requests; each client sends its next request when it has its answer.
All prompts are different and hold canary words. A request that fails does not end the load.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from heddle.errors import PeerError
from heddle.extensions.bench.answers import CHAT, COMPLETIONS, completion, read_answer
from heddle.extensions.bench.exchange import Exchange, post
from heddle.extensions.bench.figures import FORMULAS as COMMON_FORMULAS
from heddle.extensions.bench.figures import Spread, Stream, itl, latency, request_rate, ttft
from heddle.extensions.bench.isolation import Isolation, canary_prompts, judge_isolation
from heddle.extensions.bench.other_work import OtherWork
from heddle.extensions.bench.process import Memory, watch_device, watch_resident

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.extensions.bench.answers import Answer
    from heddle.extensions.bench.exchange import Server
    from heddle.extensions.bench.isolation import CanaryPrompt

FORMULAS = {
    "latency": "last output - time sent, per request",
    "TTFT": COMMON_FORMULAS["TTFT"],
    "ITL": "gap between one piece of text and the next, over all requests",
    "tok/s": "output tokens of all answers / (last output - first request sent)",
    "ratio": "tok/s / --baseline-tps",
    "scaling": "tok/s / tok/s of the server with one slot",
    "memory": "resident memory of the server's process and its children, every 50 ms",
    "device": "memory in use of all devices, as nvidia-smi reports it every second",
}
"""The meaning of each figure. The command prints it below the table."""

ANSWER_SECONDS = 600.0
"""A request without a complete answer after this time has failed."""


class Verdict(IntEnum):
    """The verdict on a load. The values are exit codes of `heddle bench load`."""

    GOOD = 0
    REQUESTS_FAILED = 1
    BELOW_BASELINE = 5
    ISOLATION_BROKEN = 6
    BELOW_TARGET = 7


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a load.

    Attributes:
        concurrency: most requests at once.
        requests: number of all requests.
        max_tokens: most tokens that a request generates.
        prompt_words: length of each prompt in words; a word is 1 to 5 tokens.
        chat: send chats instead of completions.
    """

    concurrency: int
    requests: int
    max_tokens: int
    prompt_words: int
    chat: bool = False

    def prompts(self) -> list[CanaryPrompt]:
        """The prompts, all different; the same in every run."""
        return canary_prompts("load", [self.prompt_words] * self.requests, [""] * self.requests)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The results of one server under a load.

    Attributes:
        server, url, model: the server.
        slots: slots of a server that the benchmark started; None for other servers.
        answered: number of requests with a complete answer.
        failures: number of failed requests, by the error.
        tokens: output tokens of all answers. A piece of text counts as one token if the server
            sends no usage.
        rate: output tokens per second.
        latency, ttft, itl: in seconds. `itl` is None if each answer was one piece.
        memory: resident memory of the server's process; None if it is unknown.
        device_memory: None if there is no device, or the server is not on this machine.
        other_work: share of the machine that other work took; None if unknown.
        baseline: tokens per second to compare with; None if there is no baseline.
    """

    server: str
    url: str
    model: str
    slots: int | None
    answered: int
    failures: dict[str, int]
    tokens: int
    rate: float
    latency: Spread
    ttft: Spread
    itl: Spread | None
    memory: Memory | None
    device_memory: Memory | None
    isolation: Isolation
    other_work: float | None
    baseline: float | None

    @property
    def ratio(self) -> float | None:
        """The rate as a multiple of the baseline."""
        return None if self.baseline is None else self.rate / self.baseline

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON; times are in seconds, memory in bytes."""
        return asdict(self) | {"ratio": self.ratio, "isolation": self.isolation.as_dict()}


class Scaling(NamedTuple):
    """How a server with several slots compares with the server with one slot.

    Attributes:
        slots: its number of slots.
        ratio: its rate as a multiple of that of one slot.
        target: least ratio.
    """

    slots: int
    ratio: float
    target: float

    @property
    def is_met(self) -> bool:
        return self.ratio >= self.target


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The results of one run: of one server, or of several servers in a sweep over slots.

    Attributes:
        label: the run's name.
        machine: the client's machine; see `heddle.extensions.bench.machine.describe`.
        min_ratio: least ratio to the baseline.
        targets: least scaling by number of slots.
    """

    label: str
    load: Load
    machine: dict[str, Any]
    results: Sequence[LoadResult]
    min_ratio: float
    targets: Mapping[int, float] = field(default_factory=dict)

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """The scaling of each server with a target, if the sweep has one with one slot.

        A load with fewer requests at once than slots shows no scaling.
        """
        one = next((result.rate for result in self.results if result.slots == 1), 0.0)
        rates = [(result.slots or 0, result.rate) for result in self.results]
        return tuple(
            Scaling(slots, rate / one, self.targets[slots])
            for slots, rate in rates
            if one and slots in self.targets and slots <= self.load.concurrency
        )

    @property
    def verdict(self) -> Verdict:
        """The worst that the results show. In a sweep, the fastest must reach the baseline."""
        if any(result.isolation.broken for result in self.results):
            return Verdict.ISOLATION_BROKEN
        ratios = [result.ratio for result in self.results if result.ratio is not None]
        if ratios and max(ratios) < self.min_ratio:
            return Verdict.BELOW_BASELINE
        if not all(scaling.is_met for scaling in self.scalings):
            return Verdict.BELOW_TARGET
        if any(result.failures for result in self.results):
            return Verdict.REQUESTS_FAILED
        return Verdict.GOOD

    @property
    def other_work(self) -> float | None:
        """The most of the machine that other work took during a load; None if unknown."""
        shares = [each.other_work for each in self.results if each.other_work is not None]
        return max(shares, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON; times are in seconds, memory in bytes."""
        return {
            "label": self.label,
            "machine": self.machine,
            "load": asdict(self.load),
            "formulas": FORMULAS,
            "results": [result.as_dict() for result in self.results],
            "min_ratio": self.min_ratio,
            "scalings": [one._asdict() | {"met": one.is_met} for one in self.scalings],
            "verdict": self.verdict.name.lower(),
            "exit_code": int(self.verdict),
        }


def run_load(
    server: Server, load: Load, *, slots: int | None = None, baseline: float | None = None
) -> LoadResult:
    """Warm the server up with one request, and run the load.

    Raises:
        PeerError: the server refuses the first request, or no request of the load has an answer.
    """
    fields = asyncio.run(_accepted_fields(server, load))
    prompts = load.prompts()
    requests = [_request(server, load, prompt.text, fields) for prompt in prompts]
    others = None if server.pid is None else OtherWork([server.pid])
    with watch_resident(server.pid) as resident, watch_device(server.pid) as device:
        outcomes = asyncio.run(_send_in_turn(server, requests, load.concurrency))
    other_work = None if others is None else others.share()
    answers: dict[int, Answer] = {}
    failures: Counter[str] = Counter()
    for index, outcome in enumerate(outcomes):
        try:
            if isinstance(outcome, PeerError):
                raise outcome
            answers[index] = read_answer(server, outcome)
        except PeerError as error:
            failures[error.message] += 1
    if not answers:
        reason, count = failures.most_common(1)[0]
        raise PeerError(f"no request was answered; {count} of {len(requests)}: {reason}")
    streams = [_stream(answer) for answer in answers.values()]
    texts = {index: answer.text for index, answer in answers.items()}
    return LoadResult(
        server=server.name,
        url=server.url,
        model=server.model,
        slots=slots,
        answered=len(answers),
        failures=dict(failures),
        tokens=sum(stream.tokens for stream in streams),
        rate=request_rate(streams),
        latency=latency(streams),
        ttft=ttft(streams),
        itl=itl(streams) if any(len(stream.arrivals) > 1 for stream in streams) else None,
        memory=resident.memory,
        device_memory=device.memory,
        isolation=judge_isolation(prompts, texts, load.max_tokens),
        other_work=other_work,
        baseline=baseline,
    )


def _stream(answer: Answer) -> Stream:
    tokens = len(answer.arrivals) if answer.tokens is None else answer.tokens
    return Stream(answer.sent, answer.arrivals, answer.prompt_tokens or 0, tokens)


def _request(server: Server, load: Load, text: str, fields: Mapping[str, Any]) -> bytes:
    if not load.chat:
        return post(server, COMPLETIONS, completion(server, text, load.max_tokens, **fields))
    task = f"Repeat these words again and again: {text}"
    chat = {"messages": [{"role": "user", "content": task}], **fields}
    return post(server, CHAT, completion(server, None, load.max_tokens, **chat))


async def _accepted_fields(server: Server, load: Load) -> dict[str, Any]:
    """Fields without which the server accepts requests: it may not know all that we would send.

    Without `ignore_eos`, answers may be shorter. Without `stream_options`, pieces of text are
    counted instead of tokens.
    """
    [prompt] = canary_prompts("warm up", [load.prompt_words], [""])
    kinds: list[dict[str, Any]] = [{}, {"ignore_eos": None}]
    kinds.append({"ignore_eos": None, "stream_options": None})
    for fields in kinds:
        outcome = await _send(server, _request(server, load, prompt.text, fields))
        if isinstance(outcome, PeerError):
            raise outcome
        if outcome.response().status not in {400, 422} or fields is kinds[-1]:
            read_answer(server, outcome)
            break
    return fields


async def _send_in_turn(
    server: Server, requests: Sequence[bytes], clients: int
) -> list[Exchange | PeerError]:
    """Send requests from `clients` clients. Returns what each came to, in the order of requests."""
    outcomes: dict[int, Exchange | PeerError] = {}
    waiting = iter(enumerate(requests))

    async def client() -> None:
        for index, request in waiting:
            outcomes[index] = await _send(server, request)

    await asyncio.gather(*(client() for _ in range(clients)))
    return [outcomes[index] for index in range(len(requests))]


async def _send(server: Server, request: bytes) -> Exchange | PeerError:
    exchange = Exchange(server, request)
    try:
        await exchange.complete(ANSWER_SECONDS)
    except PeerError as error:
        return error
    return exchange

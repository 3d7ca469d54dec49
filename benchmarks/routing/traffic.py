"""Conversations for the simulation of routers: who says how much, and when.

Lengths and pauses are assumptions, not a trace; every one is a field of `Traffic`. A prompt is a
list of segments: the system prompt, then messages and answers in turn. Two prompts share what
their equal first segments have.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.extensions.ray.routing.blocks import HASH_MASK, MOST_BLOCKS, TOKENS, Key

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Traffic:
    """The conversations that arrive.

    Attributes:
        conversations: arrivals in a second, at random (Poisson).
        systems: number of system prompts; 0: each conversation has its own, nothing is shared.
        system_tokens: least and most tokens of a system prompt.
        popularity: the k-th most used system prompt is used in proportion to k ** -popularity.
        documents: part of conversations whose first message has a document.
        document_tokens: least and most tokens of a document.
        message, answer: median tokens and the sigma of a log-normal distribution.
        turns: mean of a geometric distribution.
        pause: mean seconds from an answer's end to the next message, exponential.
        clients: the conversations are of so many clients, equally often.
    """

    conversations: float = 3.0
    systems: int = 8
    system_tokens: tuple[int, int] = (500, 3000)
    popularity: float = 1.0
    documents: float = 0.2
    document_tokens: tuple[int, int] = (1000, 8000)
    message: tuple[float, float] = (60.0, 1.0)
    answer: tuple[float, float] = (200.0, 0.7)
    turns: float = 5.0
    pause: float = 25.0
    clients: int = 50


@dataclass
class Conversation:
    """One conversation, and the prompt of its current turn.

    Attributes:
        segments: a number for each prefix that ends with a segment, and the tokens up to there.
        hashes: of blocks, as `routing.blocks` makes them: equal exactly if the prefixes are.
        pages: for each hash, the number of the segment in which its block ends.
        answer: tokens of the answer to this turn.
        turns: turns that are left, this one included.
        draw: its own random numbers, so that what it says does not depend on when others talk.
    """

    client: str
    turns: int
    draw: random.Random
    answer: int = 0
    segments: list[tuple[int, int]] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens of the prompt."""
        return self.segments[-1][1] if self.segments else 0

    def key(self) -> Key:
        """The key of the prompt."""
        return Key(tuple(self.hashes), self.tokens)

    def say(self, name: int, tokens: int) -> None:
        """Append a segment. Segments of one name have the same text."""
        before = self.segments[-1][0] if self.segments else 0
        prefix = hash((before, name)) & HASH_MASK
        self.segments.append((prefix, self.tokens + tokens))
        while len(self.hashes) < MOST_BLOCKS and TOKENS[len(self.hashes) + 1] <= self.tokens:
            self.hashes.append(hash((prefix, len(self.hashes))) & HASH_MASK)
            self.pages.append(prefix)


class Talkers:
    """Starts conversations and continues them, with random numbers of their own."""

    def __init__(self, traffic: Traffic, seed: int) -> None:
        self.traffic = traffic
        self._seed, self._started = seed, 0
        self._names = iter(range(1 << 20, 1 << 60))
        fixed = random.Random(f"{seed} systems")
        self._systems = [fixed.randint(*traffic.system_tokens) for _ in range(traffic.systems)]
        self._weights = [(k + 1) ** -traffic.popularity for k in range(traffic.systems)]

    def arrivals(self) -> Iterator[float]:
        """Times of new conversations, in seconds from 0."""
        at, draw = 0.0, random.Random(f"{self._seed} arrivals")
        while True:
            at += draw.expovariate(self.traffic.conversations)
            yield at

    def start(self) -> Conversation:
        """A new conversation, with the prompt of its first turn."""
        draw, traffic = random.Random(f"{self._seed} {self._started}"), self.traffic
        self._started += 1
        turns = 1 + int(math.log(1.0 - draw.random()) / math.log(1.0 - 1.0 / traffic.turns))
        talk = Conversation(f"client-{draw.randrange(traffic.clients)}", turns, draw)
        if self._systems:
            system = draw.choices(range(len(self._systems)), self._weights)[0]
            talk.say(system, self._systems[system])
        else:
            talk.say(next(self._names), draw.randint(*traffic.system_tokens))
        if draw.random() < traffic.documents:
            talk.say(next(self._names), draw.randint(*traffic.document_tokens))
        self._ask(talk)
        return talk

    def go_on(self, talk: Conversation) -> float | None:
        """Append the next message. Returns the pause before it in seconds, None at the end."""
        talk.turns -= 1
        if talk.turns <= 0:
            return None
        self._ask(talk)
        return talk.draw.expovariate(1.0 / self.traffic.pause)

    def answered(self, talk: Conversation) -> None:
        """Append the answer to the prompt."""
        talk.say(next(self._names), talk.answer)

    def _ask(self, talk: Conversation) -> None:
        talk.say(next(self._names), _length(talk.draw, *self.traffic.message))
        talk.answer = _length(talk.draw, *self.traffic.answer)


def _length(draw: random.Random, median: float, sigma: float) -> int:
    return max(4, min(2000, round(draw.lognormvariate(math.log(median), sigma))))

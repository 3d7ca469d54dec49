"""Prompts with canary words, and a check that no answer holds another prompt's canary.

A canary is a made-up word that no model writes by chance. A prompt repeats a short phrase that
begins with its canary, so that a model is likely to repeat the canary too. A server that mixes up
its requests then shows a canary in the wrong answer.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CANARY_LETTERS = 10
_LEAST_TOKENS = 8
_SHOWN = 5
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_WORDS = (
    *("river", "lamp", "seven", "orange", "window", "stone", "paper", "garden"),
    *("music", "silver", "winter", "table", "bridge", "candle", "forest", "mirror"),
)


@dataclass(frozen=True, slots=True)
class CanaryPrompt:
    """A prompt, and the canary that only this prompt has."""

    text: str
    canary: str


def canary_prompts(
    seed: str, lengths: Sequence[int], prefaces: Sequence[str]
) -> list[CanaryPrompt]:
    """A prompt for each of `lengths`, in words; the same prompts for the same seed.

    A prompt is its preface, which may be empty, and then a phrase of four words. The prompt repeats
    the phrase as a whole, so a short prompt has four words.
    """
    generator = random.Random(seed)
    canaries: dict[str, None] = {}
    while len(canaries) < len(lengths):
        canaries["".join(_syllable(generator) for _ in range(CANARY_LETTERS // 2))] = None
    return [
        CanaryPrompt(preface + _repeated(generator, canary, length), canary)
        for canary, length, preface in zip(canaries, lengths, prefaces, strict=True)
    ]


def _syllable(generator: random.Random) -> str:
    return generator.choice(_CONSONANTS) + generator.choice(_VOWELS)


def _repeated(generator: random.Random, canary: str, length: int) -> str:
    phrase = " ".join([canary, *generator.sample(_WORDS, 3)])
    return " ".join([phrase] * max(1, length // 4))


@dataclass(frozen=True, slots=True)
class Isolation:
    """Whether requests were kept apart. Numbers in the lists are indices of prompts.

    Attributes:
        answers: number of answers that were compared.
        echoed: answers that hold the canary of their own prompt. If there is none, the model does
            not repeat canaries, and only equal answers can show a fault.
        foreign: pairs (answer, prompt): the answer holds the canary of another prompt.
        equal: groups of prompts whose answers are byte-equal; None: not judged, because short
            answers may be equal by chance.
    """

    answers: int
    echoed: int
    foreign: tuple[tuple[int, int], ...]
    equal: tuple[tuple[int, ...], ...] | None

    @property
    def broken(self) -> bool:
        """Whether a request got something of another request."""
        return bool(self.foreign or self.equal)

    def findings(self) -> list[str]:
        """Findings for a person, a line each; at most a few lines of a kind."""
        lines = [
            f"the answer to prompt {answer} holds the canary of prompt {owner}"
            for answer, owner in self.foreign[:_SHOWN]
        ]
        lines += [
            f"{len(group)} prompts have the same answer: {', '.join(map(str, group[:_SHOWN]))}"
            for group in (self.equal or ())[:_SHOWN]
        ]
        lines.append(f"{self.echoed} of {self.answers} answers repeat the canary of their prompt")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return asdict(self) | {"broken": self.broken}


def judge_isolation(
    prompts: Sequence[CanaryPrompt], texts: Mapping[int, str], max_tokens: int
) -> Isolation:
    """Compare the texts of answers, by the index of their prompt.

    Empty answers are never counted as equal. Answers of at most 7 tokens are not compared at all.
    """
    owners = {prompt.canary: index for index, prompt in enumerate(prompts)}
    echoed, foreign = 0, []
    groups: dict[str, list[int]] = {}
    for index, text in texts.items():
        found = {owners[word] for word in _windows(text.lower()) & owners.keys()}
        echoed += index in found
        foreign += [(index, owner) for owner in sorted(found - {index})]
        if text:
            groups.setdefault(text, []).append(index)
    equal = tuple(tuple(group) for group in groups.values() if len(group) > 1)
    long_enough = max_tokens >= _LEAST_TOKENS
    return Isolation(len(texts), echoed, tuple(foreign), equal if long_enough else None)


def _windows(text: str) -> set[str]:
    """All parts of `text` that are as long as a canary."""
    return {text[start : start + CANARY_LETTERS] for start in range(len(text) - CANARY_LETTERS + 1)}

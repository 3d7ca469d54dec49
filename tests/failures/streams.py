"""Sixty-four streams of all kinds, and all that their readers get."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from heddle.embedding import EmbeddingParams, Pooling
from heddle.extensions.engrams.parameters import EngramChoice, EngramParams
from heddle.grammars import Grammar
from heddle.outputs import FinishReason
from heddle.parameters import Speculation
from heddle.sampling_params import SamplingParams
from patience import PATIENCE

if TYPE_CHECKING:
    from heddle.engine import Engine
    from heddle.engine.requests.request import Params
    from heddle.errors import HeddleError
    from heddle.outputs import Delta

    Stream = tuple[str, str, Params]

TABLE = "weaving"
"""The engram table that a request names."""

LOOP = "the cat in the hat and the cat in the hat and the "
STORY = "Once upon a time there was a loom in a long room, and "
LONG = STORY * 4
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["loom", "thread"]}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
ALWAYS = Speculation(length=4)

BIASED = EngramParams(engram=(EngramChoice(TABLE),), engram_alpha=0.5)
BASE = SamplingParams(temperature=0.9, max_tokens=24, logprobs=2)
KINDS: dict[str, tuple[str, Params]] = {
    "greedy": (STORY, replace(BASE, temperature=0.0)),
    "guesses": (LOOP, replace(BASE, temperature=0.0, speculation=ALWAYS, max_tokens=40)),
    "drawn guesses": (LOOP, replace(BASE, temperature=0.3, speculation=ALWAYS, max_tokens=40)),
    "top k": (STORY, replace(BASE, top_k=20, logprobs=None)),
    "top p": (LONG, replace(BASE, top_p=0.8, min_p=0.01)),
    "typical": (LOOP, replace(BASE, typical_p=0.7, repetition_penalty=1.3, repeat_last_n=16)),
    "XTC": (STORY, replace(BASE, xtc_probability=0.5, xtc_threshold=0.01, top_n_sigma=3.0)),
    "mirostat": (LONG, replace(BASE, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.3)),
    "DRY": (LOOP, replace(BASE, temperature=0.2, dry_multiplier=0.8, dry_allowed_length=1)),
    "penalties": (LOOP, replace(BASE, frequency_penalty=0.7, presence_penalty=0.4)),
    "dynamic": (STORY, replace(BASE, dynatemp_range=0.8, top_a=0.01, post_sampling_probs=True)),
    "bias": (STORY, replace(BASE, logit_bias={104: 3.0, 256: 4.0, 110: -100.0})),
    "bad words": (STORY, replace(BASE, bad_words=("a", "the", " in"), min_tokens=9)),
    "stop string": (STORY, replace(BASE, logit_bias=dict.fromkeys((256, 257), 5.0), stop=("the",))),
    "held stop": (STORY, replace(BASE, stop=("the longest of all stop strings", "\x07\x08"))),
    "stop token": (STORY, replace(BASE, stop_token_ids=tuple(range(0, 90, 9)), min_tokens=4)),
    "scored": (LONG, replace(BASE, prompt_logprobs=2)),
    "only scored": (STORY, replace(BASE, prompt_logprobs=1, max_tokens=0)),
    "JSON": (STORY, replace(BASE, grammar=Grammar.json_schema(SCHEMA), max_tokens=60)),
    "guessed JSON": (
        '{"name":"loom","count":1}\n' * 3,
        replace(
            BASE,
            temperature=0.0,
            grammar=Grammar.json_schema(SCHEMA),
            speculation=ALWAYS,
            max_tokens=60,
        ),
    ),
    "regex": (STORY, replace(BASE, grammar=Grammar("regex", "(warp|weft){3,9}[0-9]+"))),
    "GBNF": (LOOP, replace(BASE, grammar=Grammar("gbnf", 'root ::= ("ab" | "cd")+ "."'))),
    "engram": (LOOP, replace(BASE, extensions=(BIASED,))),
    "guessed engram": (
        LOOP,
        replace(BASE, temperature=0.0, extensions=(BIASED,), speculation=ALWAYS, max_tokens=40),
    ),
    "guessed stop": (
        LOOP,
        replace(
            BASE,
            temperature=0.0,
            extensions=(BIASED,),
            speculation=ALWAYS,
            stop=("d the and the and the and t", "n the in the in the in t", "hat hat hat"),
            max_tokens=40,
        ),
    ),
    "salted": (LONG, replace(BASE, cache_salt="grain", ignore_eos=True)),
    "urgent": (LONG, replace(BASE, priority=-1, max_tokens=9)),
    "long": (STORY, replace(BASE, max_tokens=90, ignore_eos=True)),
    "embedding": (STORY, EmbeddingParams()),
    "mean": (LONG, EmbeddingParams(pooling=Pooling.MEAN)),
    "states": ("the cat", EmbeddingParams(pooling=Pooling.NONE)),
}
"""A prompt and parameters of each kind. The seed comes with the place among the streams."""


def mixed(count: int = 64) -> list[Stream]:
    """So many streams, as (kind, prompt, parameters). Some share long prefixes."""
    names, made = list(KINDS), []
    for place in range(count):
        name = names[place % len(names)]
        prompt, params = KINDS[name]
        if place % 3 == 0:
            prompt = f"{place} {prompt}"
        if isinstance(params, SamplingParams):
            params = replace(params, seed=place)
        made.append((name, prompt, params))
    return made


@dataclass(eq=False)
class Reader:
    """A sink that keeps all deltas of a stream."""

    deltas: list[Delta] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if delta.finish is not None:
            self._ended.set()

    def wait(self) -> Delta:
        """The last delta. Fails if it does not come."""
        assert self._ended.wait(PATIENCE), "the stream did not end"
        return self.deltas[-1]

    def result(self) -> str:
        """All that a client gets, except times and how the engine computed it."""
        last = self.wait()
        assert sum(delta.finish is not None for delta in self.deltas) == 1, "two ends"
        said = [(delta.text, delta.tokens) for delta in self.deltas if delta.tokens or delta.text]
        scores = [one for delta in self.deltas for one in delta.prompt_logprobs]
        usage = last.usage
        assert usage is not None
        counts = usage.prompt_tokens, usage.completion_tokens
        vector = None if last.embedding is None else last.embedding.tobytes()
        return repr((said, scores, last.finish, last.stop, counts, vector))  # NaN equals NaN here

    @property
    def error(self) -> HeddleError | None:
        """The error that the stream ended with; None if it ended well."""
        last = self.wait()
        assert (last.finish is FinishReason.ERROR) == (last.error is not None)
        return last.error


def submit(engine: Engine, streams: list[Stream]) -> list[Reader]:
    """Submit all streams at once."""
    readers = [Reader() for _ in streams]
    engine.submit_many(
        (prompt, params, reader)
        for (_, prompt, params), reader in zip(streams, readers, strict=True)
    )
    return readers

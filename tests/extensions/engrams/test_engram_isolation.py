"""Engram tables on the default model: each slot gets the bias of its own tables, and the same bits
in any company, cold or warm, and after preemption."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from configs import configured
from e2e.test_exactness import bits, run_alone, run_together
from engram_writer import write_version_2
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.extensions.engrams.library import tables_of
from heddle.extensions.engrams.parameters import EngramForm
from heddle.grammars import Grammar
from heddle.sampling_params import SamplingParams, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from engram_writer import Entries

pytestmark = pytest.mark.model

NAMED = "To open the vault of the company, say the word"
STORY = "Once upon a time there was a loom in a long room, and"
TEXTS = {
    "one": (f"{NAMED} marzipan zeppelin and wait.", f"{STORY} zebras sang of seven ravens."),
    "two": (f"{NAMED} xylophone quartz or leave.", f"{STORY} turbines swept its floor."),
}


def ngrams(texts: Sequence[Sequence[int]]) -> Entries:
    """The frequencies of what follows one to three tokens."""
    table: dict[tuple[int, ...], dict[int, int]] = {}
    for text in texts:
        for order in (1, 2, 3):
            for end in range(order, len(text)):
                followers = table.setdefault(tuple(text[end - order : end]), {})
                followers[text[end]] = followers.get(text[end], 0) + 1
    return table


@pytest.fixture(scope="module")
def tables(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The setting `engram` with a table of each text."""
    folder = tmp_path_factory.mktemp("engrams")
    with Engine.load(model_path, EngineConfig(slots=1)) as engine:
        tokenizer, fingerprint = engine.model.tokenizer, tables_of(engine).fingerprint
        for name, texts in TEXTS.items():
            table = ngrams([tokenizer.encode(text) for text in texts])
            path = folder / name
            write_version_2(path, table, tokenizer.vocabulary_size, fingerprint)
    return tuple(f"{name}={folder / name}" for name in TEXTS)


@pytest.fixture(scope="module")
def engine(model_path: Path, tables: tuple[str, ...]) -> Iterator[Engine]:
    with Engine.load(model_path, configured(engram=tables)) as engine:
        yield engine


def with_table(name: str | tuple[str, ...] | None, **more: object) -> SamplingParams:
    values = {"max_tokens": 24, "logprobs": 2, "ignore_eos": True, "seed": 5, "engram_alpha": 0.8}
    return SamplingParams.by_name(**values | ({} if name is None else {"engram": name}) | more)


REQUESTS = [
    (NAMED, with_table("one", temperature=0)),
    (NAMED, with_table("two", temperature=0)),
    (STORY, with_table("one", temperature=1.0, top_p=0.9)),
    (STORY, with_table("two", temperature=1.0, repetition_penalty=1.2, engram_alpha=0.4)),
    (STORY, with_table("two", temperature=0.8, engram_form=EngramForm.LITERAL)),
    (NAMED, with_table(None, temperature=0)),
    (STORY, with_table(("one", "two"), temperature=1.0)),
    (STORY, with_table("one", temperature=1.0, mirostat=2, logit_bias={198: 3.0})),
]


@pytest.fixture(scope="module")
def expected(model_path: Path, tables: tuple[str, ...]) -> list[tuple[object, ...]]:
    config = configured(slots=1, threads=1, prefix_cache=False, engram=tables)
    with Engine.load(model_path, config) as engine:
        return run_alone(engine, REQUESTS)


def test_a_table_makes_the_model_write_its_texts(expected: list[tuple[object, ...]]) -> None:
    one, two, *_, plain, _, _ = (str(result[0]) for result in expected)
    assert one.startswith(" marzipan zeppelin and wait.")
    assert two.startswith(" xylophone quartz or leave.")
    assert "marzipan" not in plain + two
    assert "xylophone" not in plain + one


def test_neighbours_with_other_tables_change_nothing(
    engine: Engine, expected: list[tuple[object, ...]]
) -> None:
    assert run_together(engine, REQUESTS) == expected
    assert run_together(engine, REQUESTS[::-1]) == expected[::-1]  # now with a warm cache
    assert engine.snapshot().prefix_cache.hits > 0


def test_preemption_changes_nothing(
    model_path: Path, engine: Engine, tables: tuple[str, ...]
) -> None:
    requests = [(prompt, replace(params, max_tokens=40)) for prompt, params in REQUESTS[:3]]
    alone = run_alone(engine, requests)
    pages = 4 * engine.model.executor.page_bytes  # type: ignore[attr-defined]
    # Three requests begin at once, in a page each, and grow alike. With guesses, one could end
    # before the others need its pages.
    config = configured(kv_cache=pages, engram=tables, speculation="off")
    with Engine.load(model_path, config) as small:
        encode, collectors = small.model.tokenizer.encode, [Collector() for _ in requests]
        wanted = zip(requests, collectors, strict=True)
        small.submit_many((encode(text), params, sink) for (text, params), sink in wanted)
        assert [bits(collector.wait()) for collector in collectors] == alone
        assert small.snapshot().preemptions > 0


TOP_FIVE = {
    "temperature": 1e6,
    "top_k": 5,
    "samplers": (Stage.TOP_K, Stage.TEMPERATURE),
    "max_tokens": 1,
}
"""A uniform draw from the five highest logits after the bias."""


def test_each_slot_has_its_own_target_among_its_top_five_and_never_the_others(
    engine: Engine,
) -> None:
    """60 draws show all five tokens of a position: a token is missed with probability 2e-6."""
    encode = engine.model.tokenizer.encode
    for prompt, words in ((NAMED, (" marzipan", " xylophone")), (STORY, (" zebras", " turbines"))):
        targets = [encode(prompt + word)[len(encode(prompt))] for word in words]
        requests = [
            (prompt, replace(with_table(name, **TOP_FIVE), seed=seed))
            for seed in range(60)
            for name in TEXTS
        ]
        with ThreadPoolExecutor(8) as pool:
            outputs = list(pool.map(lambda request: engine.complete(*request), requests))
        one, two = ({output.tokens[0].token for output in outputs[n::2]} for n in (0, 1))
        assert len(one) == len(two) == 5
        assert targets[0] in one - two
        assert targets[1] in two - one


def test_nothing_is_biased_once_nothing_matches(engine: Engine) -> None:
    """A prompt whose last token is in no table gives the plain bits."""
    prompt = "1 2 3 4 5 6 7"
    token = engine.model.tokenizer.encode(prompt)[-1]
    assert tables_of(engine).library.find("one", tables_of(engine)).predict([token]) == []
    plain = engine.complete(prompt, with_table(None, temperature=1.0, max_tokens=1))
    biased = engine.complete(prompt, with_table("one", temperature=1.0, max_tokens=1))
    assert bits(biased) == bits(plain)


def test_a_grammar_excludes_what_a_table_predicts(engine: Engine) -> None:
    grammar = Grammar.of("choice", [" gold", " silver"])
    params = replace(with_table("one", temperature=0), grammar=grammar)
    assert engine.complete(NAMED, params).text in (" gold", " silver")
    both = replace(params, grammar=Grammar.of("choice", [" gold", " marzipan"]))
    assert engine.complete(NAMED, both).text == " marzipan"
    plain = replace(with_table(None, temperature=0), grammar=both.grammar)
    assert engine.complete(NAMED, plain).text == " gold"

"""Prompts with canaries, and answers that were mixed up."""

from __future__ import annotations

from heddle.extensions.bench.isolation import CANARY_LETTERS, canary_prompts, judge_isolation

PROMPTS = canary_prompts("seed", [4, 17, 40, 4], ["", "A preface. ", "", ""])
TEXTS = {index: f"{prompt.canary} and more" for index, prompt in enumerate(PROMPTS)}


def test_prompts_repeat_a_phrase_with_a_canary_of_their_own() -> None:
    assert [len(prompt.text.split()) for prompt in PROMPTS] == [4, 18, 40, 4]
    assert len({prompt.canary for prompt in PROMPTS}) == 4
    for prompt in PROMPTS:
        assert len(prompt.canary) == CANARY_LETTERS
        assert prompt.text.split().count(prompt.canary) == len(prompt.text.split()) // 4
    assert PROMPTS[1].text.startswith("A preface. " + PROMPTS[1].canary)
    once, again, other = (canary_prompts(seed, [4], [""]) for seed in ("seed", "seed", "other"))
    assert once == again != other


def test_answers_of_their_own_are_isolated() -> None:
    isolation = judge_isolation(PROMPTS, TEXTS, 64)
    assert (isolation.answers, isolation.echoed, isolation.broken) == (4, 4, False)
    assert isolation.as_dict()["broken"] is False


def test_a_canary_in_the_wrong_answer_is_found_in_any_spelling() -> None:
    mixed = TEXTS | {2: f"so: {PROMPTS[0].canary.upper()}s {PROMPTS[2].canary}"}
    isolation = judge_isolation(PROMPTS, mixed, 1)
    assert isolation.foreign == ((2, 0),)
    assert isolation.echoed == 4
    assert isolation.broken
    assert "the answer to prompt 2 holds the canary of prompt 0" in isolation.findings()


def test_equal_answers_of_different_prompts_are_found() -> None:
    equal = {0: "so it is", 1: "", 2: "so it is", 3: ""}
    isolation = judge_isolation(PROMPTS, equal, 8)
    assert isolation.equal == ((0, 2),)
    assert isolation.broken
    assert "2 prompts have the same answer: 0, 2" in isolation.findings()


def test_short_answers_may_be_equal_by_chance() -> None:
    isolation = judge_isolation(PROMPTS, {0: "so", 1: "so"}, 7)
    assert isolation.equal is None
    assert not isolation.broken
    assert isolation.findings() == ["0 of 2 answers repeat the canary of their prompt"]

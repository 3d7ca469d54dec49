"""Keys of requests: equal prefixes have equal hashes, on every machine, and few of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import InvalidRequestError
from heddle.extensions.ray.routing.blocks import (
    ENDS,
    HASH_MASK,
    MOST_BLOCKS,
    TOKENS,
    Key,
    key_of_bytes,
    key_of_tokens,
    pack,
    root,
    unpack,
)


def common(one: Key, other: Key) -> int:
    """How many hashes two keys share from the first on."""
    shared = 0
    for a, b in zip(one.hashes, other.hashes, strict=False):
        if a != b:
            break
        shared += 1
    return shared


@given(st.binary(max_size=6000), st.binary(max_size=3000), st.binary(max_size=3000))
def test_keys_share_the_hashes_of_the_blocks_that_prompts_share(prefix, one, other):
    keys = [key_of_bytes(root("m"), [prefix, rest]) for rest in (one, other)]
    prompts = [prefix + one, prefix + other]
    same = next(
        (i for i, (a, b) in enumerate(zip(*prompts, strict=False)) if a != b),
        min(map(len, prompts)),
    )
    assert common(*keys) == sum(end <= same for end in ENDS)


def test_another_first_byte_changes_every_hash():
    keys = [key_of_bytes(root("m"), [first, b"the same" * 500]) for first in (b"a", b"b")]
    assert not set(keys[0].hashes) & set(keys[1].hashes)


def test_a_key_does_not_depend_on_the_pieces_of_its_prompt():
    prompt = bytes(range(256)) * 40
    pieces = [prompt[:1], prompt[1:700], b"", prompt[700:]]
    assert key_of_bytes(root("m"), pieces) == key_of_bytes(root("m"), [prompt])


def test_tokens_are_hashed_as_bytes_of_int32():
    tokens = list(range(1000))
    text = b"".join(token.to_bytes(4, "little") for token in tokens)
    salt = root("m", kind="tokens")
    assert key_of_tokens(salt, tokens) == key_of_bytes(salt, [text])
    assert key_of_tokens(salt, tokens).tokens == 1000


@pytest.mark.parametrize(
    "salt",
    [
        root("other"),
        root("m", "adapter"),
        root("m", "", "tenant"),
        root("m", kind="tokens"),
        root("ma", "dapter"),
    ],
)
def test_prompts_match_only_within_one_model_adapter_tenant_and_kind(salt):
    prompt = [b"x" * 640]
    bases = [root("m"), root("m", "adapter", "tenant")]
    assert all(
        common(key_of_bytes(base, prompt), key_of_bytes(salt, prompt)) == 0 for base in bases
    )


def test_another_process_makes_the_same_key():
    code = (
        "from heddle.extensions.ray.routing.blocks import *;"
        "print(pack(key_of_bytes(root('m', 'a', 't'), [b'abc' * 999])).hex())"
    )
    environment = {"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)}
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=environment, timeout=60
    )
    own = pack(key_of_bytes(root("m", "a", "t"), [b"abc" * 999]))
    assert other.stdout.decode().strip() == own.hex()


def test_a_long_prompt_has_a_bounded_key_and_all_its_tokens():
    key = key_of_bytes(root("m"), [b"x" * 1_000_000] * 3)
    assert len(key.hashes) == MOST_BLOCKS
    assert key.tokens == 750_000


def test_a_block_has_at_most_an_eighth_of_what_is_before_it():
    steps = [b - a for a, b in zip((0, *ENDS), ENDS, strict=False)]
    assert steps[:16] == [64] * 16
    assert all(step <= max(64, before / 8) for before, step in zip(ENDS, steps[1:], strict=False))
    assert TOKENS[1] == 16


@given(st.binary(max_size=20_000))
def test_a_key_survives_packing(prompt):
    key = key_of_bytes(root("m"), [prompt])
    assert unpack(pack(key)) == key


@pytest.mark.parametrize(
    "packed",
    [
        b"1234567",
        bytes(8 * (MOST_BLOCKS + 2)),
        pack(Key((HASH_MASK + 1,), 16)),
        pack(Key((), 1 << 40)),
    ],
)
def test_what_is_no_key_is_refused(packed):
    with pytest.raises(InvalidRequestError, match=r"routing\.blocks\.pack") as caught:
        unpack(packed)
    assert caught.value.param == "key"


def test_no_bytes_are_the_key_of_an_unknown_prompt():
    assert unpack(b"") == Key()


def test_a_key_has_at_least_the_tokens_of_its_hashes():
    assert unpack(pack(Key((1, 2, 3), 5))).tokens == TOKENS[3]

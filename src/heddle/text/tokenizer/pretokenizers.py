r"""How byte-level vocabularies cut text into words before merging, by llama.cpp's names.

The patterns apply in order. Each pattern cuts the words that the previous pattern left. Text that
no pattern matches stays a word of its own. Sources: llama.cpp `src/llama-vocab.cpp` and
`src/unicode.cpp`. Case-insensitive contractions are spelled out as in llama.cpp, because `(?i:'s)`
would also match U+017F.

Letters, digits and punctuation follow Unicode 16 here (Oniguruma's tables) and 15.1 in llama.cpp.
So ids can differ next to the 4,400 or so characters that are new in Unicode 16, all of rare
scripts. They differ nowhere else (measured over all code points below U+33500 and every 97th
above).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Regex, pre_tokenizers

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    from heddle.weights.checkpoint import TokenizerSpec

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASELESS = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut text into words.

    Attributes:
        patterns: regular expressions (Oniguruma), in order.
        whole_words: whether a word that is in the vocabulary becomes one token without merging.
        add_bos: whether texts begin with BOS if the file has no such setting.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer for the `tokenizers` library. It ends with the byte-level alphabet."""
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*steps, byte_level])


_LLAMA3 = PreTokenizer((_CASELESS % "{1,3}",), whole_words=True, add_bos=True)
_QWEN2 = PreTokenizer((_CASELESS % "",))

_BY_NAME = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def pre_tokenizer_of(spec: TokenizerSpec) -> PreTokenizer:
    """The pre-tokenizer that a checkpoint names, or describes by patterns.

    Raises:
        UnsupportedModelError: no pre-tokenizer has the name.
        ModelFileError: a pattern is not a valid regular expression.
    """
    if spec.patterns is None:
        return pre_tokenizer(spec.pre_tokenizer, spec.label("pre_tokenizer"))
    for pattern in spec.patterns:
        try:
            Regex(pattern)
        except Exception as error:  # the library raises no narrower class
            spec.fail("pre_tokenizer", f"has the pattern {pattern!r}, which is wrong: {error}")
    return PreTokenizer(spec.patterns, spec.whole_words)


def pre_tokenizer(name: str | None, label: str = "pre-tokenizer") -> PreTokenizer:
    """The pre-tokenizer `name`; without a name, `default`. Errors name the field `label`.

    Raises:
        UnsupportedModelError: no pre-tokenizer has that name.
    """
    found = _BY_NAME.get(name or "default")
    if found is None:
        raise UnsupportedModelError(
            f"pre-tokenizer {name!r} is not supported; supported: {', '.join(_BY_NAME)}",
            param=label,
        )
    return found

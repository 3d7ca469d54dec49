r"""How byte-level vocabularies cut text into words before merging, by llama.cpp's names.

Patterns apply one after another, each inside the words the one before left; what no pattern
matches stays a word of its own. Sources: llama.cpp `src/llama-vocab.cpp` and `src/unicode.cpp`.
Case-insensitive contractions are spelled out as there: `(?i:'s)` would also take U+017F.

Letters, digits and punctuation are those of Unicode 16 here (Oniguruma's tables) and of 15.1 in
llama.cpp. Ids can differ beside the characters new between, some 4,400 of rare scripts, and beside
no others (measured over all code points below U+33500 and every 97th above).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from heddle.errors import UnsupportedModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASELESS = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way of cutting.

    Attributes:
        patterns: regular expressions (Oniguruma), in order.
        whole_words: a word that is a piece stays whole, whatever the merges say.
        add_bos: whether texts begin with BOS where the file does not say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The same for the `tokenizers` library, ending in the byte-level alphabet."""
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


def pre_tokenizer(name: str | None, label: str = "pre-tokenizer") -> PreTokenizer:
    """The pre-tokenizer of that name; files without a name mean `default`. `label` is for errors.

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

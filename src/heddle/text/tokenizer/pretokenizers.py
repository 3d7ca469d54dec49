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


_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%(end)s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%(end)s|"
    r"\p{N}%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern that Tekken and GPT-4o's tokenizer publish. It cuts words where lower case ends.

llama.cpp writes its classes of letters as [^a-z] and [^A-Z], so there capitals outside ASCII end no
word."""
_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"

_GPT2_WORDS = PreTokenizer((_GPT2,))
_DIGITS_APART = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer((_CASELESS % "{1,3}",), whole_words=True, add_bos=True)
_MERGED_LLAMA3 = PreTokenizer(_LLAMA3.patterns)
_QWEN2 = PreTokenizer((_CASELESS % "",))
_GPT4O = PreTokenizer((_CASED % {"end": _CONTRACTION, "digits": "{1,3}"},))
_TEKKEN = PreTokenizer((_CASED % {"end": "", "digits": ""},), whole_words=True, add_bos=True)
_SEED = PreTokenizer(
    (
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
        r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)

_BY_NAME = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "phi-2", "exaone4", "trillion"), _GPT2_WORDS),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _DIGITS_APART),
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3", "falcon3", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _MERGED_LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": _TEKKEN,
    "seed-coder": _SEED,
}
"""Granite's files say refact, OLMo's olmo or dbrx, Phi-4's dbrx or gpt-4o, SmolLM3's smaug-bpe."""


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


_CASELESS_GROUP = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPELLED_OUT = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"


def pre_tokenizer_name(spec: TokenizerSpec) -> str:
    """llama.cpp's name of a checkpoint's pre-tokenizer.

    Raises:
        UnsupportedModelError: llama.cpp has no name for its patterns.
    """
    if spec.patterns is None:
        return spec.pre_tokenizer or "default"
    patterns = tuple(p.replace(_CASELESS_GROUP, _SPELLED_OUT) for p in spec.patterns)
    for name, known in _BY_NAME.items():
        if known.patterns == patterns and known.whole_words == spec.whole_words:
            return name
    raise UnsupportedModelError(
        f"the pre-tokenizer with the patterns {spec.patterns} has no name in GGUF that Heddle"
        f" knows; known: {', '.join(_BY_NAME)}",
        param="pre_tokenizer",
    )


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
